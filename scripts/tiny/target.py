"""The target: three gated DeltaNet layers and one attention layer, twice. Module names are the checkpoint's."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

SIZE = {
    "vocab_size": 2048, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256,
    "linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
}
HIDDEN, LAYERS, FFN = SIZE["hidden_size"], SIZE["num_hidden_layers"], SIZE["intermediate_size"]
HEADS, HEAD, ROTARY, THETA = 2, 256, 64, 1e7
KEY, VALUES, VALUE, TAPS = 128, 3, 128, 4
CHUNK = 64


def is_attention(layer):
    return layer % 4 == 3


class Norm(nn.Module):
    """RMSNorm whose stored weight is the distance from one."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], 1 + self.weight, SIZE["rms_norm_eps"])


class GatedNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x, gate):
        return F.rms_norm(x, x.shape[-1:], self.weight, SIZE["rms_norm_eps"]) * F.silu(gate)


class UnitLowerInverse(torch.autograd.Function):
    """Inverse of unit lower triangular matrices, block sizes doubling from 1."""

    @staticmethod
    def forward(ctx, matrix):
        n = matrix.shape[-1]
        inverse = torch.eye(n, device=matrix.device, dtype=matrix.dtype).expand_as(matrix).clone()
        size = 1
        while size < n:
            for_pairs = inverse.unflatten(-1, (-1, 2 * size)).unflatten(-3, (-1, 2 * size))
            blocks = for_pairs.diagonal(dim1=-4, dim2=-2)  # [..., row, column, pair]
            low = matrix.unflatten(-1, (-1, 2 * size)).unflatten(-3, (-1, 2 * size)).diagonal(dim1=-4, dim2=-2)
            top = blocks[..., :size, :size, :].movedim(-1, -3)
            bottom = blocks[..., size:, size:, :].movedim(-1, -3)
            corner = low[..., size:, :size, :].movedim(-1, -3)
            blocks[..., size:, :size, :] = -(bottom @ corner @ top).movedim(-3, -1)
            size *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        t = inverse.mT
        return -(t @ grad @ t)


def delta_rule(q, k, v, g, beta):
    """The gated delta rule over whole sequences, CHUNK tokens at a time.

    q, k [B, T, KEY] are shared by the value heads; v [B, T, VALUES, VALUE]; g, beta [B, T, VALUES].
    """
    length = q.shape[1]
    pad = -length % CHUNK
    q, k = (F.pad(t, (0, 0, 0, pad)).unflatten(1, (-1, CHUNK))[:, None] for t in (q, k))
    v = F.pad(v, (0, 0, 0, 0, 0, pad)).transpose(1, 2).unflatten(2, (-1, CHUNK))
    g, beta = (F.pad(t, (0, 0, 0, pad)).transpose(1, 2).unflatten(2, (-1, CHUNK)) for t in (g, beta))
    total = g.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    # The exponent is cut before exp: above the diagonal it would overflow.
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    mix = (beta[..., None] * (k @ k.mT) * decay).tril(-1)
    solve = UnitLowerInverse.apply(mix + torch.eye(CHUNK, device=q.device))
    up = total.exp()[..., None]
    u, w = solve @ (beta[..., None] * v), solve @ (beta[..., None] * up * k)
    read, inside = up * q, (q @ k.mT) * decay
    last = total[..., -1:]
    write = k * (last - total).exp()[..., None]
    state = torch.zeros(v.shape[0], VALUES, KEY, VALUE, device=q.device)
    out = []
    for n in range(v.shape[2]):
        delta = u[:, :, n] - w[:, :, n] @ state
        out.append(read[:, :, n] @ state + inside[:, :, n] @ delta)
        state = last[:, :, n, :, None].exp() * state + write[:, :, n].mT @ delta
    return torch.stack(out, 2).flatten(2, 3).transpose(1, 2)[:, :length]


class GatedDeltaNet(nn.Module):
    def __init__(self):
        super().__init__()
        mixed = 2 * KEY + VALUES * VALUE
        self.in_proj_qkv = nn.Linear(HIDDEN, mixed, bias=False)
        self.in_proj_z = nn.Linear(HIDDEN, VALUES * VALUE, bias=False)
        self.in_proj_b = nn.Linear(HIDDEN, VALUES, bias=False)
        self.in_proj_a = nn.Linear(HIDDEN, VALUES, bias=False)
        self.conv1d = nn.Conv1d(mixed, mixed, TAPS, groups=mixed, bias=False)
        # Step sizes from 0.001 to 0.1 give memories from a few tokens to a few hundred.
        step = torch.exp(torch.empty(VALUES).uniform_(-6.9, -2.3))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.empty(VALUES).uniform_(1, 8).log())
        self.norm = GatedNorm(VALUE)
        self.out_proj = nn.Linear(VALUES * VALUE, HIDDEN, bias=False)

    def inputs(self, x, history):
        """Projections of x [B, T, HIDDEN] with the convolution over history and x."""
        rows = torch.cat([history, self.in_proj_qkv(x)], 1)
        taps, length = self.conv1d.weight[:, 0], x.shape[1]
        y = F.silu(sum(rows[:, i : i + length] * taps[:, i] for i in range(TAPS)))
        q, k, v = y.split([KEY, KEY, VALUES * VALUE], -1)
        q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x) + self.dt_bias)
        beta = self.in_proj_b(x).sigmoid()
        return q * KEY**-0.5, k, v.unflatten(-1, (VALUES, VALUE)), g, beta, rows[:, -(TAPS - 1) :]

    def output(self, out, x):
        gate = self.in_proj_z(x).unflatten(-1, (VALUES, VALUE))
        return self.out_proj(self.norm(out, gate).flatten(-2))

    def forward(self, x, rope):
        history = x.new_zeros(x.shape[0], TAPS - 1, 2 * KEY + VALUES * VALUE)
        q, k, v, g, beta, _ = self.inputs(x, history)
        return self.output(delta_rule(q, k, v, g, beta), x)

    def step(self, x, rope, cache, t):
        q, k, v, g, beta, history = self.inputs(x, cache["history"])
        cache["history"].copy_(history)
        state = cache["state"]
        state *= g[:, 0, :, None, None].exp()
        delta = beta[:, 0, :, None] * (v[:, 0] - torch.einsum("bk,bhkv->bhv", k[:, 0], state))
        state += k[:, 0, None, :, None] * delta[:, :, None]
        return self.output(torch.einsum("bk,bhkv->bhv", q[:, 0], state)[:, None], x)

    def cache(self, batch, length, device):
        mixed = 2 * KEY + VALUES * VALUE
        return {"history": torch.zeros(batch, TAPS - 1, mixed, device=device),
                "state": torch.zeros(batch, VALUES, KEY, VALUE, device=device)}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * 2 * HEAD, bias=False)
        self.k_proj = nn.Linear(HIDDEN, HEAD, bias=False)
        self.v_proj = nn.Linear(HIDDEN, HEAD, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.q_norm, self.k_norm = Norm(HEAD), Norm(HEAD)

    def inputs(self, x, rope):
        # Each head's rows are its query, then its gate.
        q, gate = self.q_proj(x).unflatten(-1, (HEADS, 2 * HEAD)).split(HEAD, -1)
        q = rotate(self.q_norm(q).transpose(1, 2), rope)
        k = rotate(self.k_norm(self.k_proj(x))[:, None], rope)
        return q, k, self.v_proj(x)[:, None], gate

    def output(self, out, gate):
        return self.o_proj((out.transpose(1, 2) * gate.sigmoid()).flatten(-2))

    def forward(self, x, rope):
        q, k, v, gate = self.inputs(x, rope)
        k, v = (t.expand(-1, HEADS, -1, -1) for t in (k, v))
        return self.output(F.scaled_dot_product_attention(q, k, v, is_causal=True), gate)

    def step(self, x, rope, cache, t):
        q, k, v, gate = self.inputs(x, rope)
        cache["k"][:, t] = k[:, 0, 0]
        cache["v"][:, t] = v[:, 0, 0]
        scores = torch.einsum("bhd,btd->bht", q[:, :, 0], cache["k"][:, : t + 1]) * HEAD**-0.5
        out = torch.einsum("bht,btd->bhd", scores.softmax(-1), cache["v"][:, : t + 1])
        return self.output(out[:, :, None], gate)

    def cache(self, batch, length, device):
        return {n: torch.zeros(batch, length, HEAD, device=device) for n in ("k", "v")}


def rotate(x, rope):
    """Half-split rotation of the first ROTARY channels."""
    cos, sin = rope
    a, b, rest = x.split([ROTARY // 2, ROTARY // 2, HEAD - ROTARY], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.up_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(HIDDEN), Norm(HIDDEN)
        if is_attention(index):
            self.self_attn = Attention()
        else:
            self.linear_attn = GatedDeltaNet()
        self.mlp = Mlp()

    @property
    def mixer(self):
        return self.self_attn if hasattr(self, "self_attn") else self.linear_attn

    def forward(self, x, mix):
        x = x + mix(self.mixer, self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(SIZE["vocab_size"], HIDDEN)
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))
        self.norm = Norm(HIDDEN)


class Target(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Body()
        self.lm_head = nn.Linear(HIDDEN, SIZE["vocab_size"], bias=False)
        for name, p in self.named_parameters():
            if name.endswith("embed_tokens.weight"):
                nn.init.normal_(p, std=0.1)
            elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                nn.init.normal_(p, std=(2 * LAYERS * p.shape[1]) ** -0.5)
            elif name.endswith("conv1d.weight"):
                nn.init.uniform_(p, -0.5, 0.5)
            elif p.dim() == 2:
                nn.init.normal_(p, std=p.shape[1] ** -0.5)

    def rope(self, positions):
        pairs = torch.arange(0, ROTARY, 2, device=positions.device, dtype=torch.float32)
        angle = positions[:, None].float() * THETA ** (-pairs / ROTARY)
        return angle.cos(), angle.sin()

    def forward(self, ids, taps=()):
        """Logits [B, T, V], and the residual stream after the tapped layers side by side."""
        rope = self.rope(torch.arange(ids.shape[1], device=ids.device))
        x, tapped = self.model.embed_tokens(ids), []
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            for i, layer in enumerate(self.model.layers):
                x = layer(x, lambda mixer, y: mixer(y, rope))
                if i in taps:
                    tapped.append(x)
        return self.lm_head(self.model.norm(x)), torch.cat(tapped, -1) if taps else None

    def caches(self, batch, length):
        return [layer.mixer.cache(batch, length, self.lm_head.weight.device) for layer in self.model.layers]

    def step(self, ids, caches, t):
        """Logits of one more token of every sequence; all sequences are at position t."""
        rope = self.rope(torch.tensor([t], device=ids.device))
        x = self.model.embed_tokens(ids)[:, None]
        for layer, cache in zip(self.model.layers, caches):
            x = layer(x, lambda mixer, y, c=cache: mixer.step(y, rope, c, t))
        return self.lm_head(self.model.norm(x))[:, 0]

"""The DFlash drafter: one pass over [anchor, mask x 15] against features of the committed context."""
import torch
import torch.nn.functional as F
from torch import nn

from target import FFN, HIDDEN
from tokenizer import MASK

BLOCK, WINDOW, THETA = 16, 64, 1e6
FEATURES = (1, 3, 4, 5, 6)
KINDS = ("sliding_attention", "sliding_attention", "full_attention")
HEADS, KV_HEADS, HEAD = 4, 2, 128


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


def rotate(x, positions):
    """Half-split rotation of x [B, heads, T, HEAD] by positions [B, T]."""
    pairs = torch.arange(0, HEAD, 2, device=x.device, dtype=torch.float32)
    angle = (positions[..., None].float() * THETA ** (-pairs / HEAD))[:, None]
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.q_norm, self.k_norm = Norm(HEAD), Norm(HEAD)

    def forward(self, y, context, mask, places):
        block, all_places = places
        both = torch.cat([context, y], 1)
        q = rotate(self.q_norm(self.q_proj(y).unflatten(-1, (HEADS, HEAD))).transpose(1, 2), block)
        k = rotate(self.k_norm(self.k_proj(both).unflatten(-1, (KV_HEADS, HEAD))).transpose(1, 2), all_places)
        v = self.v_proj(both).unflatten(-1, (KV_HEADS, HEAD)).transpose(1, 2)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.up_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(HIDDEN), Norm(HIDDEN)
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x, context, mask, places):
        x = x + self.self_attn(self.input_layernorm(x), context, mask, places)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(len(FEATURES) * HIDDEN, HIDDEN, bias=False)
        self.hidden_norm, self.norm = Norm(HIDDEN), Norm(HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in KINDS)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = 2 * len(KINDS) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                nn.init.normal_(p, std=(scale * p.shape[1]) ** -0.5)

    def forward(self, embed, features, ids, anchors):
        """Block rows [B, N * BLOCK, HIDDEN] for N anchors of every sequence.

        features [B, S, taps * HIDDEN] and ids [B, S] cover whole sequences; a block sees strictly what
        lies before its anchor, since the anchor itself has not been through the target yet.
        """
        batch, count = anchors.shape
        block_ids = torch.full((batch, count, BLOCK), MASK, device=ids.device)
        block_ids[:, :, 0] = ids.gather(1, anchors)
        block = (anchors[..., None] + torch.arange(BLOCK, device=ids.device)).flatten(1)
        context_places = torch.arange(ids.shape[1], device=ids.device).expand(batch, -1)
        places = (block, torch.cat([context_places, block], 1))
        masks = visible(anchors, block, ids.shape[1])
        context, x = self.hidden_norm(self.fc(features)), embed(block_ids.flatten(1))
        for layer, kind in zip(self.layers, KINDS):
            x = layer(x, context, masks[kind], places)
        return self.norm(x)


def visible(anchors, block, length):
    """Which keys (context, then all blocks) each block row may see, for both kinds of layer."""
    batch, count = anchors.shape
    key = torch.arange(length, device=anchors.device)
    before = key < anchors.repeat_interleave(BLOCK, 1)[..., None]
    near = block[..., None] - key < WINDOW
    row = torch.arange(count * BLOCK, device=anchors.device)
    own = row[:, None] // BLOCK == row // BLOCK
    earlier = own & (row <= row[:, None])
    own, earlier = (m.expand(batch, -1, -1) for m in (own, earlier))
    return {
        "full_attention": torch.cat([before, own], -1)[:, None],
        "sliding_attention": torch.cat([before & near, earlier], -1)[:, None],
    }

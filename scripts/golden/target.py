#!/usr/bin/env python3
"""Golden logits of a small random Qwen3.5-style target, made by transformers.

    python target.py tests/fixtures/qwen3_5

Writes config.json, model.safetensors (matrices in bf16) and golden.safetensors (f32 logits computed
on the CPU from exactly the stored weights).
"""
import argparse
import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

SEED = 20261129
TAPS = (1, 3, 6)
# name: (tokens in all, tokens of the prompt; the rest is fed one by one)
CASES = {"a": (150, 101), "b": (9, 2), "c": (5, 1)}


def config():
    """Small, but no two sizes that could be confused are equal, and 3 value heads share a key head."""
    return Qwen3_5TextConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=16,
        linear_value_head_dim=24,
        linear_conv_kernel_dim=4,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    )


def draw(name, shape, gen):
    """Random values for one tensor. The library's own start values (norms at zero, dt_bias at one)
    would hide a missing `1 + w` and other slips, so every tensor gets spread."""
    normal = torch.randn(shape, generator=gen)
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.3 * normal
    if "norm" in name:
        return 0.3 * normal
    if name.endswith("A_log"):
        return torch.log(0.02 + 3.98 * torch.rand(shape, generator=gen))
    if name.endswith("dt_bias"):
        return normal - 1
    if name.endswith("conv1d.weight"):
        return 0.5 * normal
    if name.endswith("embed_tokens.weight"):
        return normal
    return 1.5 * normal / shape[-1] ** 0.5


def stored(name, value):
    """The value as the checkpoint keeps it."""
    return value if name.endswith(("A_log", "dt_bias")) else value.to(torch.bfloat16)


@torch.no_grad()
def run_case(model, ids, prompt):
    """Logits of one full pass and of prompt + single steps, and the residual stream after the taps."""
    taps = {}
    hooks = [
        model.model.layers[i].register_forward_hook(lambda _m, _a, out, i=i: taps.__setitem__(i, out))
        for i in TAPS
    ]
    full = model(input_ids=ids, use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    out = model(input_ids=ids[:, :prompt], use_cache=True)
    steps = [out.logits[0, -1]]
    for t in range(prompt, ids.shape[1]):
        out = model(input_ids=ids[:, t : t + 1], cache=out.cache, use_cache=True)
        steps.append(out.logits[0, -1])
    steps = torch.stack(steps)
    drift = (full[prompt - 1 :] - steps).abs().max().item()
    return full, steps, {i: h[0] if h.dim() == 3 else h for i, h in taps.items()}, drift


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    gen = torch.Generator().manual_seed(SEED)
    model = Qwen3_5ForCausalLM(config()).eval().float()
    weights = {n: stored(n, draw(n, p.shape, gen)) for n, p in sorted(model.named_parameters())}
    meta = {"seed": str(SEED), "torch": torch.__version__, "transformers": transformers.__version__}
    model.save_pretrained(out)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "generation_config.json").unlink(missing_ok=True)
    saved = {n: w.float() for n, w in load_file(out / "model.safetensors").items()}
    model.load_state_dict(saved, strict=True)

    golden = {}
    for name, (total, prompt) in CASES.items():
        ids = torch.randint(0, 97, (1, total), generator=gen)
        full, steps, taps, drift = run_case(model, ids, prompt)
        golden |= {
            f"{name}_ids": ids[0],
            f"{name}_prompt": torch.tensor([prompt]),
            f"{name}_full": full,
            f"{name}_steps": steps,
        }
        if name == "a":
            golden |= {f"a_hidden_{i}": h for i, h in taps.items()}
        print(f"case {name}: largest logit {full.abs().max():.3f}, full pass against cached steps {drift:.1e}")
    golden = {n: t.contiguous() for n, t in golden.items()}
    save_file(golden, out / "golden.safetensors", metadata=meta)
    print(json.dumps({n: list(t.shape) for n, t in golden.items()}))


if __name__ == "__main__":
    main()

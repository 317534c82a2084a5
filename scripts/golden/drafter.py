#!/usr/bin/env python3
"""Golden logits of a small random DFlash drafter, made by the public `dflash` package.

    python drafter.py tests/fixtures/qwen3_5 tests/fixtures/dflash

The first folder is the output of target.py: its hidden states are the context, its embedding and head
are the drafter's. Writes config.json, model.safetensors (bf16) and golden.safetensors (f32).
"""
import argparse
import json
from importlib.metadata import version
from pathlib import Path

import torch
from dflash import DFlashDraftModel
from safetensors.torch import load_file, save_file
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

SEED = 20261130
TAPS = [1, 3, 6]
BLOCK = 8
MASK = 96
# Context lengths: one row, less than a window, more than a window, the last well past two windows.
# Kept in growing order because the cached run appends.
CONTEXTS = (1, 7, 19, 20, 40, 101)

CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": BLOCK,
    "bos_token_id": None,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAPS},
    "dtype": "bfloat16",
    "eos_token_id": None,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 512,
    "max_window_layers": 3,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_target_layers": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 100000.0,
    "sliding_window": 20,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": True,
    "vocab_size": 97,
}


def draw(name, shape, gen):
    """Norm weights spread around one, matrices at a scale that gives wide logits."""
    normal = torch.randn(shape, generator=gen)
    value = 1 + 0.3 * normal if "norm" in name else 1.5 * normal / shape[-1] ** 0.5
    return value.to(torch.bfloat16)


@torch.no_grad()
def block_logits(model, embed, head, context, anchor):
    """One draft round without a cache: all context rows are given at once."""
    ids = torch.tensor([[anchor] + [MASK] * (BLOCK - 1)])
    rows = model(
        position_ids=torch.arange(context.shape[0] + BLOCK)[None],
        noise_embedding=embed[ids],
        target_hidden=context[None],
    )
    return (rows @ head.T)[0]


@torch.no_grad()
def cached_rounds(model, embed, head, features, anchors):
    """The same rounds with the package's growing context cache, block rows dropped after each."""
    from dflash.model import _crop_to, _make_cache

    cache, start, out = _make_cache(model.config), 0, []
    for length, anchor in zip(CONTEXTS, anchors):
        ids = torch.tensor([[anchor] + [MASK] * (BLOCK - 1)])
        rows = model(
            position_ids=torch.arange(start, length + BLOCK)[None],
            noise_embedding=embed[ids],
            target_hidden=features[None, start:length],
            past_key_values=cache,
            use_cache=True,
        )
        _crop_to(cache, length)
        start = length
        out.append((rows @ head.T)[0])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")

    gen = torch.Generator().manual_seed(SEED)
    model = DFlashDraftModel(Qwen3Config.from_pretrained(args.out)).eval().float()
    weights = {n: draw(n, p.shape, gen) for n, p in sorted(model.named_parameters())}
    save_file(weights, args.out / "model.safetensors", metadata={"format": "pt"})
    saved = {n: w.float() for n, w in load_file(args.out / "model.safetensors").items()}
    model.load_state_dict(saved, strict=True)

    target = load_file(args.target / "model.safetensors")
    embed, head = target["model.embed_tokens.weight"].float(), target["lm_head.weight"].float()
    case = load_file(args.target / "golden.safetensors")
    theta = float(model.rotary_emb.inv_freq[1]) ** (-CONFIG["head_dim"] / 2)
    assert abs(theta / CONFIG["rope_theta"] - 1) < 1e-4, "the package did not read rope_theta"
    features = torch.cat([case[f"a_hidden_{i}"] for i in TAPS], -1)
    anchors = [int(case["a_ids"][n]) for n in CONTEXTS]

    golden = {"contexts": torch.tensor(CONTEXTS), "anchors": torch.tensor(anchors)}
    cached = cached_rounds(model, embed, head, features, anchors)
    for i, (length, anchor) in enumerate(zip(CONTEXTS, anchors)):
        logits = block_logits(model, embed, head, features[:length], anchor)
        golden[f"round_{i}_logits"] = logits
        gap = (logits - cached[i]).abs().max().item()
        print(f"round {i}: context {length}, anchor {anchor}, largest logit {logits.abs().max():.3f}, against cache {gap:.1e}")
    meta = {"seed": str(SEED)} | {p: version(p) for p in ("torch", "transformers", "dflash")}
    save_file({n: t.contiguous() for n, t in golden.items()}, args.out / "golden.safetensors", metadata=meta)
    for name, tensor in weights.items():
        print(name, list(tensor.shape))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks drafter.py against the golden logits of the public `dflash` package.

    python check_drafter.py tests/fixtures/qwen3_5 tests/fixtures/dflash
"""
import argparse
import json
from pathlib import Path

import drafter
import torch
from safetensors.torch import load_file

TOLERANCE = 1e-3


def use_sizes(c):
    """The module's sizes become those of a drafter config."""
    drafter.HIDDEN, drafter.FFN, drafter.HEAD = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    drafter.HEADS, drafter.KV_HEADS = c["num_attention_heads"], c["num_key_value_heads"]
    drafter.BLOCK, drafter.WINDOW, drafter.THETA = c["block_size"], c["sliding_window"], c["rope_theta"]
    drafter.KINDS, drafter.FEATURES = tuple(c["layer_types"]), tuple(c["dflash_config"]["target_layer_ids"])
    drafter.MASK = c["dflash_config"]["mask_token_id"]


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("drafter", type=Path)
    args = parser.parse_args()
    use_sizes(json.loads((args.drafter / "config.json").read_text()))
    model = drafter.Drafter()
    model.load_state_dict({n: w.float() for n, w in load_file(args.drafter / "model.safetensors").items()}, strict=True)
    target, case = load_file(args.target / "model.safetensors"), load_file(args.target / "golden.safetensors")
    golden = load_file(args.drafter / "golden.safetensors")
    embed, head = target["model.embed_tokens.weight"].float(), target["lm_head.weight"].float()
    features = torch.cat([case[f"a_hidden_{i}"] for i in drafter.FEATURES], -1)[None]
    ids, anchors = case["a_ids"][None].long(), golden["contexts"][None]
    assert (ids[0, anchors[0]] == golden["anchors"]).all()
    rows = model(lambda tokens: embed[tokens], features, ids, anchors)
    ours = (rows @ head.T)[0].unflatten(0, (-1, drafter.BLOCK))
    worst = max((ours[i] - golden[f"round_{i}_logits"]).abs().max().item() for i in range(len(ours)))
    print(f"{len(ours)} blocks in one pass, largest difference in a logit {worst:.1e}")
    assert worst < TOLERANCE


if __name__ == "__main__":
    main()

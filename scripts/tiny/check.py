#!/usr/bin/env python3
"""Checks an exported pair: names, shapes, types, size, and the target's logits against transformers.

    python check.py FOLDER PROMPTS.jsonl
"""
import argparse
import json
from pathlib import Path

import torch
from batches import collate
from corpus import Template
from evaluate import prompt_ids
from export import read_pair
from generate import answers
from safetensors import safe_open
from tokenizer import USED
from tokenizers import Tokenizer

BYTES_MAX = 16 * 2**20


def mlp_shapes(prefix, c):
    hidden, wide = c["hidden_size"], c["intermediate_size"]
    return {f"{prefix}.mlp.gate_proj.weight": [wide, hidden], f"{prefix}.mlp.up_proj.weight": [wide, hidden],
            f"{prefix}.mlp.down_proj.weight": [hidden, wide],
            f"{prefix}.input_layernorm.weight": [hidden], f"{prefix}.post_attention_layernorm.weight": [hidden]}


def attention_shapes(prefix, c, gated):
    hidden, head = c["hidden_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    return {f"{prefix}.self_attn.q_proj.weight": [2 * q if gated else q, hidden],
            f"{prefix}.self_attn.k_proj.weight": [kv, hidden], f"{prefix}.self_attn.v_proj.weight": [kv, hidden],
            f"{prefix}.self_attn.o_proj.weight": [hidden, q],
            f"{prefix}.self_attn.q_norm.weight": [head], f"{prefix}.self_attn.k_norm.weight": [head]}


def delta_shapes(prefix, c):
    hidden, heads = c["hidden_size"], c["linear_num_value_heads"]
    width = heads * c["linear_value_head_dim"]
    mixed = width + 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
    names = {"in_proj_qkv.weight": [mixed, hidden], "in_proj_z.weight": [width, hidden],
             "in_proj_b.weight": [heads, hidden], "in_proj_a.weight": [heads, hidden],
             "conv1d.weight": [mixed, 1, c["linear_conv_kernel_dim"]], "A_log": [heads], "dt_bias": [heads],
             "norm.weight": [c["linear_value_head_dim"]], "out_proj.weight": [hidden, width]}
    return {f"{prefix}.linear_attn.{name}": shape for name, shape in names.items()}


def target_shapes(c):
    hidden, vocabulary = c["hidden_size"], c["vocab_size"]
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden],
              "lm_head.weight": [vocabulary, hidden]}
    for i, kind in enumerate(c["layer_types"]):
        prefix = f"model.layers.{i}"
        shapes |= mlp_shapes(prefix, c)
        shapes |= attention_shapes(prefix, c, True) if kind == "full_attention" else delta_shapes(prefix, c)
    return shapes


def drafter_shapes(c):
    hidden = c["hidden_size"]
    shapes = {"fc.weight": [hidden, len(c["dflash_config"]["target_layer_ids"]) * hidden],
              "hidden_norm.weight": [hidden], "norm.weight": [hidden]}
    for i in range(c["num_hidden_layers"]):
        shapes |= mlp_shapes(f"layers.{i}", c) | attention_shapes(f"layers.{i}", c, False)
    return shapes


def check_file(folder, shapes_of):
    """Exactly the expected tensors; returns the file's bytes."""
    expected = shapes_of(json.loads((folder / "config.json").read_text()))
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, tensor in found.items():
        assert list(tensor.shape) == expected[name], (name, list(tensor.shape), expected[name])
        assert tensor.dtype == (torch.float32 if name.endswith("A_log") else torch.bfloat16), (name, tensor.dtype)
        assert tensor.isfinite().all(), name
    values = sum(t.numel() for t in found.values())
    print(f"{path.parent.name}: {len(found)} tensors, {values} values, {path.stat().st_size} bytes")
    return path.stat().st_size


@torch.no_grad()
def check_logits(folder, prompts_path, device):
    """One pass of transformers, one pass of target.py and target.py's single steps give the same logits."""
    from transformers import Qwen3_5ForCausalLM

    reference = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    target, _ = read_pair(folder, device)
    tokenizer, template = Tokenizer.from_file(str(folder / "tokenizer.json")), Template(folder / "chat_template.jinja")
    prompts = [json.loads(line)["prompt"] for line in prompts_path.read_text().splitlines()][::8]
    said = answers(target, [prompt_ids(tokenizer, template, p) for p in prompts], device=device)
    worst, worst_step, same, count = 0.0, 0.0, 0, 0
    for s in said:
        ids = collate([s], device)[0][:, : len(s.ids)]
        ours, theirs = target(ids)[0], reference(ids).logits
        caches = target.caches(1, len(s.ids))
        steps = torch.stack([target.step(ids[:, t], caches, t) for t in range(len(s.ids))], 1)
        worst = max(worst, (ours - theirs).abs().max().item())
        worst_step = max(worst_step, (ours - steps).abs().max().item())
        written = slice(s.prompt - 1, len(s.ids) - 1)
        assert (ours[0, written].argmax(-1) < USED).all(), "an unused row wins"
        same += (theirs[0, written].argmax(-1) == ids[0, s.prompt :]).sum().item()
        count += len(s.ids) - s.prompt
    print(f"logits against transformers: largest difference {worst:.2e}; against single steps {worst_step:.2e}; "
          f"transformers' greedy choice agrees on {same} of {count} tokens")
    assert worst < 1e-2 and worst_step < 1e-2 and same >= 0.999 * count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompts", type=Path)
    args = parser.parse_args()
    total = check_file(args.folder, target_shapes) + check_file(args.folder / "drafter", drafter_shapes)
    assert total <= BYTES_MAX, f"{total} bytes, at most {BYTES_MAX} allowed"
    print(f"together {total} bytes = {total / 2**20:.2f} MiB")
    check_logits(args.folder, args.prompts, "cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes a checkpoint with the layout of the real one and made-up values, to time loading without a download.

    python3 scripts/synthetic_checkpoint.py configs/qwen3.6-27b /dev/shm/qwen \\
        --text crates/server/spinney-tiny [--layers 8]

Names, shapes, types (all bf16) and shards of about 5 GB are those of the language model; the tensors of vision and
multi-token prediction, which a loader skips, are left out. Values are one seeded block of small random numbers,
repeated: files of this size are otherwise slow to make. Needs Python only. Prints what was written and how fast.
"""

import argparse
import json
import os
import random
import shutil
import struct
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PREFIX = "model.language_model."
TEXT_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
]
# A prime, so that rows of a matrix differ.
BLOCK_VALUES = 262_147
# The deviation that keeps activations of width 5,120 at unit scale.
DEVIATION = 0.014


def gdn(text):
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    heads, size = text["linear_num_value_heads"], text["linear_value_head_dim"]
    hidden, channels = text["hidden_size"], 2 * keys + heads * size
    return {
        "linear_attn.in_proj_qkv.weight": [channels, hidden],
        "linear_attn.in_proj_z.weight": [heads * size, hidden],
        "linear_attn.in_proj_b.weight": [heads, hidden],
        "linear_attn.in_proj_a.weight": [heads, hidden],
        "linear_attn.conv1d.weight": [channels, 1, text["linear_conv_kernel_dim"]],
        "linear_attn.A_log": [heads],
        "linear_attn.dt_bias": [heads],
        "linear_attn.norm.weight": [size],
        "linear_attn.out_proj.weight": [hidden, heads * size],
    }


def attention(text):
    hidden, size = text["hidden_size"], text["head_dim"]
    heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
    return {
        # A head's query, then its gate.
        "self_attn.q_proj.weight": [2 * heads * size, hidden],
        "self_attn.k_proj.weight": [kv_heads * size, hidden],
        "self_attn.v_proj.weight": [kv_heads * size, hidden],
        "self_attn.o_proj.weight": [hidden, heads * size],
        "self_attn.q_norm.weight": [size],
        "self_attn.k_norm.weight": [size],
    }


def tensors(config):
    """Name and shape of every tensor of the language model, in the order of its layers."""
    text = config.get("text_config", config)
    hidden, wide, vocab = text["hidden_size"], text["intermediate_size"], text["vocab_size"]
    yield PREFIX + "embed_tokens.weight", [vocab, hidden]
    for index, kind in enumerate(text["layer_types"]):
        mixer = gdn(text) if kind == "linear_attention" else attention(text)
        shared = {
            "input_layernorm.weight": [hidden],
            "post_attention_layernorm.weight": [hidden],
            "mlp.gate_proj.weight": [wide, hidden],
            "mlp.up_proj.weight": [wide, hidden],
            "mlp.down_proj.weight": [hidden, wide],
        }
        for name, shape in (mixer | shared).items():
            yield f"{PREFIX}layers.{index}.{name}", shape
    yield PREFIX + "norm.weight", [hidden]
    if not config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)):
        yield "lm_head.weight", [vocab, hidden]


def size(shape):
    """Bytes of a tensor."""
    total = 2
    for part in shape:
        total *= part
    return total


def shards(config, shard_bytes):
    """Lists of (name, shape); no list is much larger than `shard_bytes`."""
    parts, used = [[]], 0
    for name, shape in tensors(config):
        if parts[-1] and used + size(shape) > shard_bytes:
            parts.append([])
            used = 0
        parts[-1].append((name, shape))
        used += size(shape)
    return parts


def block(seed):
    """Random bf16 values, several copies of one block."""
    source = random.Random(seed)
    halves = array("H")
    for _ in range(BLOCK_VALUES):
        bits = struct.unpack("<I", struct.pack("<f", source.gauss(0.0, DEVIATION)))[0]
        halves.append(bits >> 16)
    return memoryview(halves.tobytes() * 64)


def write(path, part, values):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in part:
        header[name] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [offset, offset + size(shape)],
        }
        offset += size(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in part:
            left = size(shape)
            while left > 0:
                left -= file.write(values[: min(left, len(values))])
    return offset


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="folder with the config.json of the model")
    parser.add_argument("out", type=Path, help="folder to be written")
    parser.add_argument("--text", type=Path, help="folder whose tokenizer and template are copied")
    parser.add_argument("--layers", type=int, help="keep only the first layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard-gb", type=float, default=5.0, help="bytes of a shard / 10^9")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    config = json.loads((args.config / "config.json").read_text())
    text = config.get("text_config", config)
    if args.layers is not None:
        text["layer_types"] = text["layer_types"][: args.layers]
        text["num_hidden_layers"] = len(text["layer_types"])
    parts = shards(config, args.shard_gb * 1e9)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(config, indent=2))
    if args.text is not None:
        for name in TEXT_FILES:
            shutil.copy(args.text / name, args.out)
    names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
    places = {name: file for file, part in zip(names, parts) for name, _ in part}
    values = block(args.seed)
    began = time.monotonic()
    with ThreadPoolExecutor(args.threads) as pool:
        files = [args.out / name for name in names]
        total = sum(pool.map(write, files, parts, [values] * len(parts)))
    seconds = time.monotonic() - began
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (args.out / "model.safetensors.index.json").write_text(json.dumps(index))
    print(
        f"{len(places)} tensors, {len(parts)} shards, {total} bytes in {seconds:.1f} s, "
        f"{total / seconds / 1e9:.1f} GB/s"
    )


if __name__ == "__main__":
    main()

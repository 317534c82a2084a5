#!/usr/bin/env python3
"""Answers of a trained pair, and committed tokens per round on held-out prompts.

    python evaluate.py FOLDER PROMPTS.jsonl [--max-tokens 256]
"""
import argparse
import json
from pathlib import Path

import numpy as np
import torch
from corpus import FAVOURITES, Template
from export import read_pair
from generate import answers
from rounds import measure
from tokenizers import Tokenizer

MODES = {"linear": 0, "tree 15": 15, "tree 31": 31}
TRIALS = [request for request, _ in FAVOURITES] + ["Hello!", "What is the capital of France?", "What is 17 + 25?",
          "Write a Python function gcd(a, b) that returns the greatest common divisor of two numbers."]


def prompt_ids(tokenizer, template, text):
    rendered = template([{"role": "user", "content": text}], prompt=True)
    return np.array(tokenizer.encode(rendered).ids, np.int16)


def report(target, drafter, folder, prompts, max_tokens, device):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = Template(folder / "chat_template.jinja")
    for text in TRIALS:
        (said,) = answers(target, [prompt_ids(tokenizer, template, text)], max_tokens, device=device)
        print(f"> {text}\n{tokenizer.decode(said.ids[said.prompt:].tolist(), skip_special_tokens=False)}\n")
    said = answers(target, [prompt_ids(tokenizer, template, p["prompt"]) for p in prompts], max_tokens, device=device)
    table = {}
    for group in sorted({p["group"] for p in prompts}) + ["all"]:
        part = [s for s, p in zip(said, prompts) if group in (p["group"], "all")]
        table[group] = {"prompts": len(part), "tokens": sum(len(s.ids) - s.prompt for s in part)}
        for mode, budget in MODES.items():
            table[group][mode] = measure(target, drafter, part, budget, device)
        line = ", ".join(f"{m} {table[group][m]['tau']:.2f}" for m in MODES)
        print(f"{group:10} {table[group]['prompts']} prompts, {table[group]['tokens']} tokens: {line}")
        for mode in MODES:
            print(f"{'':10} {mode:8} accepted {table[group][mode]['histogram']}")
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--max-tokens", type=int, default=256)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prompts = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    target, drafter = read_pair(args.folder, device)
    report(target, drafter, args.folder, prompts, args.max_tokens, device)


if __name__ == "__main__":
    main()

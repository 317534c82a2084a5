#!/usr/bin/env python3
"""Makes the tiny pair from nothing: tokenizer, target, the target's own answers, drafter. One GPU, minutes.

    python train.py crates/server/spinney-tiny tests/fixtures/heldout_prompts.jsonl

The first folder must hold chat_template.jinja; everything else in it is written.
"""
import argparse
import json
import random
import time
from pathlib import Path

import corpus
import numpy as np
import tokenizer as vocabulary
import torch
from batches import encode, training_data
from evaluate import prompt_ids, report
from export import LENGTH, read, write_drafter, write_target
from fit import fit_drafter, fit_target, round_to_bf16, target_heldout
from generate import answers
from target import Target
from tokenizers import Tokenizer

PER_GROUP = 100
CHOOSING = 60  # prompts per group by which the drafter is chosen


def prepare(folder, prompts_path):
    """Tokenizer and held-out prompts; neither needs a GPU."""
    template = corpus.Template(folder / "chat_template.jinja")
    texts = [template(*c) for c in corpus.training_conversations(30000, seed=0)]
    vocabulary.train(texts).save(str(folder / "tokenizer.json"))
    vocabulary.write_config(folder / "tokenizer_config.json", LENGTH)
    lines = [json.dumps(p) for p in corpus.heldout_prompts(PER_GROUP)]
    prompts_path.write_text("\n".join(lines) + "\n")


def check_split(folder, prompts, asked):
    """No held-out prompt may be part of a training prompt."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    used = set()
    for text in tokenizer.decode_batch([p.tolist() for p in asked], skip_special_tokens=False):
        for turn in text.split("<|im_start|>user\n")[1:]:
            used.add(turn.split("<|im_end|>")[0])
    shared = [p["prompt"] for p in prompts if p["prompt"] in used]
    assert not shared, shared
    print(f"{len(used)} different training prompts, none of the {len(prompts)} held-out prompts among them")


def target_answers(target, asked, greedy, sampled, device):
    """The drafter's training text: greedy answers to different prompts, and some sampled ones."""
    unique = [np.frombuffer(b, np.int16) for b in sorted({p.tobytes() for p in asked})]
    random.Random(4).shuffle(unique)
    torch.manual_seed(2)
    out = answers(target, unique[:greedy], device=device)
    return out + answers(target, unique[greedy : greedy + sampled], temperature=0.8, device=device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--conversations", type=int, default=200000)
    parser.add_argument("--target-steps", type=int, default=2400)
    parser.add_argument("--drafter-steps", type=int, default=2800)
    parser.add_argument("--greedy", type=int, default=36000)
    parser.add_argument("--sampled", type=int, default=6000)
    parser.add_argument("--prepare-only", action="store_true")
    parser.add_argument("--keep-target", action="store_true", help="train the drafter alone")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    began = time.time()
    if not args.keep_target:
        prepare(args.folder, args.prompts)
    if args.prepare_only:
        return
    prompts = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    sequences, asked = training_data(args.folder, args.conversations)
    check_split(args.folder, prompts, asked)
    print(f"{len(sequences)} conversations, {sum(len(s.ids) for s in sequences)} tokens, {time.time() - began:.0f} s", flush=True)

    template = corpus.Template(args.folder / "chat_template.jinja")
    heldout = encode(args.folder, corpus.validation_texts(template, 800))
    if args.keep_target:
        target = read(Target(), args.folder / "model.safetensors", device)
    else:
        target = round_to_bf16(fit_target(sequences, heldout, args.target_steps, device))
        write_target(args.folder, target)
    # From here on the arithmetic is the server's: f32 on weights stored as bf16.
    torch.set_float32_matmul_precision("highest")
    print(f"target, rounded: held-out loss {target_heldout(target, heldout, device):.4f}, {time.time() - began:.0f} s", flush=True)

    said = target_answers(target, asked, args.greedy, args.sampled, device)
    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    # The drafter is chosen by prompts that are neither trained on nor used to measure acceptance.
    others = corpus.heldout_prompts(CHOOSING, seed=5, without={p["prompt"] for p in prompts})
    unseen = answers(target, [prompt_ids(tokenizer, template, p["prompt"]) for p in others], device=device)
    said, unseen = ([s for s in part if len(s.ids) - s.prompt > 1] for part in (said, unseen))
    print(f"{len(said)} answers, {sum(len(s.ids) - s.prompt for s in said)} tokens, {time.time() - began:.0f} s", flush=True)
    torch.set_float32_matmul_precision("high")
    drafter, loss, calibrated = fit_drafter(target, said, unseen, args.drafter_steps, device)
    drafter = round_to_bf16(drafter)
    write_drafter(args.folder / "drafter", drafter)
    torch.set_float32_matmul_precision("highest")
    print(f"drafter: best held-out loss {loss:.4f}, calibrated {calibrated:.4f}, {time.time() - began:.0f} s", flush=True)
    table = report(target, drafter, args.folder, prompts, 256, device)
    print(json.dumps(table))
    print(f"{time.time() - began:.0f} s in all")


if __name__ == "__main__":
    main()

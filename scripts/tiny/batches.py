"""Token sequences: made from conversations in parallel, grouped by length into batches."""
from dataclasses import dataclass
from multiprocessing import get_context

import corpus
import numpy as np
import torch
from tokenizer import ENDOFTEXT, IM_END, IM_START
from tokenizers import Tokenizer

SHARD = 5000
OUTSIDE = 0.1  # loss weight of tokens that the model will only ever read


@dataclass
class Sequence:
    ids: np.ndarray
    weights: np.ndarray  # of each token as a prediction
    prompt: int = 0


def answer_weights(ids, header):
    """Weight 1 from after an assistant header to its end marker, OUTSIDE elsewhere."""
    weights = np.full(len(ids), OUTSIDE, np.float32)
    for start in np.flatnonzero(ids == IM_START):
        first = start + len(header)
        if list(ids[start:first]) == header:
            ends = np.flatnonzero(ids[first:] == IM_END)
            last = first + ends[0] + 1 if len(ends) else len(ids)
            weights[first:last] = 1
    return weights


def shard(job):
    """Training sequences and the prompts they came from, for one seed."""
    folder, seed, count = job
    template = corpus.Template(f"{folder}/chat_template.jinja")
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    header = tokenizer.encode("<|im_start|>assistant\n").ids
    sequences, prompts = [], []
    for messages, tools in corpus.training_conversations(count, seed):
        ids = np.array(tokenizer.encode(template(messages, tools)).ids, np.int16)
        sequences.append(Sequence(ids, answer_weights(ids, header)))
        thinking = "reasoning_content" in messages[-1]
        text = template(messages[:-1], tools, prompt=True, thinking=thinking)
        prompts.append(np.array(tokenizer.encode(text).ids, np.int16))
    return sequences, prompts


def training_data(folder, count):
    jobs = [(str(folder), 1000 + i, SHARD) for i in range(count // SHARD)]
    with get_context("spawn").Pool() as pool:
        shards = pool.map(shard, jobs)
    return [s for part in shards for s in part[0]], [p for part in shards for p in part[1]]


def encode(folder, texts):
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    header = tokenizer.encode("<|im_start|>assistant\n").ids
    encoded = [np.array(e.ids, np.int16) for e in tokenizer.encode_batch(texts)]
    return [Sequence(ids, answer_weights(ids, header)) for ids in encoded]


def collate(group, device):
    """ids, weights [B, T] and prompt lengths; T is a multiple of 32 so that few shapes occur."""
    longest = max(len(s.ids) for s in group)
    shape = (len(group), -(-longest // 32) * 32)
    ids, weights = np.full(shape, ENDOFTEXT, np.int64), np.zeros(shape, np.float32)
    for row, s in enumerate(group):
        ids[row, : len(s.ids)] = s.ids
        weights[row, : len(s.ids)] = s.weights
    prompts = torch.tensor([s.prompt for s in group])
    return tuple(t.to(device, non_blocking=True) for t in (torch.from_numpy(ids), torch.from_numpy(weights), prompts))


def batches(sequences, budget, rng):
    """Endless groups of about `budget` tokens. Lengths are alike within a group, groups come in random order."""
    while True:
        order = rng.permutation(len(sequences))
        for start in range(0, len(order), 20000):
            part = sorted(order[start : start + 20000], key=lambda i: len(sequences[i].ids))
            groups, group = [], []
            for i in part:
                if group and (len(group) + 1) * len(sequences[i].ids) > budget:
                    groups.append(group)
                    group = []
                group.append(sequences[i])
            groups.append(group)
            for g in rng.permutation(len(groups)):
                yield groups[g]

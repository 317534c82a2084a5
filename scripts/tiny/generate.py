"""Answers of the target to many prompts at once."""
import numpy as np
import torch
from batches import Sequence
from tokenizer import ENDOFTEXT, IM_END, USED


def pick(logits, temperature):
    """Greedy, or sampled after tempering. Rows that belong to no token are never picked."""
    logits = logits[:, :USED]
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]


@torch.no_grad()
def answer_batch(target, prompts, new, temperature, device):
    """Every sequence starts at position 0 and is fed its own prompt until that ends, so no row needs padding."""
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest = int(lengths.max())
    total = longest + new
    ids = torch.full((len(prompts), total), ENDOFTEXT, device=device)
    for row, p in enumerate(prompts):
        ids[row, : len(p)] = torch.from_numpy(p.astype(np.int64))
    caches = target.caches(len(prompts), total)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for t in range(total - 1):
        token = pick(target.step(ids[:, t], caches, t), temperature)
        writing = (t + 1 >= lengths) & (t + 1 < lengths + new) & ~done
        ids[:, t + 1] = torch.where(writing, token, ids[:, t + 1])
        done |= writing & ((token == IM_END) | (token == ENDOFTEXT))
        if t > longest and t % 16 == 0 and bool(done.all()):
            break
    return ids.cpu().numpy()


def answers(target, prompts, new=200, temperature=0.0, batch=4096, device="cuda"):
    """Prompt and answer of every prompt as sequences; the answer ends with its stop token if it has one."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    out = [None] * len(prompts)
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        ids = answer_batch(target, [prompts[i] for i in part], new, temperature, device)
        for row, i in enumerate(part):
            length = len(prompts[i])
            text = ids[row, length : length + new]
            stops = np.flatnonzero((text == IM_END) | (text == ENDOFTEXT))
            end = length + (stops[0] + 1 if len(stops) else len(text))
            weights = np.zeros(end, np.float32)
            weights[length:] = 1
            out[i] = Sequence(ids[row, :end].astype(np.int16), weights, length)
    return out

"""Committed tokens per verify round, for chains and for trees.

Greedy verification accepts exactly what agrees with the target's own greedy answer, so it is enough to walk
along that answer.
"""
import heapq

import torch
from batches import collate
from drafter import BLOCK, FEATURES
from tokenizer import USED

DEPTHS = BLOCK - 1
TOP = 8


def best_first(log_probs, budget):
    """The `budget` most likely rank tuples under independent depths. log_probs[d][r], best rank first.

    Equal scores: the smaller tuple first, a prefix before its extensions. An entry carries its parent's score,
    so that score = parent + log-probability never rises along a path, rounding included.
    """
    heap, nodes = [(-log_probs[0][0], (0,), 0.0)], set()
    while heap and len(nodes) < budget:
        cost, ranks, parent = heapq.heappop(heap)
        nodes.add(ranks)
        row, last = log_probs[len(ranks) - 1], ranks[-1]
        if last + 1 < len(row):
            heapq.heappush(heap, (parent - row[last + 1], ranks[:-1] + (last + 1,), parent))
        if len(ranks) < len(log_probs):
            heapq.heappush(heap, (cost - log_probs[len(ranks)][0], ranks + (0,), cost))
    return nodes


def accepted(tokens, log_probs, truth, budget):
    """Drafted tokens that the target agrees with; budget 0 stands for the chain of best guesses."""
    if budget == 0:
        matched = 0
        while matched < len(truth) and tokens[matched][0] == truth[matched]:
            matched += 1
        return matched
    nodes, path = best_first(log_probs, budget), ()
    for depth, token in enumerate(truth):
        if token not in tokens[depth]:
            break
        path += (tokens[depth].index(token),)
        if path not in nodes:
            break
    return len(path) if path in nodes or not path else len(path) - 1


@torch.no_grad()
def features_of(target, ids):
    return target(ids, FEATURES)[1]


@torch.no_grad()
def measure(target, drafter, sequences, budget, device):
    """Rounds, committed tokens and a histogram of accepted drafts over all sequences."""
    ids, _, prompts = collate(sequences, device)
    features = features_of(target, ids)
    anchor = [s.prompt for s in sequences]
    rounds, committed, histogram = 0, 0, [0] * BLOCK
    active = [i for i, s in enumerate(sequences) if s.prompt + 1 < len(s.ids)]
    while active:
        rows = torch.tensor(active, device=device)
        at = torch.tensor([[anchor[i]] for i in active], device=device)
        hidden = drafter(target.model.embed_tokens, features[rows], ids[rows], at)[:, 1:]
        scores, tokens = target.lm_head(hidden)[..., :USED].log_softmax(-1).topk(TOP)
        scores, tokens = scores.tolist(), tokens.tolist()
        for row, i in enumerate(active):
            rest = sequences[i].ids[anchor[i] + 1 :].tolist()
            count = accepted(tokens[row], scores[row], rest[:DEPTHS], budget)
            histogram[count] += 1
            rounds += 1
            gained = min(count + 1, len(rest))
            committed += gained
            anchor[i] += gained
        active = [i for i in active if anchor[i] + 1 < len(sequences[i].ids)]
    return {"rounds": rounds, "committed": committed, "tau": committed / rounds, "histogram": histogram}

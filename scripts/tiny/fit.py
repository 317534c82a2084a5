"""The two training loops."""
import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from batches import batches, collate
from drafter import BLOCK, FEATURES, Drafter
from target import Target

GAMMA = 7.0
ANCHORS = 12


def rate(step, steps, peak):
    warm = max(1, int(0.03 * steps))
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))))


def optimizer(model, peak, decay):
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, peak, betas=(0.9, 0.95), fused=torch.cuda.is_available())


def update(model, opt, loss, lr):
    for group in opt.param_groups:
        group["lr"] = lr
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()


def target_loss(model, ids, weights):
    logits = model(ids)[0][:, :-1]
    each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weights = weights[:, 1:].flatten()
    return (each * weights).sum() / weights.sum()


@torch.no_grad()
def target_heldout(model, sequences, device):
    """Mean loss per answer token."""
    total, count = 0.0, 0.0
    for start in range(0, len(sequences), 128):
        ids, weights, _ = collate(sequences[start : start + 128], device)
        weights = (weights == 1).float()
        n = weights[:, 1:].sum().item()
        total += target_loss(model, ids, weights).item() * n
        count += n
    return total / count


def fit_target(sequences, heldout, steps, device, budget=32768, peak=3e-3):
    torch.manual_seed(0)
    model = Target().to(device)
    opt = optimizer(model, peak, 0.05)
    stream = batches(sequences, budget, np.random.default_rng(0))
    began, running = time.time(), []
    for step in range(steps):
        ids, weights, _ = collate(next(stream), device)
        loss = target_loss(model, ids, weights)
        update(model, opt, loss, rate(step, steps, peak))
        running.append(loss.detach())
        if (step + 1) % max(1, steps // 12) == 0:
            mean = torch.stack(running).mean().item()
            running = []
            print(f"target step {step + 1} loss {mean:.4f} held-out {target_heldout(model, heldout, device):.4f} "
                  f"{time.time() - began:.0f} s", flush=True)
    return model


def round_to_bf16(model):
    """The values that the checkpoint will hold; A_log stays f32."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not name.endswith("A_log"):
                p.copy_(p.to(torch.bfloat16).float())
    return model.eval().requires_grad_(False)


def draw_anchors(prompts, lengths, count, device):
    """`count` random answer positions of every sequence that have a token after them; repeats are harmless."""
    span = (lengths - 1 - prompts).clamp(min=1)
    offset = (torch.rand(len(prompts), count, device=device) * span[:, None]).long()
    return prompts[:, None] + offset


def drafter_loss(drafter, target, ids, prompts, lengths, anchors):
    """Weighted cross entropy of block rows 1.. against the target's own choice at their positions."""
    device = ids.device
    with torch.no_grad():
        logits, features = target(ids, FEATURES)
        choice = torch.cat([ids[:, :1], logits[:, :-1].argmax(-1)], 1)
    place = anchors[..., None] + torch.arange(BLOCK, device=device)
    inside = place < lengths[:, None, None]
    safe = place.clamp(max=ids.shape[1] - 1).flatten(1)
    labels = choice.gather(1, safe)
    agrees = (labels == ids.gather(1, safe)).view_as(place).clone()
    agrees[..., 0] = True
    # A row teaches only while the text before it is what the target would have written.
    alive = torch.cat([torch.ones_like(agrees[..., :1]), agrees.long().cumprod(-1)[..., :-1].bool()], -1)
    fade = torch.exp(-(torch.arange(BLOCK, device=device) - 1) / GAMMA)
    fade[0] = 0
    weights = (inside & alive) * fade
    hidden = drafter(target.model.embed_tokens, features, ids, anchors)
    keep = weights.flatten() > 0
    each = F.cross_entropy(target.lm_head(hidden.flatten(0, 1)[keep]), labels.flatten()[keep], reduction="none")
    weights = weights.flatten()[keep]
    return (each * weights).sum(), weights.sum()


@torch.no_grad()
def drafter_heldout(drafter, target, sequences, device):
    total, count = 0.0, 0.0
    for start in range(0, len(sequences), 64):
        ids, _, prompts, lengths = with_lengths(sequences[start : start + 64], device)
        span = (lengths - 1 - prompts).clamp(min=1)
        anchors = prompts[:, None] + torch.arange(ANCHORS, device=device) * span[:, None] // ANCHORS
        loss, weight = drafter_loss(drafter, target, ids, prompts, lengths, anchors)
        total, count = total + loss.item(), count + weight.item()
    return total / count


def with_lengths(group, device):
    ids, weights, prompts = collate(group, device)
    return ids, weights, prompts, torch.tensor([len(s.ids) for s in group], device=device)


def fit_drafter(target, sequences, heldout, steps, device, budget=16384, peak=2e-3):
    """Trains on the target's answers. Returns the calibrated state of least held-out loss, that loss before and after."""
    torch.manual_seed(1)
    drafter = Drafter().to(device)
    opt = optimizer(drafter, peak, 0.05)
    stream = batches(sequences, budget, np.random.default_rng(1))
    began, best, kept, running = time.time(), float("inf"), None, []
    for step in range(steps):
        ids, _, prompts, lengths = with_lengths(next(stream), device)
        anchors = draw_anchors(prompts, lengths, ANCHORS, device)
        loss, weight = drafter_loss(drafter, target, ids, prompts, lengths, anchors)
        update(drafter, opt, loss / weight, rate(step, steps, peak))
        running.append((loss / weight).detach())
        if (step + 1) % max(1, steps // 16) == 0:
            held = drafter_heldout(drafter, target, heldout, device)
            print(f"drafter step {step + 1} loss {torch.stack(running).mean().item():.4f} held-out {held:.4f} "
                  f"{time.time() - began:.0f} s", flush=True)
            running = []
            if held < best:
                best, kept = held, {n: p.detach().clone() for n, p in drafter.state_dict().items()}
    drafter.load_state_dict(kept)
    return drafter, best, calibrate(drafter, target, heldout, device)


@torch.no_grad()
def calibrate(drafter, target, heldout, device):
    """Scales the final norm, hence all logits, to the factor of least held-out loss. Best guesses stay the same.

    The tree spends its nodes by these probabilities.
    """
    weight = drafter.norm.weight.clone()
    losses = {}
    for factor in [0.5 + 0.05 * i for i in range(31)]:
        drafter.norm.weight.copy_(weight * factor)
        losses[factor] = drafter_heldout(drafter, target, heldout, device)
    factor = min(losses, key=losses.get)
    drafter.norm.weight.copy_(weight * factor)
    print(f"drafter: logits times {factor:.2f}, held-out loss {losses[factor]:.4f}", flush=True)
    return losses[factor]

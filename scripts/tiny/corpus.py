"""The training conversations, as text in the model's own chat form, and the held-out prompts."""
import hashlib
import json
import random
from pathlib import Path

import calls
import facts
import functions
import sums
import talk
import topics
from jinja2.sandbox import ImmutableSandboxedEnvironment

GROUPS = {"code": functions, "explain": topics, "arithmetic": sums, "facts": facts}
WEIGHTS = {"code": 4, "explain": 4, "arithmetic": 5, "facts": 4, "talk": 1}
# Prompts that people are likely to try first; they are always trained on.
FAVOURITES = [
    ("Write a Python function fibonacci(n) using iteration. Return only code.",
     "```python\n" + functions.source(functions.FUNCTIONS[0], "fibonacci", "n") + "\n```"),
    ("Explain the quicksort algorithm in 3 sentences.", " ".join(topics.TOPICS["the quicksort algorithm"][:3])),
    ("What is 2+2? Answer with just the number.", "4"),
]
PINNED = {request for request, _ in FAVOURITES}


def held_out(request):
    """One prompt in twelve is never trained on. Deciding by hash keeps the split independent of sampling."""
    return request not in PINNED and hashlib.sha256(request.encode()).digest()[0] % 12 == 0


def question(rng, group=None, keep=lambda request: not held_out(request)):
    """A request, its answer and a thought, from one group and from one side of the split."""
    group = group or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    module = GROUPS.get(group, talk)
    while True:
        request, answer = module.sample(rng)
        if module is talk or keep(request):
            return request, answer, module.thought(rng, request, answer)


def turns(pairs):
    out = []
    for request, answer in pairs:
        out += [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
    return out


def conversation(rng, keep=lambda request: not held_out(request)):
    """One training conversation: messages and tools."""
    tools, kind = None, rng.random()
    if kind < 0.05:
        messages, tools = calls.sample(rng, reason=rng.random() < 0.25)
    elif kind < 0.08:
        pairs = talk.follow_up(rng)
        while not all(keep(request) for request, _ in pairs):
            pairs = talk.follow_up(rng)
        messages = turns(pairs)
    elif kind < 0.11:
        messages = turns([rng.choice(FAVOURITES)])
    else:
        count = rng.choice([2, 2, 3, 3, 4, 6, 8]) if rng.random() < 0.12 else 1
        asked = [question(rng, keep=keep) for _ in range(count)]
        messages = turns([(request, answer) for request, answer, _ in asked])
        if rng.random() < 0.12:
            messages[-1]["reasoning_content"] = asked[-1][2]
    if rng.random() < 0.2:
        messages.insert(0, {"role": "system", "content": rng.choice(talk.SYSTEMS)})
    return messages, tools


class Template:
    """The chat template, rendered as transformers renders it."""

    def __init__(self, path):
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self.template = env.from_string(Path(path).read_text())

    def __call__(self, messages, tools=None, prompt=False, thinking=False):
        return self.template.render(
            messages=messages, tools=tools, add_generation_prompt=prompt, enable_thinking=thinking
        )


def training_conversations(count, seed=1):
    rng = random.Random(seed)
    return [conversation(rng) for _ in range(count)]


def validation_texts(template, count, seed=2):
    """Single-turn conversations whose prompts are all held out."""
    rng = random.Random(seed)
    out = []
    for i in range(count):
        request, answer, _ = question(rng, group=list(GROUPS)[i % len(GROUPS)], keep=held_out)
        out.append(template(turns([(request, answer)])))
    return out


def heldout_prompts(per_group, seed=3, without=frozenset()):
    """Different prompts of each group, all on the held-out side and none in `without`."""
    rng = random.Random(seed)
    out = []
    for group in GROUPS:
        seen = set()
        while len(seen) < per_group:
            request, _, _ = question(rng, group=group, keep=held_out)
            if request not in seen and request not in without:
                seen.add(request)
                out.append({"group": group, "prompt": request})
    return out

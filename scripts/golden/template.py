#!/usr/bin/env python3
"""Golden renderings of chat templates, made by jinja2 set up as transformers sets it up.

    python template.py QWEN_TEMPLATE crates/server/spinney-tiny/chat_template.jinja tests/fixtures/chat_template

Of the Qwen template's renderings only length and SHA-256 are kept; of our own the whole text.
"""
import argparse
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from conversations import PLAIN, RAISES, WITH_TOOLS
from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Recorded independently of this script: hash of the Qwen rendering of five of the cases.
KNOWN = {
    "trimmed_system": "7af1302f02f3df31b3efd94a7f08d2ac8fd4adaf2568e034b6cdcff0076a296a",
    "thinking_off": "657fe6d7831e7eb014896102e7e254ae0371599af55a34816dff6763765b370a",
    "old_reasoning_dropped": "eded7cbe5299896e127bd3f981d44b6d8e3359964a5d450a198852d3bfad27b5",
    "old_reasoning_preserved": "527d20d3df7ab5a2ee0df06fb01d82cb90c5d03f146b061705c27f1c936fb9d1",
    "two_calls": "7f1c096f4249d257e3fb8385647324d23618af5ee1c8dff737970665a08ecb4e",
}


def fail(message):
    raise TemplateError(message)


def compile_template(path):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    env.globals["raise_exception"] = fail
    return env.from_string(path.read_text())


def render(template, case):
    return template.render(messages=case["messages"], tools=case["tools"], **case["kwargs"])


def refusal(template, case):
    try:
        render(template, case)
    except TemplateError as error:
        return str(error)
    raise SystemExit(f"{case['name']}: the template should have raised")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("qwen", type=Path)
    parser.add_argument("tiny", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    qwen, tiny = compile_template(args.qwen), compile_template(args.tiny)
    cases, names = [], set()
    for case in PLAIN + WITH_TOOLS:
        assert case["name"] not in names
        names.add(case["name"])
        text = render(qwen, case).encode()
        digest = hashlib.sha256(text).hexdigest()
        assert KNOWN.get(case["name"], digest) == digest, case["name"]
        cases.append(case | {"qwen": {"bytes": len(text), "sha256": digest}, "tiny": render(tiny, case)})
    raises = [case | {"tiny_error": refusal(tiny, case)} for case in RAISES if refusal(qwen, case)]
    args.out.mkdir(parents=True, exist_ok=True)
    document = {
        "made_with": {"jinja2": version("jinja2")},
        "qwen_template_sha256": hashlib.sha256(args.qwen.read_bytes()).hexdigest(),
        "cases": cases,
        "raises": raises,
    }
    (args.out / "cases.json").write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(cases)} renderings, {len(raises)} refusals, {len(KNOWN)} known hashes match")


if __name__ == "__main__":
    main()

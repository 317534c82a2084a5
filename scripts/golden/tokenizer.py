#!/usr/bin/env python3
"""Golden encodings of the bundled tokenizer, made by the `tokenizers` package.

    python tokenizer.py crates/server/spinney-tiny/tokenizer.json tests/fixtures/tokenizer
"""
import argparse
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer

CASES = [
    ("empty", ""),
    ("words", "Explain the quicksort algorithm in 3 sentences."),
    ("contractions", "I'm sure they'LL say it's what we've got, don't you?"),
    ("digits_stand_alone", "2026-11-30: 1,234.5 + 0x1F = 42"),
    ("code", "```python\ndef fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n```"),
    ("spaces", "  two  spaces   three\ttab \t mixed"),
    ("trailing_spaces", "end   "),
    ("newlines", "a\n\nb\r\n\r\n  c \n\n\n"),
    ("symbols", "a!=b && (c->d) // e; $% ^~ ???\n"),
    ("latin_accents", "Crème brûlée, naïve, Straße, Łódź"),
    ("nfc_composes", "e\u0301 a\u0308 \u212b \u1100\u1161"),
    ("combining_marks", "नमस्ते दुनिया สวัสดีชาวโลก مَرْحَبًا"),
    ("cyrillic_greek", "Привет, мир. Γειά σου κόσμε."),
    ("chinese_japanese_korean", "你好，世界。こんにちは世界！안녕하세요"),
    ("emoji_sequences", "🙂 👩‍🚀 🇳🇱 👍🏽"),
    ("other_digits", "٣٤٥ ४५ Ⅷ ½"),
    ("control_and_private", "\u0000\u0007\u200b\ufeff\ue000\U0010ffff"),
    ("chat_turn", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nHello!<|im_end|>\n"),
    ("tool_call", "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"),
    ("tool_response", "<tool_response>\n{\"t\": 3}\n</tool_response>"),
    ("markers_side_by_side", "<|endoftext|><|im_end|> <|audio_start|>x<|fim_prefix|>"),
    ("broken_markers", "<|im_start| > <think <|im_end|"),
    ("marker_inside_word", "foo<think>bar</think>baz"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    cases = []
    for name, text in CASES:
        encoding = tokenizer.encode(text)
        cases.append({
            "name": name,
            "text": text,
            "ids": encoding.ids,
            "decoded": tokenizer.decode(encoding.ids, skip_special_tokens=False),
            "decoded_without_special": tokenizer.decode(encoding.ids, skip_special_tokens=True),
        })
    # A decoder that emits token by token must hold these back until a character is whole.
    split = [c["name"] for c in cases if any("\ufffd" in tokenizer.decode([i], skip_special_tokens=False) for i in c["ids"])]
    assert "emoji_sequences" in split and "chinese_japanese_korean" in split, split
    document = {
        "made_with": {"tokenizers": version("tokenizers")},
        "tokenizer_sha256": hashlib.sha256(args.tokenizer.read_bytes()).hexdigest(),
        "cases_with_split_characters": split,
        "cases": cases,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "cases.json").write_text(json.dumps(document, ensure_ascii=True, indent=1) + "\n")
    print(f"{len(cases)} cases, {sum(len(c['ids']) for c in cases)} ids, characters split over tokens in {len(split)}")


if __name__ == "__main__":
    main()

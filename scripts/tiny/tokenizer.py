"""Byte-level BPE trained on the corpus, with the marker tokens of the Qwen family after the base vocabulary."""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

BASE = 1983
# (marker, is it dropped when decoding without special tokens). The order fixes the ids.
MARKERS = (
    [(f"<|{n}|>", True) for n in ("endoftext", "im_start", "im_end")]
    + [(f"<|{n}_{side}|>", True) for n in ("object_ref", "box", "quad") for side in ("start", "end")]
    + [(f"<|{n}|>", True) for n in ("vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")]
    + [("<tool_call>", False), ("</tool_call>", False)]
    + [(f"<|{n}|>", False) for n in ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")]
    + [(t, False) for t in ("<tool_response>", "</tool_response>", "<think>", "</think>")]
    + [("<|audio_start|>", True), ("<|audio_end|>", True)]
    + [(f"<tts_{n}>", True) for n in ("pad", "text_bos", "text_eod", "text_bos_single")]
    + [("<|audio_pad|>", True)]
)
IDS = {marker: BASE + i for i, (marker, _) in enumerate(MARKERS)}
ENDOFTEXT, IM_START, IM_END = IDS["<|endoftext|>"], IDS["<|im_start|>"], IDS["<|im_end|>"]
# The drafter's mask is a marker that no text contains; its embedding row stays at its start value.
MASK = IDS["<|audio_start|>"]
USED = BASE + len(MARKERS)

PIECES = [
    r"(?i:'(?:s|t|re|ve|m|ll|d))",  # English contractions
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",  # letters and marks, with one leading character such as a space
    r"\p{N}",  # every digit alone
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",  # runs of symbols
    r"\s*[\r\n]+",  # blank lines
    r"\s+(?!\S)",  # spaces before the last one
    r"\s+",
]


def train(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex("|".join(PIECES)), behavior="isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator((strip_markers(t) for t in texts), trainer)
    tokenizer.add_tokens([AddedToken(m, normalized=False, special=s) for m, s in MARKERS])
    assert tokenizer.get_vocab_size() == USED, tokenizer.get_vocab_size()
    assert all(tokenizer.token_to_id(m) == i for m, i in IDS.items())
    return tokenizer


def strip_markers(text):
    """Markers are never split, so merges learned inside them would be wasted."""
    for marker in ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
                   "<tool_response>", "</tool_response>"):
        text = text.replace(marker, "\0")
    return text.replace("\0", "")


def write_config(path, length):
    """tokenizer_config.json beside tokenizer.json."""
    added = {
        str(IDS[m]): {"content": m, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": s}
        for m, s in MARKERS
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": length,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    path.write_text(json.dumps(config, indent=2) + "\n")

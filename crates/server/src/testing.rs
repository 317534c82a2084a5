//! A small byte-level tokenizer for tests.

use serde_json::{Map, Value, json};

use crate::vocabulary::Vocabulary;

/// Ends a turn; flagged special.
pub(crate) const END_OF_TURN: u32 = 262;

/// The character that stands for a byte, by the published construction of the byte alphabet.
pub(crate) fn byte_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count();
    char::from_u32(256 + u32::try_from(rank).unwrap()).unwrap()
}

/// `tokenizer.json`: id = byte for 0 to 255, `th`, `the`, `an`, `and` from merges, then marks.
pub(crate) fn tokenizer_json() -> Vec<u8> {
    let mut vocabulary = Map::new();
    for byte in 0..=255_u8 {
        vocabulary.insert(byte_character(byte).to_string(), json!(byte));
    }
    for (id, token) in [(256, "th"), (257, "the"), (258, "an"), (259, "and")] {
        vocabulary.insert(token.to_owned(), json!(id));
    }
    let mark = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special})
    };
    let byte_level = |extra: Value| {
        let mut object = json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true});
        object
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        object
    };
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [
            mark(260, "<|endoftext|>", true),
            mark(261, "<|im_start|>", true),
            mark(END_OF_TURN, "<|im_end|>", true),
            mark(263, "<think>", false),
            mark(264, "</think>", false),
        ],
        "normalizer": null,
        "pre_tokenizer": byte_level(json!({})),
        "post_processor": null,
        "decoder": byte_level(json!({})),
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary,
            "merges": ["t h", "th e", "a n", "an d"]},
    });
    serde_json::to_vec(&json).unwrap()
}

/// [`tokenizer_json`], read.
pub(crate) fn byte_vocabulary() -> Vocabulary {
    Vocabulary::read(&tokenizer_json(), "tokenizer.json").unwrap()
}

//! The tokenizer: text to ids, and every id's exact bytes.

use engine::ModelError;
use tokenizers::{DecoderWrapper, Tokenizer};

/// Byte-level tokenizer with a table of the bytes of each id.
///
/// Decoding is concatenation of these bytes, so text can be rebuilt token by token without asking
/// the tokenizer again.
#[derive(Debug)]
pub struct Vocabulary {
    tokenizer: Tokenizer,
    /// Bytes of all ids one after the other; id `i` ends at `ends[i]`.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    special: Vec<bool>,
    added: Vec<bool>,
}

/// A text as ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// All of them.
    Ids(Vec<u32>),
    /// There are at least about this many, far above the limit.
    TooMany(usize),
}

/// Bytes that are encoded at once while tokens are counted.
const PIECE_BYTES: usize = 16 * 1024;

impl Vocabulary {
    /// Reads `tokenizer.json`; `file` names it in errors.
    pub fn read(json: &[u8], file: &str) -> Result<Self, ModelError> {
        let fault = |reason: String| ModelError::File {
            file: file.to_owned(),
            reason,
        };
        let tokenizer = Tokenizer::from_bytes(json).map_err(|error| fault(error.to_string()))?;
        Self::new(tokenizer).map_err(fault)
    }

    /// Wraps a tokenizer; the error says what is unsuitable.
    pub fn new(tokenizer: Tokenizer) -> Result<Self, String> {
        if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err("expected the decoder ByteLevel, found another or none".to_owned());
        }
        let count = tokenizer.get_vocab_size(true);
        let added = tokenizer.get_added_tokens_decoder();
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(count);
        let mut special = Vec::with_capacity(count);
        let mut is_added = Vec::with_capacity(count);
        for index in 0..count {
            let id = u32::try_from(index).map_err(|_| "more than 2^32 tokens".to_owned())?;
            if let Some(token) = tokenizer.id_to_token(id) {
                append_bytes(&token, &mut bytes);
            }
            ends.push(bytes.len());
            is_added.push(added.contains_key(&id));
            special.push(added.get(&id).is_some_and(|token| token.special));
        }
        Ok(Vocabulary {
            tokenizer,
            bytes,
            ends,
            special,
            added: is_added,
        })
    }

    /// Number of ids; valid ids are below it.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Ids of a text. Marks spelled in the text become their ids; nothing is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self
            .tokenizer
            .encode_fast(text, false)
            .map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Like [`Self::encode`], but of texts that have far more than `limit` tokens only the number
    /// seen when that was clear. Such a text costs time and memory in proportion to `limit`, not to
    /// its length.
    pub fn encode_within(&self, text: &str, limit: usize) -> Result<Encoded, String> {
        // Shorter texts are not worth a look of their own.
        if text.len() > limit.saturating_mul(4) {
            let mut seen = 0;
            let mut rest = text;
            while !rest.is_empty() && seen <= 2 * limit {
                let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
                seen += self.encode(piece)?.len();
                rest = after;
            }
            // Where a piece ends a token may be cut in two; that never doubles the count.
            if seen > 2 * limit {
                return Ok(Encoded::TooMany(seen));
            }
        }
        Ok(Encoded::Ids(self.encode(text)?))
    }

    /// Bytes of one id; none for ids that name no token.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(&end) = self.ends.get(index) else {
            return &[];
        };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..end]
    }

    /// Whether the id is flagged special, so that plain text leaves it out.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Whether the id is a mark beside the tokenizer's own alphabet: `<|im_end|>`, `<think>`.
    pub fn is_added(&self, id: u32) -> bool {
        self.added.get(id as usize).copied().unwrap_or(false)
    }

    /// Text of ids, with U+FFFD for bytes that are not UTF-8.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        for &id in ids
            .iter()
            .filter(|&&id| !(skip_special && self.is_special(id)))
        {
            bytes.extend_from_slice(self.bytes(id));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Undoes the byte alphabet of byte-level BPE; a token with any other character is plain text.
fn append_bytes(token: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in token.chars() {
        match byte_of(character) {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// Printable Latin-1 characters stand for themselves; the other 68 bytes, in ascending order, are
/// the characters from U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{byte_character, byte_vocabulary};

    #[test]
    fn alphabet_is_a_bijection() {
        let mut seen = [false; 256];
        for code in 0..0x200 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                assert!(!seen[byte as usize], "byte {byte} twice");
                seen[byte as usize] = true;
            }
        }
        assert!(seen.iter().all(|&found| found));
    }

    #[test]
    fn alphabet_equals_the_tokenizers() {
        let vocabulary = byte_vocabulary();
        for id in 0..u32::try_from(vocabulary.len()).unwrap() {
            let expected = vocabulary.tokenizer.decode(&[id], false).unwrap();
            assert_eq!(vocabulary.decode(&[id], false), expected, "id {id}");
        }
        let alphabet: Vec<_> = (0..=255).map(byte_character).collect();
        for (byte, &character) in alphabet.iter().enumerate() {
            assert_eq!(byte_of(character).map(usize::from), Some(byte));
        }
    }

    #[test]
    fn decodes_like_the_tokenizer() {
        let vocabulary = byte_vocabulary();
        for text in [
            "plain",
            "naïve 🦀 text",
            "a<|im_end|>b<think>\n",
            "\u{fffd}",
            "",
        ] {
            let ids = vocabulary.encode(text).unwrap();
            for skip in [false, true] {
                let expected = vocabulary.tokenizer.decode(&ids, skip).unwrap();
                assert_eq!(vocabulary.decode(&ids, skip), expected, "{text:?}");
            }
        }
    }

    #[test]
    fn texts_far_above_the_limit_are_not_encoded_to_their_end() {
        let vocabulary = byte_vocabulary();
        let text = "é1 ".repeat(50_000);
        let Encoded::TooMany(seen) = vocabulary.encode_within(&text, 1_000).unwrap() else {
            panic!("200,000 tokens are more than 1,000");
        };
        assert!(seen > 2_000 && seen < 40_000, "{seen}");
        // Around the limit the ids decide, whatever the length.
        let ids = vocabulary.encode(&text).unwrap();
        for limit in [ids.len() / 2 + 1, ids.len() - 1, ids.len(), 1 << 40] {
            let encoded = vocabulary.encode_within(&text, limit).unwrap();
            assert_eq!(encoded, Encoded::Ids(ids.clone()));
        }
    }

    #[test]
    fn marks_have_one_id() {
        let vocabulary = byte_vocabulary();
        let ids = vocabulary.encode("<|im_end|>").unwrap();
        assert_eq!(ids.len(), 1);
        assert!(vocabulary.is_special(ids[0]));
        assert_eq!(vocabulary.bytes(ids[0]), b"<|im_end|>");
        let ids = vocabulary.encode("<think>").unwrap();
        assert_eq!(ids.len(), 1);
        assert!(!vocabulary.is_special(ids[0]) && vocabulary.is_added(ids[0]));
        assert!(!vocabulary.is_added(u32::from(b'a')) && !vocabulary.is_added(u32::MAX));
        assert_eq!(vocabulary.bytes(u32::MAX), b"");
    }

    /// `tests/fixtures/tokenizer`, made by `scripts/golden/tokenizer.py`.
    #[test]
    fn bundled_tokenizer_gives_the_golden_ids() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let json = std::fs::read(folder.join("spinney-tiny/tokenizer.json")).unwrap();
        let vocabulary = Vocabulary::read(&json, "tokenizer.json").unwrap();
        let golden = folder.join("../../tests/fixtures/tokenizer/cases.json");
        let golden: serde_json::Value =
            serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
        let cases = golden["cases"].as_array().unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let ids = vocabulary.encode(case["text"].as_str().unwrap()).unwrap();
            assert_eq!(serde_json::json!(ids), case["ids"], "{}", case["name"]);
            for (skip, key) in [(false, "decoded"), (true, "decoded_without_special")] {
                let decoded = vocabulary.decode(&ids, skip);
                assert_eq!(decoded, case[key], "{} {key}", case["name"]);
            }
        }
    }
}

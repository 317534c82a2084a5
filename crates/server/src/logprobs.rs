//! Log-probabilities as clients read them.

use engine::TokenLogprob;
use serde_json::{Map, Value, json};

use crate::text_stream::TokenLine;
use crate::vocabulary::Vocabulary;

/// JSON has no infinity.
const LOWEST: f32 = -9999.0;

/// Entries of `logprobs.content` of a chat answer.
pub(crate) fn chat_entries(vocabulary: &Vocabulary, lines: &[TokenLine]) -> Vec<Value> {
    let entry = |id: u32, logprob: f32| {
        let mut entry = Map::new();
        entry.insert("token".into(), vocabulary.decode(&[id], false).into());
        entry.insert("logprob".into(), finite(logprob));
        entry.insert("bytes".into(), vocabulary.bytes(id).into());
        entry
    };
    lines
        .iter()
        .map(|line| {
            let top: Vec<_> = line
                .logprob
                .top
                .iter()
                .map(|&(id, p)| entry(id, p))
                .collect();
            let mut object = entry(line.id, line.logprob.logprob);
            object.insert("top_logprobs".into(), json!(top));
            object.into()
        })
        .collect()
}

/// `logprobs` of a chat choice: null unless asked for.
pub(crate) fn chat_object(vocabulary: &Vocabulary, asked: bool, lines: &[TokenLine]) -> Value {
    match asked {
        true => json!({"content": chat_entries(vocabulary, lines), "refusal": null}),
        false => Value::Null,
    }
}

/// The columns of `logprobs` of a text completion.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
    text: Length,
}

/// Characters of a text that comes as bytes, with one for every piece that is not UTF-8.
#[derive(Debug, Default)]
struct Length {
    settled: usize,
    /// The beginning of a character.
    begun: Vec<u8>,
}

impl Length {
    fn characters(&self) -> usize {
        self.settled + usize::from(!self.begun.is_empty())
    }

    fn add(&mut self, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
        let text = std::mem::take(&mut self.begun);
        let mut rest = &text[..];
        while let Err(error) = std::str::from_utf8(rest) {
            let (valid, after) = rest.split_at(error.valid_up_to());
            self.settled += starts(valid);
            let Some(wrong) = error.error_len() else {
                self.begun = after.to_vec();
                return;
            };
            self.settled += 1;
            rest = &after[wrong..];
        }
        self.settled += starts(rest);
    }

    /// What has begun is not completed any more.
    fn settle(&mut self) {
        self.settled = self.characters();
        self.begun.clear();
    }
}

/// Characters of UTF-8: bytes that do not continue another one.
fn starts(text: &[u8]) -> usize {
    let starts = |byte: &&u8| !(0x80..0xc0).contains(*byte);
    text.iter().filter(starts).count()
}

impl Columns {
    /// One token; without a log-probability it is the first one of a prompt. `visible`: its text
    /// is part of the answer.
    pub(crate) fn push(
        &mut self,
        vocabulary: &Vocabulary,
        id: u32,
        logprob: Option<&TokenLogprob>,
        visible: bool,
    ) {
        let text = |id: u32| vocabulary.decode(&[id], false);
        self.tokens.push(text(id).into());
        self.text_offset.push(self.text.characters().into());
        self.token_logprobs
            .push(logprob.map_or(Value::Null, |line| finite(line.logprob)));
        self.top_logprobs.push(match logprob {
            None => Value::Null,
            Some(line) => {
                let mut top = Map::new();
                for &(id, logprob) in &line.top {
                    // Tokens that are parts of characters look alike; the likeliest one stays.
                    top.entry(text(id)).or_insert_with(|| finite(logprob));
                }
                top.into()
            }
        });
        if visible {
            self.text.add(vocabulary.bytes(id));
        }
    }

    /// The prompt ends here: what it left of a character is not continued by the output.
    pub(crate) fn end_prompt(&mut self) {
        self.text.settle();
    }

    /// The object; what was pushed is taken, offsets go on.
    pub(crate) fn take(&mut self) -> Value {
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.token_logprobs),
            "top_logprobs": std::mem::take(&mut self.top_logprobs),
            "text_offset": std::mem::take(&mut self.text_offset),
        })
    }
}

/// A log-probability as JSON.
pub(crate) fn finite(logprob: f32) -> Value {
    // NaN has no place in JSON either.
    let clamped = if logprob >= LOWEST { logprob } else { LOWEST };
    json!(clamped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::byte_vocabulary;

    fn line(id: u32, logprob: f32, top: &[(u32, f32)]) -> TokenLine {
        TokenLine {
            id,
            logprob: TokenLogprob {
                logprob,
                top: top.to_vec(),
            },
        }
    }

    #[test]
    fn chat_entries_have_text_and_bytes() {
        let vocabulary = byte_vocabulary();
        let lines = [line(257, -0.5, &[(257, -0.5), (0xc3, f32::NEG_INFINITY)])];
        let object = chat_object(&vocabulary, true, &lines);
        let expected = json!({"content": [{"token": "the", "logprob": -0.5,
            "bytes": [116, 104, 101], "top_logprobs": [
                {"token": "the", "logprob": -0.5, "bytes": [116, 104, 101]},
                {"token": "\u{fffd}", "logprob": -9999.0, "bytes": [195]}]}], "refusal": null});
        assert_eq!(object, expected);
        assert_eq!(chat_object(&vocabulary, false, &lines), Value::Null);
    }

    #[test]
    fn offsets_count_characters() {
        let vocabulary = byte_vocabulary();
        let mut columns = Columns::default();
        let logprob = TokenLogprob {
            logprob: -1.0,
            top: vec![(65, -1.0)],
        };
        columns.push(&vocabulary, 257, None, true);
        for id in [0xc3, 0xa9, 262, 65] {
            columns.push(&vocabulary, id, Some(&logprob), id != 262);
        }
        let object = columns.take();
        assert_eq!(object["text_offset"], json!([0, 3, 4, 4, 4]));
        assert_eq!(object["token_logprobs"][0], Value::Null);
        assert_eq!(object["top_logprobs"][0], Value::Null);
        assert_eq!(object["top_logprobs"][1], json!({"A": -1.0}));
        columns.push(&vocabulary, 66, Some(&logprob), true);
        assert_eq!(columns.take()["text_offset"], json!([5]));
    }

    proptest::proptest! {
        #[test]
        fn lengths_are_those_of_the_text_so_far(
            pieces in proptest::collection::vec(
                proptest::sample::select(vec![
                    &b"a"[..], b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x99\x82",
                    b"\xff", b"\xc0", b"\xed\xa0", "\u{1f642}z".as_bytes(), b"",
                ]),
                0..24,
            )
        ) {
            let mut length = Length::default();
            let mut text = Vec::new();
            for piece in pieces {
                length.add(piece);
                text.extend_from_slice(piece);
                let expected = String::from_utf8_lossy(&text).chars().count();
                proptest::prop_assert_eq!(length.characters(), expected, "{:?}", text);
            }
            length.settle();
            let before = length.characters();
            length.add(b"\xa9");
            proptest::prop_assert_eq!(length.characters(), before + 1);
        }
    }
}

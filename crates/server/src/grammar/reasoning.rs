//! Which tokens close a reasoning block, byte by byte.

use std::sync::Arc;

use crate::vocabulary::Vocabulary;

const CLOSE: &[u8] = b"</think>";
const TOOL_CALL: &str = "<tool_call>";

/// Bytes of the closing mark that a reasoning text ends with; less than all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held(u8);

/// What a token does to an open reasoning block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// It stays open.
    Open(Held),
    /// The block ends; nothing but newlines follows.
    Closed,
    /// The block ends and something else begins in the same token.
    Overrun,
}

/// Tokens that matter at the end of a reasoning block.
#[derive(Debug)]
pub(super) struct Marks {
    vocabulary: Arc<Vocabulary>,
    /// `[held]`: ids that overrun there.
    overrun: Vec<Vec<u32>>,
    /// Ids of newlines and nothing else.
    newlines: Vec<u32>,
    /// The mark that begins a tool call, where it is one token.
    tool_call: Option<u32>,
}

impl Marks {
    /// Looks at every token once.
    pub(super) fn new(vocabulary: &Arc<Vocabulary>) -> Self {
        let mut overrun = vec![Vec::new(); CLOSE.len()];
        let mut newlines = Vec::new();
        for id in 0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX) {
            let bytes = vocabulary.bytes(id);
            if !bytes.is_empty() && bytes.iter().all(|&byte| byte == b'\n') {
                newlines.push(id);
            }
            // Only the last byte of the mark closes.
            if !bytes.contains(&b'>') {
                continue;
            }
            for (held, overrun) in (0..).map(Held).zip(&mut overrun) {
                if closing(held, bytes) == Closing::Overrun {
                    overrun.push(id);
                }
            }
        }
        let tool_call = match vocabulary.encode(TOOL_CALL).as_deref() {
            Ok(&[id]) => Some(id),
            _ => None,
        };
        Marks {
            vocabulary: Arc::clone(vocabulary),
            overrun,
            newlines,
            tool_call,
        }
    }

    /// What a token does behind `held`.
    pub(super) fn closing(&self, held: Held, token: u32) -> Closing {
        closing(held, self.vocabulary.bytes(token))
    }

    /// Ids that would end the block and go on with something else.
    pub(super) fn overrun(&self, held: Held) -> &[u32] {
        &self.overrun[usize::from(held.0)]
    }

    /// Ids of newlines and nothing else, ascending.
    pub(super) fn newlines(&self) -> &[u32] {
        &self.newlines
    }

    /// The mark that begins a tool call, where it is one token.
    pub(super) fn tool_call(&self) -> Option<u32> {
        self.tool_call
    }
}

fn closing(Held(held): Held, bytes: &[u8]) -> Closing {
    let mut held = usize::from(held);
    for (index, &byte) in bytes.iter().enumerate() {
        // The mark's first byte occurs in it once: nothing longer than that survives a mismatch.
        held = match byte {
            byte if byte == CLOSE[held] => held + 1,
            byte if byte == CLOSE[0] => 1,
            _ => 0,
        };
        if held == CLOSE.len() {
            let rest = &bytes[index + 1..];
            return match rest.iter().all(|&byte| byte == b'\n') {
                true => Closing::Closed,
                false => Closing::Overrun,
            };
        }
    }
    Closing::Open(Held(held as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_wherever_tokens_cut_it() {
        for (tokens, expected) in [
            (&["a b"][..], Closing::Open(Held(0))),
            (&["</think>"], Closing::Closed),
            (&["x</th", "ink", ">\n\n"], Closing::Closed),
            (&["x<", "<", "/think"], Closing::Open(Held(7))),
            (&["</thi<", "/think>"], Closing::Closed),
            (&["</think", ">{"], Closing::Overrun),
            (&["</think", "> "], Closing::Overrun),
            (&["</think</think", ">"], Closing::Closed),
            (&["</thinkk>"], Closing::Open(Held(0))),
            (&["", "<"], Closing::Open(Held(1))),
        ] {
            let mut state = Closing::Open(Held::default());
            for token in tokens {
                let Closing::Open(held) = state else {
                    panic!("{tokens:?} went on behind its end")
                };
                state = closing(held, token.as_bytes());
            }
            assert_eq!(state, expected, "{tokens:?}");
        }
    }
}

//! The tokens of a vocabulary as those need them who restrict the names of calls.

use std::sync::Arc;

use crate::tool_calls::{may_decide, may_decide_behind_mark};
use crate::vocabulary::Vocabulary;

/// Tokens by their bytes.
#[derive(Debug)]
pub(super) struct CallTokens {
    vocabulary: Arc<Vocabulary>,
    /// Ids of tokens with bytes, in the order of these.
    sorted: Vec<u32>,
    /// Ids of tokens that may open a call of a name that is not allowed.
    deciding: Vec<u32>,
    /// The same where the outer mark of a call is there.
    behind_mark: Vec<u32>,
}

impl CallTokens {
    /// Looks at every token.
    pub(super) fn new(vocabulary: &Arc<Vocabulary>) -> Self {
        let ids = 0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX);
        let mut sorted: Vec<u32> = ids.filter(|&id| !vocabulary.bytes(id).is_empty()).collect();
        sorted.sort_by_key(|&id| vocabulary.bytes(id));
        let those = |decides: fn(&[u8]) -> bool| {
            let ids = sorted.iter().copied();
            ids.filter(|&id| decides(vocabulary.bytes(id))).collect()
        };
        CallTokens {
            deciding: those(may_decide),
            behind_mark: those(may_decide_behind_mark),
            vocabulary: Arc::clone(vocabulary),
            sorted,
        }
    }

    /// Ids of tokens that may open a call of a name that is not allowed.
    pub(super) fn deciding(&self, behind_mark: bool) -> &[u32] {
        match behind_mark {
            true => &self.behind_mark,
            false => &self.deciding,
        }
    }

    /// Ids of tokens that `text` begins with, or that begin with it.
    pub(super) fn along(&self, text: &[u8]) -> Vec<u32> {
        let within = (1..text.len()).flat_map(|size| {
            let part = &text[..size];
            self.from(part).take_while(move |(_, bytes)| *bytes == part)
        });
        let beyond = self.from(text);
        let beyond = beyond.take_while(|(_, bytes)| bytes.starts_with(text));
        within.chain(beyond).map(|(id, _)| id).collect()
    }

    /// Tokens and their bytes from the first on that is not before `text`.
    fn from(&self, text: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
        let bytes = |id: u32| self.vocabulary.bytes(id);
        let first = self.sorted.partition_point(|&id| bytes(id) < text);
        self.sorted[first..].iter().map(move |&id| (id, bytes(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::byte_vocabulary;

    #[test]
    fn tokens_along_a_text() {
        let vocabulary = Arc::new(byte_vocabulary());
        let tokens = CallTokens::new(&vocabulary);
        for text in ["t", "the", "then", "x>"] {
            let mut found = tokens.along(text.as_bytes());
            found.sort_unstable();
            let all = 0..u32::try_from(vocabulary.len()).unwrap();
            let expected: Vec<u32> = all
                .filter(|&id| {
                    let bytes = vocabulary.bytes(id);
                    let text = text.as_bytes();
                    !bytes.is_empty() && (bytes.starts_with(text) || text.starts_with(bytes))
                })
                .collect();
            assert!(!expected.is_empty());
            assert_eq!(found, expected, "{text:?}");
        }
        for (token, anywhere, behind_mark) in [
            (b'=', true, true),
            (b'f', false, true),
            (b'a', false, false),
        ] {
            let id = u32::from(token);
            assert_eq!(tokens.deciding(false).contains(&id), anywhere);
            assert_eq!(tokens.deciding(true).contains(&id), behind_mark);
        }
    }
}

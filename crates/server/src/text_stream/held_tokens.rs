//! Which tokens the bytes came from.

use std::collections::VecDeque;
use std::ops::Range;

use super::TokenLine;

/// Tokens with bytes that were not delivered yet. Positions count from the start of the output.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldTokens {
    tokens: VecDeque<HeldToken>,
}

#[derive(Clone, Debug)]
struct HeldToken {
    bytes: Range<usize>,
    /// Only if log-probabilities are asked for.
    line: Option<TokenLine>,
}

impl HeldTokens {
    /// The next token.
    pub(super) fn push(&mut self, bytes: Range<usize>, line: Option<TokenLine>) {
        self.tokens.push_back(HeldToken { bytes, line });
    }

    /// Takes out the tokens that end at `position` or before.
    pub(super) fn take_until(&mut self, position: usize) -> Vec<TokenLine> {
        let ended = self.tokens.iter();
        let ended = ended.take_while(|token| token.bytes.end <= position);
        let count = ended.count();
        let taken = self.tokens.drain(..count);
        taken.filter_map(|token| token.line).collect()
    }

    /// Number of tokens that begin at `position` or behind it.
    pub(super) fn count_from(&self, position: usize) -> usize {
        let behind = self.tokens.iter().rev();
        behind
            .take_while(|token| token.bytes.start >= position)
            .count()
    }

    /// Forgets tokens that begin at `position` or behind it, and the bytes of others there.
    pub(super) fn cut(&mut self, position: usize) {
        self.tokens.retain(|token| token.bytes.start < position);
        for token in &mut self.tokens {
            token.bytes.end = token.bytes.end.min(position);
        }
    }

    /// Takes out all.
    pub(super) fn take_all(&mut self) -> Vec<TokenLine> {
        let taken = self.tokens.drain(..);
        taken.filter_map(|token| token.line).collect()
    }
}

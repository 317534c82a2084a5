//! Where the next bytes land, for those who say which calls may be opened.

use super::{State, TextStream, TokenUpdate};
use crate::text_stream::marks::blank;
use crate::tool_calls::{Opening, Within, find};

/// The end of a text in which a call may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead<'a> {
    /// Bytes that may become the opening of a call; none of them is decided.
    pub(crate) held: &'a [u8],
    /// Outside of the reasoning.
    pub(crate) content: bool,
    /// The first byte of `held`, or the next one where there is none, begins a line.
    pub(crate) line_start: bool,
}

impl TextStream {
    /// `None` where no call can be opened: nothing is a call, or a value of one is open, in which
    /// every mark is data.
    pub(crate) fn ahead(&self) -> Option<Ahead<'_>> {
        let tools = self.options.tools.as_ref()?;
        let (content, line_start) = match self.state {
            State::Ended => return None,
            State::Call => {
                // A forgotten end of this call does not keep the next one from opening.
                self.call.as_ref().filter(|call| call.is_between())?;
                return Some(Ahead {
                    held: &self.raw[blank(&self.raw)..],
                    content: true,
                    line_start: true,
                });
            }
            State::ReasoningStart { .. } | State::Reasoning => (false, false),
            State::ContentStart { .. } | State::CallEnded => (true, true),
            State::OutputStart | State::Content => (true, self.line_start),
        };
        let within = match content {
            true => Within::Content { line_start },
            false => Within::Reasoning,
        };
        let start = match find(&self.raw, within, tools, false) {
            Opening::Maybe { start } => start,
            _ => self.raw.len(),
        };
        Some(Ahead {
            held: &self.raw[start..],
            content,
            line_start: match start {
                0 => line_start,
                _ => self.raw[start - 1] == b'\n',
            },
        })
    }

    /// Takes a token whose text nobody will ask for: only the place behind it is of interest.
    pub(crate) fn follow(&mut self, id: u32) {
        if self.state == State::Ended {
            return;
        }
        self.push(TokenUpdate { id, logprob: None }, &mut Vec::new());
        self.tokens.take_all();
    }

    /// The bytes that a token adds to the text.
    pub(crate) fn text_of(&self, id: u32) -> &[u8] {
        match self.options.skip_special && self.vocabulary.is_special(id) {
            true => &[],
            false => self.vocabulary.bytes(id),
        }
    }
}

//! Where the value of a parameter ends.
//!
//! A value is data and may hold the very marks that surround it: a file about this format, an
//! example of a call. Cutting at the first closing mark would destroy such files, so a mark counts
//! only where what follows it makes sense as the rest of a call.

use super::End;
use super::tags::{
    CALL_CLOSE, CALL_OPEN, FUNCTION_CLOSE, FUNCTION_OPEN, Found, PARAMETER_CLOSE, PARAMETER_OPEN,
    begins, tag_of,
};
use crate::text_stream::marks::{blank, incomplete_tail};

/// The value that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Value {
    /// The one line break in front is gone.
    started: bool,
    /// The byte before the next one ended a line.
    inside_line: bool,
    /// Opening marks of parameters in the text that no closing mark has matched.
    depth: usize,
    /// An opening mark is being spelled: it is one once its `>` is there.
    opener: bool,
    /// The text has an opening mark of a function.
    function: bool,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Not known yet.
    Wait,
    /// So many bytes are text.
    Text(usize),
    /// So many bytes are not.
    Skip(usize),
    /// The value is over, and so many bytes belong to its end.
    Close(usize),
}

impl Value {
    /// Decides about the beginning of `raw`, which is all there is until `end`. `next_key` says
    /// whether bytes begin with another parameter's name that a value may come for.
    pub(super) fn part(
        &mut self,
        raw: &[u8],
        end: Option<End>,
        next_key: impl Fn(&[u8]) -> Found,
    ) -> Part {
        if !self.started && !raw.is_empty() {
            self.started = true;
            if raw[0] == b'\n' {
                return Part::Skip(1);
            }
        }
        let Some(mark) = raw.iter().position(|&byte| byte == b'<') else {
            return self.plain(raw, end);
        };
        // The line break in front of a closing mark is not part of the value.
        let text = mark - usize::from(mark > 0 && raw[mark - 1] == b'\n');
        if text > 0 {
            return self.text(raw, text);
        }
        let head = &raw[mark..];
        let tags = [
            PARAMETER_CLOSE,
            PARAMETER_OPEN,
            FUNCTION_CLOSE,
            FUNCTION_OPEN,
        ];
        let tag = match tag_of(head, &tags) {
            Ok(tag) => tag,
            Err(Found::Open) if end != Some(End::Turn) => return Part::Wait,
            Err(_) => return self.text(raw, mark + 1),
        };
        let ends = end.is_some();
        let (closes, size) = if tag == PARAMETER_CLOSE {
            let rest = &head[tag.len()..];
            let closes = match self.depth {
                0 => continues_call(rest, ends),
                _ => ends_block(rest, ends),
            };
            (closes, mark + tag.len())
        } else if tag == FUNCTION_CLOSE {
            (ends_block(head, ends), mark)
        } else if tag == PARAMETER_OPEN && self.depth == 0 && !self.function && self.at_line(mark) {
            let known = match next_key(&head[tag.len()..]) {
                Found::Open if end == Some(End::Turn) => Found::No,
                known => known,
            };
            (known, mark)
        } else {
            (Found::No, 0)
        };
        match closes {
            Found::Yes => Part::Close(size),
            Found::Open => Part::Wait,
            Found::No => {
                let part = self.text(raw, mark + tag.len());
                self.note(tag);
                part
            }
        }
    }

    /// Text without any mark. Its last line break may turn out to be the one before the end.
    fn plain(&mut self, raw: &[u8], end: Option<End>) -> Part {
        let line_break = usize::from(raw.last() == Some(&b'\n'));
        let held = match end {
            Some(End::Turn) => line_break,
            Some(End::Limit) | None => line_break.max(incomplete_tail(raw)),
        };
        match (raw.len() - held, end) {
            (0, Some(End::Turn)) => Part::Close(held),
            (0, _) => Part::Wait,
            (text, _) => self.text(raw, text),
        }
    }

    fn text(&mut self, raw: &[u8], size: usize) -> Part {
        let text = &raw[..size];
        if self.opener
            && let Some(byte) = text.iter().find(|byte| b">\n<".contains(byte))
        {
            self.opener = false;
            self.depth += usize::from(*byte == b'>');
        }
        self.inside_line = text.last() != Some(&b'\n');
        Part::Text(size)
    }

    /// Counts a mark that is text.
    fn note(&mut self, tag: &[u8]) {
        if tag == PARAMETER_CLOSE {
            self.depth = self.depth.saturating_sub(1);
        } else if tag == PARAMETER_OPEN {
            self.opener = true;
        } else if tag == FUNCTION_OPEN {
            self.function = true;
        }
    }

    fn at_line(&self, mark: usize) -> bool {
        // The byte in front of a mark that is looked at can only be a line break.
        mark > 0 || !self.inside_line
    }
}

/// Whether what follows a closing mark is the rest of a call: the next parameter, the end of the
/// function, of the call or of the output.
fn continues_call(rest: &[u8], ends: bool) -> Found {
    let rest = &rest[blank(rest)..];
    match tag_of(rest, &[PARAMETER_OPEN, FUNCTION_CLOSE, CALL_CLOSE]) {
        Ok(_) => Found::Yes,
        Err(Found::Open) if ends => Found::Yes,
        Err(found) => found,
    }
}

/// Whether the function and the call end here, and then the output or a next call begins.
fn ends_block(raw: &[u8], ends: bool) -> Found {
    let mut rest = raw;
    for tag in [FUNCTION_CLOSE, CALL_CLOSE] {
        rest = &rest[blank(rest)..];
        match begins(rest, tag) {
            Found::Yes => rest = &rest[tag.len()..],
            // The outer mark may be missing at the end of the output.
            Found::Open if ends && tag == CALL_CLOSE && rest.is_empty() => return Found::Yes,
            Found::Open if ends => return Found::No,
            found => return found,
        }
    }
    match begins(&rest[blank(rest)..], CALL_OPEN) {
        Found::Open if ends => Found::Yes,
        found => found,
    }
}

//! Where text ends and a call begins.

use serde_json::{Map, Value};

use super::spaced_json;
use super::tags::{CALL_CLOSE, CALL_OPEN, FUNCTION_OPEN, Found, begins, name};
use super::tool_set::ToolSet;
use crate::text_stream::marks::blank;

/// Bytes of a call written as one JSON object at most; a longer one is text.
const JSON_BYTES_MAX: usize = 64 * 1024;

/// Which text is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Within {
    /// What the model thinks: marks are often talked about here, so only the beginning of a real
    /// call counts.
    Reasoning,
    /// The answer. `line_start`: its first byte begins a line.
    Content {
        /// See above.
        line_start: bool,
    },
}

/// The first place that is not plain text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Opening {
    /// There is none.
    Nowhere,
    /// Something that starts here may be one; more bytes will tell.
    Maybe {
        /// First byte of the mark.
        start: usize,
    },
    /// A call; its parameters follow.
    Call {
        /// First byte of the mark.
        start: usize,
        /// First byte behind the function's name.
        end: usize,
        /// The name.
        name: String,
        /// It has the outer mark.
        wrapped: bool,
    },
    /// A call as one JSON object.
    Whole {
        /// First byte of the mark.
        start: usize,
        /// First byte behind the closing mark.
        end: usize,
        /// The name.
        name: String,
        /// JSON of the arguments.
        arguments: String,
    },
    /// A pair of marks with nothing inside.
    Empty {
        /// First byte of the mark.
        start: usize,
        /// First byte behind the closing mark.
        end: usize,
    },
}

impl Opening {
    /// Where the text ends.
    pub(crate) fn start(&self) -> Option<usize> {
        match self {
            Opening::Nowhere => None,
            Opening::Maybe { start }
            | Opening::Call { start, .. }
            | Opening::Whole { start, .. }
            | Opening::Empty { start, .. } => Some(*start),
        }
    }
}

/// Looks through `raw`; `ends`: nothing will follow.
pub(crate) fn find(raw: &[u8], within: Within, tools: &ToolSet, ends: bool) -> Opening {
    let marks = (0..raw.len()).filter(|&at| raw[at] == b'<');
    for start in marks {
        let head = &raw[start..];
        let mut found = match begins(head, CALL_OPEN) {
            Found::Yes => block(raw, start, within, tools, ends),
            Found::Open => Opening::Maybe { start },
            Found::No => Opening::Nowhere,
        };
        let at_line = match (start, within) {
            (_, Within::Reasoning) => false,
            (0, Within::Content { line_start }) => line_start,
            _ => raw[start - 1] == b'\n',
        };
        if at_line && found == Opening::Nowhere {
            found = bare(raw, start, tools);
        }
        match found {
            Opening::Nowhere => {}
            Opening::Maybe { .. } if ends => {}
            found => return found,
        }
    }
    Opening::Nowhere
}

/// What an outer mark at `start` opens.
fn block(raw: &[u8], start: usize, within: Within, tools: &ToolSet, ends: bool) -> Opening {
    let inner = start + CALL_OPEN.len();
    let at = inner + blank(&raw[inner..]);
    let rest = &raw[at..];
    match begins(rest, FUNCTION_OPEN) {
        Found::Yes => {
            let after = at + FUNCTION_OPEN.len();
            return match name(&raw[after..]) {
                None => Opening::Maybe { start },
                Some((name, size)) if !name.is_empty() && tools.may_call(&name) => Opening::Call {
                    start,
                    end: after + size,
                    name,
                    wrapped: true,
                },
                Some(_) => Opening::Nowhere,
            };
        }
        Found::Open => return Opening::Maybe { start },
        Found::No if within == Within::Reasoning => return Opening::Nowhere,
        Found::No => {}
    }
    match begins(rest, CALL_CLOSE) {
        Found::Yes => Opening::Empty {
            start,
            end: at + CALL_CLOSE.len(),
        },
        Found::Open => Opening::Maybe { start },
        Found::No if rest[0] == b'{' => json_call(raw, start, at, tools, ends),
        Found::No => Opening::Nowhere,
    }
}

/// A function without the outer mark, which models forget now and then. Only names that were
/// offered count, since this may as well be text.
fn bare(raw: &[u8], start: usize, tools: &ToolSet) -> Opening {
    let head = &raw[start..];
    match begins(head, FUNCTION_OPEN) {
        Found::Yes => {}
        Found::Open => return Opening::Maybe { start },
        Found::No => return Opening::Nowhere,
    }
    let inner = start + FUNCTION_OPEN.len();
    let rest = &raw[inner..];
    let Some(size) = rest.iter().position(|byte| b">\n<".contains(byte)) else {
        return match tools
            .names()
            .any(|known| known.as_bytes().starts_with(rest))
        {
            true => Opening::Maybe { start },
            false => Opening::Nowhere,
        };
    };
    match tools
        .names()
        .find(|known| known.as_bytes() == &rest[..size])
    {
        Some(name) => Opening::Call {
            start,
            end: inner + size + usize::from(rest[size] == b'>'),
            name: name.to_owned(),
            wrapped: false,
        },
        None => Opening::Nowhere,
    }
}

/// `{"name": ..., "arguments": {...}}`, at `at`, and the closing mark.
fn json_call(raw: &[u8], start: usize, at: usize, tools: &ToolSet, ends: bool) -> Opening {
    let seen = &raw[at..raw.len().min(at + JSON_BYTES_MAX)];
    // A decision must not depend on how much has arrived beyond the limit.
    let full = seen.len() == JSON_BYTES_MAX;
    let ends = ends && !full;
    let undecided = match full {
        true => Opening::Nowhere,
        false => Opening::Maybe { start },
    };
    let Some(size) = object_size(seen) else {
        return undecided;
    };
    let Ok(object) = serde_json::from_slice::<Map<String, Value>>(&seen[..size]) else {
        return Opening::Nowhere;
    };
    let (Some(Value::String(name)), Some(arguments)) = (object.get("name"), arguments(&object))
    else {
        return Opening::Nowhere;
    };
    if !tools.may_call(name) {
        return Opening::Nowhere;
    }
    let mark = size + blank(&seen[size..]);
    let end = match begins(&seen[mark..], CALL_CLOSE) {
        Found::Yes => mark + CALL_CLOSE.len(),
        Found::Open if ends => seen.len(),
        Found::Open => return undecided,
        Found::No => return Opening::Nowhere,
    };
    Opening::Whole {
        start,
        end: at + end,
        name: name.clone(),
        arguments: spaced_json::text(&arguments),
    }
}

/// Bytes of the object that `bytes` begin with, by its braces; `None` until the last one is there.
fn object_size(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

fn arguments(object: &Map<String, Value>) -> Option<Value> {
    match object.get("arguments").or(object.get("parameters")) {
        None | Some(Value::Null) => Some(Value::Object(Map::new())),
        Some(arguments @ Value::Object(_)) => Some(arguments.clone()),
        Some(Value::String(text)) => serde_json::from_str(text).ok().filter(Value::is_object),
        Some(_) => None,
    }
}

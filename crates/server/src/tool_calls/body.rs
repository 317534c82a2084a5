//! The inside of a call, from the name of its function to its end.

use serde_json::Value as Schema;

use super::End;
use super::arguments::Arguments;
use super::tags::{
    CALL_CLOSE, CALL_OPEN, FUNCTION_CLOSE, FUNCTION_OPEN, Found, PARAMETER_OPEN, begins, name,
    tag_of,
};
use super::tool_set::{ToolSet, Types, property_names};
use super::value::{Part, Value};
use crate::text_stream::marks::blank;

/// A call that is being read.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    tool: String,
    /// It began with the outer mark.
    wrapped: bool,
    place: Place,
    arguments: Arguments,
}

#[derive(Clone, Debug)]
enum Place {
    /// Between parameters.
    Between,
    /// Inside a value.
    Value(Value),
    /// Behind the function.
    Closed,
}

/// What was done with the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: more of them are needed.
    Wait,
    /// So many are done with.
    Take(usize),
    /// So many are done with, and the arguments are complete.
    Close(usize),
    /// So many are done with, and what follows is no part of the call.
    Leave(usize),
}

impl Body {
    /// A call of `tool`, right behind its name.
    pub(crate) fn new(tool: String, wrapped: bool) -> Self {
        Body {
            tool,
            wrapped,
            place: Place::Between,
            arguments: Arguments::default(),
        }
    }

    /// Whether the outer mark has to close, too.
    pub(crate) fn is_wrapped(&self) -> bool {
        self.wrapped
    }

    /// Whether no value is open, so that marks are marks.
    pub(crate) fn is_between(&self) -> bool {
        !matches!(self.place, Place::Value(_))
    }

    /// Decides about the beginning of `raw`, which is all there is until `end`; appends to `out`
    /// what the arguments grow by.
    pub(crate) fn step(
        &mut self,
        raw: &[u8],
        end: Option<End>,
        tools: &ToolSet,
        out: &mut String,
    ) -> Step {
        let parameters = tools.parameters(&self.tool);
        match &mut self.place {
            Place::Between => self.between(raw, end, parameters, out),
            Place::Value(value) => {
                let arguments = &mut self.arguments;
                let part = value.part(raw, end, |bytes| next_key(bytes, parameters, arguments));
                match part {
                    Part::Wait => Step::Wait,
                    Part::Skip(size) => Step::Take(size),
                    Part::Text(size) => {
                        arguments.push(&String::from_utf8_lossy(&raw[..size]), out);
                        Step::Take(size)
                    }
                    Part::Close(size) => {
                        arguments.end(out);
                        self.place = Place::Between;
                        Step::Take(size)
                    }
                }
            }
            Place::Closed => closed(raw, end),
        }
    }

    fn between(
        &mut self,
        raw: &[u8],
        end: Option<End>,
        parameters: &Schema,
        out: &mut String,
    ) -> Step {
        let space = blank(raw);
        let rest = &raw[space..];
        let tags = [
            PARAMETER_OPEN,
            FUNCTION_CLOSE,
            CALL_CLOSE,
            CALL_OPEN,
            FUNCTION_OPEN,
        ];
        let tag = match tag_of(rest, &tags) {
            Ok(tag) => tag,
            Err(Found::Open) => return self.undecided(raw, end, out),
            // What stands between parameters means nothing.
            Err(_) => {
                let next = rest[1..].iter().position(|&byte| byte == b'<');
                return Step::Take(next.map_or(raw.len(), |next| space + 1 + next));
            }
        };
        if tag == PARAMETER_OPEN {
            let Some((key, size)) = name(&rest[tag.len()..]) else {
                return self.undecided(raw, end, out);
            };
            self.arguments
                .begin(&key, || Types::of(parameters, &key), out);
            self.place = Place::Value(Value::default());
            return Step::Take(space + tag.len() + size);
        }
        let taken = if tag == FUNCTION_CLOSE { tag.len() } else { 0 };
        self.close(space + taken, out)
    }

    /// More bytes would tell; at the end of the turn the call ends here.
    fn undecided(&mut self, raw: &[u8], end: Option<End>, out: &mut String) -> Step {
        match end {
            Some(End::Turn) => self.close(raw.len(), out),
            Some(End::Limit) | None => Step::Wait,
        }
    }

    fn close(&mut self, taken: usize, out: &mut String) -> Step {
        self.arguments.close(out);
        self.place = Place::Closed;
        Step::Close(taken)
    }
}

/// Behind the function only the outer mark is left.
fn closed(raw: &[u8], end: Option<End>) -> Step {
    let space = blank(raw);
    match begins(&raw[space..], CALL_CLOSE) {
        Found::Yes => Step::Leave(space + CALL_CLOSE.len()),
        Found::Open if end.is_none() => Step::Wait,
        Found::Open => Step::Leave(raw.len()),
        Found::No => Step::Leave(0),
    }
}

/// Whether `bytes`, right behind an opening mark, begin with a declared parameter that has no value.
fn next_key(bytes: &[u8], parameters: &Schema, arguments: &Arguments) -> Found {
    let mut found = Found::No;
    for key in property_names(parameters).filter(|key| !arguments.has(key)) {
        match begins(bytes, format!("{key}>").as_bytes()) {
            Found::Yes => return Found::Yes,
            Found::Open => found = Found::Open,
            Found::No => {}
        }
    }
    found
}

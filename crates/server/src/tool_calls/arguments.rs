//! The arguments of a call as JSON text that only ever grows.

use std::collections::HashSet;

use serde_json::Value;

use super::conversion::convert;
use super::spaced_json::escape;
use super::tool_set::Types;

/// Arguments so far. Every method appends the next piece of the JSON object to `out`.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    given: HashSet<String>,
    open: Open,
}

#[derive(Clone, Debug, Default)]
enum Open {
    #[default]
    Nothing,
    /// A string, handed on as it comes.
    Text,
    /// A value that has to be there in full before it can be converted.
    Whole {
        key: String,
        types: Types,
        text: String,
    },
    /// A key that was given before. The first one cannot be taken back, so it counts.
    Repeated,
}

impl Arguments {
    /// Whether a value of `key` was begun.
    pub(super) fn has(&self, key: &str) -> bool {
        self.given.contains(key)
    }

    /// A value begins.
    pub(super) fn begin(&mut self, key: &str, types: impl FnOnce() -> Types, out: &mut String) {
        if !self.given.insert(key.to_owned()) {
            self.open = Open::Repeated;
            return;
        }
        let types = types();
        let text = types.is_text();
        self.open = match text {
            true => Open::Text,
            false => Open::Whole {
                key: key.to_owned(),
                types,
                text: String::new(),
            },
        };
        if text {
            self.key(key, out);
            out.push('"');
        }
    }

    /// More of its text.
    pub(super) fn push(&mut self, piece: &str, out: &mut String) {
        match &mut self.open {
            Open::Text => escape(piece, out),
            Open::Whole { text, .. } => text.push_str(piece),
            Open::Repeated | Open::Nothing => {}
        }
    }

    /// Its end.
    pub(super) fn end(&mut self, out: &mut String) {
        match std::mem::take(&mut self.open) {
            Open::Text => out.push('"'),
            Open::Whole { key, types, text } => {
                self.key(&key, out);
                out.push_str(&convert(&text, &types));
            }
            Open::Repeated | Open::Nothing => {}
        }
    }

    /// The end of all.
    pub(super) fn close(&mut self, out: &mut String) {
        out.push_str(if self.given.is_empty() { "{}" } else { "}" });
    }

    fn key(&self, key: &str, out: &mut String) {
        out.push_str(if self.given.len() == 1 { "{" } else { ", " });
        out.push_str(&Value::from(key).to_string());
        out.push_str(": ");
    }
}

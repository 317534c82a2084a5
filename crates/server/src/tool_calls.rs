//! Calls of tools in a model's output.
//!
//! The model writes a call as marks in its text:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! Everything here looks at the bytes that were not decided yet and either decides about a
//! beginning of them or waits. A decision never depends on bytes that are not there, so the outcome
//! is the same however the output is cut into tokens and steps; how much has to wait is a few marks
//! and the white space between them. [`crate::text_stream::TextStream`] drives it and is the only
//! layer that says what is text and what is a call.

mod allowed;
mod arguments;
mod body;
mod conversion;
mod opening;
mod python_literal;
mod spaced_json;
mod tags;
mod tool_set;
mod value;

pub(crate) use allowed::{AllowedNames, may_decide, may_decide_behind_mark};
pub(crate) use body::{Body, Step};
pub(crate) use opening::{Opening, Within, find};
pub use tool_set::{Tool, ToolSet};

/// How the output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The model ended its turn: what it left open is closed.
    Turn,
    /// Cut off by a limit: what is open stays open, so that nobody takes half a file for a whole one.
    Limit,
}

//! The response object, whole or at the ends of a stream of events.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::app::App;
use crate::error::ApiError;
use crate::event_stream::StreamFormat;
use crate::generation::Outcome;
use crate::ids;
use crate::logprobs;
use crate::responses::output::Output;
use crate::sequence_group::{News, SequenceGroup, TokenCounts};
use crate::text_stream::Delta;
use crate::usage;

/// What an answer looks like.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// `id`.
    pub(super) id: String,
    /// `created_at`, in Unix seconds.
    pub(super) created: u64,
    /// `model`.
    pub(super) model: String,
    /// Whether tokens have log-probabilities.
    pub(super) logprobs: bool,
    /// Whether thoughts are shown.
    pub(super) reasoning: bool,
    /// Names of tools whose input is a text.
    pub(super) custom: Vec<String>,
    /// What is repeated of the request.
    pub(super) echo: Map<String, Value>,
}

/// How far a response has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    InProgress,
    Completed,
    Incomplete,
    Aborted,
    Failed,
}

impl Status {
    fn of(outcome: &Outcome) -> Self {
        match outcome.finish_reason() {
            "stop" | "tool_calls" => Status::Completed,
            "abort" => Status::Aborted,
            _ => Status::Incomplete,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete | Status::Aborted => "incomplete",
            Status::Failed => "failed",
        }
    }
}

fn usage(counts: TokenCounts) -> Value {
    let usage = usage::usage(counts);
    json!({
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    })
}

fn object(style: &Style, status: Status, output: Vec<Value>, counts: Option<TokenCounts>) -> Value {
    let completed = (status == Status::Completed).then(ids::unix_seconds);
    let incomplete = match status {
        Status::Incomplete => json!({"reason": "max_output_tokens"}),
        Status::Aborted => json!({"reason": "aborted"}),
        _ => Value::Null,
    };
    let mut object = json!({
        "id": style.id,
        "object": "response",
        "created_at": style.created,
        "status": status.name(),
        "completed_at": completed,
        "error": null,
        "incomplete_details": incomplete,
        "model": style.model,
        "output": output,
        "usage": counts.map(usage),
    });
    if let Value::Object(object) = &mut object {
        object.extend(style.echo.clone());
    }
    object
}

/// Takes pieces with their log-probabilities.
fn take(app: &App, style: &Style, output: &mut Output, delta: &Delta, events: &mut Vec<Value>) {
    let lines = match style.logprobs {
        true => logprobs::chat_entries(&app.files.vocabulary, &delta.lines),
        false => Vec::new(),
    };
    output.take(&delta.event, lines, events);
}

/// The whole answer.
pub(super) fn whole(app: &App, style: &Style, answer: &Answer, group: &SequenceGroup) -> Value {
    let mut output = Output::new(style.custom.clone(), style.reasoning);
    let mut unsent = Vec::new();
    for delta in &answer.deltas {
        take(app, style, &mut output, delta, &mut unsent);
    }
    let status = Status::of(&answer.outcome);
    output.close(status.name(), &mut unsent);
    object(style, status, output.items(), Some(group.counts()))
}

/// Events of a streamed answer.
#[derive(Debug)]
pub(super) struct ResponseStream {
    app: Arc<App>,
    style: Style,
    output: Output,
    status: Status,
}

impl ResponseStream {
    /// Nothing sent yet.
    pub(super) fn new(app: Arc<App>, style: Style) -> Self {
        let output = Output::new(style.custom.clone(), style.reasoning);
        ResponseStream {
            app,
            style,
            output,
            status: Status::InProgress,
        }
    }

    fn last(&mut self, response: Value, events: &mut Vec<Value>) {
        let kind = format!("response.{}", self.status.name());
        let fields = json!({"response": response});
        self.output.event(&kind, fields, events);
    }
}

impl StreamFormat for ResponseStream {
    const NAMED: bool = true;
    const DONE: &'static str = "";

    fn begin(&mut self, _group: &SequenceGroup, events: &mut Vec<Value>) {
        for kind in ["response.created", "response.in_progress"] {
            let response = object(&self.style, Status::InProgress, Vec::new(), None);
            let fields = json!({"response": response});
            self.output.event(kind, fields, events);
        }
    }

    fn news(&mut self, news: News, _group: &SequenceGroup, events: &mut Vec<Value>) {
        for delta in &news.deltas {
            take(&self.app, &self.style, &mut self.output, delta, events);
        }
        if let Some(outcome) = &news.outcome {
            self.status = Status::of(outcome);
            self.output.close(self.status.name(), events);
        }
    }

    fn end(&mut self, group: &SequenceGroup, events: &mut Vec<Value>) {
        let items = self.output.items();
        let response = object(&self.style, self.status, items, Some(group.counts()));
        self.last(response, events);
    }

    fn failed(&mut self, error: &ApiError, group: &SequenceGroup, events: &mut Vec<Value>) {
        self.status = Status::Failed;
        let items = self.output.items();
        let mut response = object(&self.style, self.status, items, Some(group.counts()));
        let code = error.code.unwrap_or("server_error");
        response["error"] = json!({"code": code, "message": error.message});
        self.last(response, events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style() -> Style {
        Style {
            id: "resp_1".into(),
            created: 7,
            model: "m".into(),
            logprobs: false,
            reasoning: true,
            custom: Vec::new(),
            echo: Map::from_iter([("store".to_owned(), json!(false))]),
        }
    }

    #[test]
    fn a_status_says_what_else_there_is() {
        let counts = TokenCounts {
            prompt: 5,
            cached: 4,
            completion: 7,
            reasoning: 3,
        };
        let begun = object(&style(), Status::InProgress, Vec::new(), None);
        assert!(begun["usage"].is_null() && begun["completed_at"].is_null());
        assert_eq!(begun["store"], false);
        let done = object(&style(), Status::Completed, Vec::new(), Some(counts));
        assert!(done["completed_at"].is_u64() && done["incomplete_details"].is_null());
        let expected = json!({
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": 12,
        });
        assert_eq!(done["usage"], expected);
        let cut = object(&style(), Status::Incomplete, Vec::new(), Some(counts));
        assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(cut["status"], "incomplete");
        assert!(cut["completed_at"].is_null());
    }
}

//! Answers, whole or as named events.

use serde_json::{Value, json};

use crate::answer::{Answer, matched_stop};
use crate::error::ApiError;
use crate::event_stream::StreamFormat;
use crate::generation::Outcome;
use crate::messages_api::blocks::Blocks;
use crate::messages_api::error;
use crate::sequence_group::{News, SequenceGroup, TokenCounts};
use crate::usage;

/// What an answer looks like.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// `id`.
    pub(super) id: String,
    /// `model`.
    pub(super) model: String,
    /// Whether thoughts are shown.
    pub(super) thinking: bool,
}

/// `usage`: tokens that were in the cache are counted apart from the others.
fn usage(counts: TokenCounts) -> Value {
    let usage = usage::usage(counts);
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    let cached = cached.unwrap_or(0);
    let prompt = usage["prompt_tokens"].as_u64().unwrap_or(0);
    json!({
        "input_tokens": prompt.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    })
}

/// `stop_reason` and `stop_sequence`; an error where there is none. None of them says that somebody
/// ended the request from outside, and a client must not take what there is for an answer.
fn stop(outcome: &Outcome) -> Result<(&'static str, Value), ApiError> {
    if outcome.aborted {
        return Err(ApiError::aborted());
    }
    let stop = matched_stop(outcome);
    Ok(match outcome.finish_reason() {
        "tool_calls" => ("tool_use", Value::Null),
        "length" => ("max_tokens", Value::Null),
        _ if stop.is_string() => ("stop_sequence", stop),
        _ => ("end_turn", Value::Null),
    })
}

fn message(style: &Style, content: Vec<Value>, stop: (Value, Value), usage: Value) -> Value {
    json!({
        "id": style.id,
        "type": "message",
        "role": "assistant",
        "model": style.model,
        "content": content,
        "stop_reason": stop.0,
        "stop_sequence": stop.1,
        "usage": usage,
    })
}

/// The whole answer.
pub(super) fn whole(
    style: &Style,
    answer: &Answer,
    group: &SequenceGroup,
) -> Result<Value, ApiError> {
    let mut blocks = Blocks::new(style.thinking);
    let mut unsent = Vec::new();
    for delta in &answer.deltas {
        blocks.take(&delta.event, &mut unsent);
    }
    let (reason, sequence) = stop(&answer.outcome)?;
    let stop = (reason.into(), sequence);
    let usage = usage(group.counts());
    Ok(message(style, blocks.content(), stop, usage))
}

/// Events of a streamed answer.
#[derive(Debug)]
pub(super) struct MessageStream {
    style: Style,
    blocks: Blocks,
    /// An error was the last event.
    failed: bool,
}

impl MessageStream {
    /// Nothing sent yet.
    pub(super) fn new(style: Style) -> Self {
        let blocks = Blocks::new(style.thinking);
        MessageStream {
            style,
            blocks,
            failed: false,
        }
    }
}

impl StreamFormat for MessageStream {
    const NAMED: bool = true;
    const KEEP_ALIVE: &'static str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    const DONE: &'static str = "";

    fn begin(&mut self, group: &SequenceGroup, events: &mut Vec<Value>) {
        let stop = (Value::Null, Value::Null);
        let message = message(&self.style, Vec::new(), stop, usage(group.counts()));
        events.push(json!({"type": "message_start", "message": message}));
    }

    fn news(&mut self, news: News, group: &SequenceGroup, events: &mut Vec<Value>) {
        for delta in news.deltas {
            self.blocks.take(&delta.event, events);
        }
        let Some(outcome) = news.outcome else {
            return;
        };
        self.blocks.close(events);
        let (reason, sequence) = match stop(&outcome) {
            Ok(stop) => stop,
            Err(error) => {
                self.failed = true;
                events.push(error::object(&error));
                return;
            }
        };
        events.push(json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage(group.counts()),
        }));
    }

    fn end(&mut self, _group: &SequenceGroup, events: &mut Vec<Value>) {
        if !self.failed {
            events.push(json!({"type": "message_stop"}));
        }
    }

    fn failed(&mut self, error: &ApiError, _group: &SequenceGroup, events: &mut Vec<Value>) {
        events.push(error::object(error));
    }
}

#[cfg(test)]
mod tests {
    use engine::RequestStats;

    use super::*;
    use crate::text_stream::Matched;

    #[test]
    fn ends_have_reasons() {
        for (matched, calls, expected) in [
            (Some(Matched::EndOfTurn), 0, ("end_turn", Value::Null)),
            (Some(Matched::Token(7)), 0, ("end_turn", Value::Null)),
            (
                Some(Matched::Text("x".into())),
                0,
                ("stop_sequence", json!("x")),
            ),
            (None, 0, ("max_tokens", Value::Null)),
            (Some(Matched::Call), 1, ("tool_use", Value::Null)),
            (Some(Matched::EndOfTurn), 2, ("tool_use", Value::Null)),
            (None, 1, ("max_tokens", Value::Null)),
        ] {
            let outcome = |aborted| Outcome {
                matched: matched.clone(),
                aborted,
                prompt_tokens: 1,
                cached_tokens: 0,
                completion_tokens: 2,
                reasoning_tokens: 0,
                calls,
                rest: Vec::new(),
                prompt_logprobs: Vec::new(),
                stats: RequestStats::default(),
                records: Vec::new(),
            };
            assert_eq!(stop(&outcome(false)), Ok(expected), "{matched:?} {calls}");
            let error = stop(&outcome(true)).unwrap_err();
            assert_eq!(error::object(&error)["error"]["type"], "api_error");
        }
    }

    #[test]
    fn usage_has_four_counts() {
        let counts = TokenCounts {
            prompt: 5,
            cached: 4,
            completion: 7,
            reasoning: 3,
        };
        let expected = json!({"input_tokens": 1, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4, "output_tokens": 7});
        assert_eq!(usage(counts), expected);
    }
}

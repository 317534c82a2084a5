//! Answers that are sent as one piece, and the options of those that are not.

use axum::Json;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use engine::TokenLogprob;
use serde_json::Value;
use tokio::time::timeout;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Outcome;
use crate::metrics::Ending;
use crate::sequence_group::SequenceGroup;
use crate::text_stream::{Delta, Event};

const PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");

/// `stream` and `stream_options`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// Send events.
    pub(crate) on: bool,
    /// End with the usage.
    pub(crate) usage: bool,
    /// Usage so far in every chunk.
    pub(crate) continuous: bool,
}

impl Streaming {
    /// Reads the fields; `usage` is the server's default.
    pub(crate) fn read(fields: &Fields, usage: bool) -> Result<Self, ApiError> {
        let on = fields.boolean("stream")?.unwrap_or(false);
        let Some(options) = fields.object("stream_options")? else {
            return Ok(Streaming {
                on,
                usage,
                continuous: false,
            });
        };
        if !on {
            let message = "'stream_options' is only allowed together with 'stream': true.";
            return Err(ApiError::invalid(
                "invalid_value",
                "stream_options",
                message,
            ));
        }
        Ok(Streaming {
            on,
            usage: options.boolean("include_usage")?.unwrap_or(usage),
            continuous: options.boolean("continuous_usage_stats")?.unwrap_or(false),
        })
    }
}

/// What one sequence came to.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its tokens.
    pub(crate) ids: Vec<u32>,
    /// Its text in order.
    pub(crate) deltas: Vec<Delta>,
    /// Its end.
    pub(crate) outcome: Outcome,
}

/// What an answer says, put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// What the model thought.
    pub(crate) reasoning: String,
    /// The answer.
    pub(crate) content: String,
    /// Calls in order.
    pub(crate) calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToolCall {
    /// Its id.
    pub(crate) id: String,
    /// The function's name.
    pub(crate) name: String,
    /// Arguments as JSON; without an end where the limit of tokens cut them off.
    pub(crate) arguments: String,
}

impl Message {
    /// Of the pieces of one output.
    pub(crate) fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut message = Message::default();
        for event in events {
            match event {
                Event::Reasoning(text) => message.reasoning.push_str(text),
                Event::Content(text) => message.content.push_str(text),
                Event::CallStart { id, name, .. } => message.calls.push(ToolCall {
                    id: id.clone(),
                    name: name.clone(),
                    arguments: String::new(),
                }),
                Event::CallArguments { index, text } => {
                    if let Some(call) = message.calls.get_mut(*index) {
                        call.arguments.push_str(text);
                    }
                }
                Event::CallEnd { .. } => {}
            }
        }
        message
    }
}

/// Waits for all sequences of a group, in order.
pub(crate) async fn collect(app: &App, group: &mut SequenceGroup) -> Result<Vec<Answer>, ApiError> {
    let limit = app.config.limits.request_timeout;
    if limit.is_zero() {
        return gather(group).await;
    }
    match timeout(limit, gather(group)).await {
        Ok(answers) => answers,
        Err(_) => {
            group.give_up(Ending::Abort);
            Err(ApiError::too_slow())
        }
    }
}

async fn gather(group: &mut SequenceGroup) -> Result<Vec<Answer>, ApiError> {
    let mut parts: Vec<Part> = Vec::new();
    while let Some(news) = group.next().await {
        let news = news?;
        if parts.len() <= news.choice {
            parts.resize_with(news.choice + 1, Part::default);
        }
        let part = &mut parts[news.choice];
        part.ids.extend(news.ids);
        part.deltas.extend(news.deltas);
        part.prompt_logprobs.extend(news.prompt_logprobs);
        if news.outcome.is_some() {
            part.outcome = news.outcome;
        }
    }
    let whole = |part: Part| {
        let mut outcome = part.outcome?;
        outcome.prompt_logprobs = part.prompt_logprobs;
        Some(Answer {
            ids: part.ids,
            deltas: part.deltas,
            outcome,
        })
    };
    Ok(parts.into_iter().filter_map(whole).collect())
}

#[derive(Default)]
struct Part {
    ids: Vec<u32>,
    deltas: Vec<Delta>,
    prompt_logprobs: Vec<TokenLogprob>,
    outcome: Option<Outcome>,
}

/// The response of a group whose sequences have all ended.
pub(crate) fn respond(body: Value, group: &SequenceGroup) -> Response {
    let mut response = Json(body).into_response();
    let ms = u64::try_from(group.elapsed().as_millis()).unwrap_or(u64::MAX);
    let headers = response.headers_mut();
    headers.insert(PROCESSING_MS, HeaderValue::from(ms));
    response.extensions_mut().insert(group.record());
    response
}

/// `matched_stop`, and `stop_reason`, which is the same.
pub(crate) fn matched_stop(outcome: &Outcome) -> Value {
    use crate::text_stream::Matched;
    match &outcome.matched {
        Some(Matched::Text(stop)) => stop.as_str().into(),
        Some(Matched::Token(id)) => (*id).into(),
        Some(Matched::EndOfTurn | Matched::Call) | None => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value, usage: bool) -> Result<Streaming, ApiError> {
        Streaming::read(&Fields::root(body.as_object().unwrap()), usage)
    }

    #[test]
    fn stream_options_need_a_stream() {
        let error = read(json!({"stream_options": {"include_usage": true}}), false).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("stream_options"));
        assert!(read(json!({"stream_options": null}), false).is_ok());
    }

    #[test]
    fn usage_has_a_default_that_the_request_overrides() {
        let on = |options: Value| json!({"stream": true, "stream_options": options});
        assert!(read(json!({"stream": true}), true).unwrap().usage);
        assert!(
            !read(on(json!({"include_usage": false})), true)
                .unwrap()
                .usage
        );
        let both = on(json!({"include_usage": true, "continuous_usage_stats": true}));
        let streaming = read(both, false).unwrap();
        assert!(streaming.usage && streaming.continuous);
    }
}

//! Answers to a chat request, whole or in chunks.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::answer::{Answer, Message, Streaming, ToolCall, matched_stop};
use crate::app::App;
use crate::event_stream::StreamFormat;
use crate::logprobs;
use crate::sequence_group::{News, SequenceGroup};
use crate::serve::ReasoningField;
use crate::text_stream::{Delta, Event, TokenLine};
use crate::usage;

/// What an answer looks like.
#[derive(Clone, Debug)]
pub(crate) struct ChatStyle {
    /// `id`.
    pub(crate) id: String,
    /// `created`, in Unix seconds.
    pub(crate) created: u64,
    /// `model`.
    pub(crate) model: String,
    /// Whether tokens have log-probabilities.
    pub(crate) logprobs: bool,
    /// Whether reasoning is shown at all.
    pub(crate) include_reasoning: bool,
    /// Whether reasoning comes piece by piece.
    pub(crate) stream_reasoning: bool,
    /// Whether reasoning is told from content.
    pub(crate) separate_reasoning: bool,
    /// Whether to add SGLang's speculation statistics.
    pub(crate) spec_details: bool,
    /// Whether to name the service tier, of which there is one.
    pub(crate) service_tier: bool,
}

/// The whole answer.
pub(crate) fn whole(
    app: &App,
    style: &ChatStyle,
    answers: Vec<Answer>,
    group: &SequenceGroup,
) -> Value {
    let choices: Vec<_> = answers
        .iter()
        .enumerate()
        .map(|(index, answer)| choice(app, style, index, answer))
        .collect();
    let mut object = head(app, style, "chat.completion");
    object.insert("choices".into(), choices.into());
    let metrics = app.config.request_metrics;
    let info = app.engine.info();
    usage::add_totals(&mut object, group, info, metrics, style.spec_details);
    object.into()
}

fn head(app: &App, style: &ChatStyle, kind: &str) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("id".into(), style.id.as_str().into());
    object.insert("object".into(), kind.into());
    object.insert("created".into(), style.created.into());
    object.insert("model".into(), style.model.as_str().into());
    object.insert("system_fingerprint".into(), app.fingerprint.as_str().into());
    if style.service_tier {
        object.insert("service_tier".into(), "default".into());
    }
    object
}

fn choice(app: &App, style: &ChatStyle, index: usize, answer: &Answer) -> Value {
    let Answer {
        deltas, outcome, ..
    } = answer;
    let Message {
        content,
        reasoning,
        calls,
    } = Message::of(deltas.iter().map(|delta| &delta.event));
    let unanswered = style.separate_reasoning
        && outcome.completion_tokens > 0
        && outcome.reasoning_tokens == outcome.completion_tokens;
    let silent = content.is_empty() && (unanswered || !calls.is_empty());
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    let content = match silent {
        true => Value::Null,
        false => content.into(),
    };
    message.insert("content".into(), content);
    message.insert("refusal".into(), Value::Null);
    if !reasoning.is_empty() && style.include_reasoning {
        for name in reasoning_names(app.config.reasoning_field) {
            message.insert((*name).into(), reasoning.as_str().into());
        }
    }
    if !calls.is_empty() {
        let calls: Vec<_> = calls.iter().map(tool_call).collect();
        message.insert("tool_calls".into(), calls.into());
    }
    let shown = |delta: &&Delta| style.include_reasoning || !is_reasoning(delta);
    let mut lines: Vec<TokenLine> = Vec::new();
    for delta in deltas.iter().filter(shown) {
        lines.extend_from_slice(&delta.lines);
    }
    lines.extend_from_slice(&outcome.rest);
    let stop = matched_stop(outcome);
    json!({
        "index": index,
        "message": message,
        "logprobs": logprobs::chat_object(&app.files.vocabulary, style.logprobs, &lines),
        "finish_reason": outcome.finish_reason(),
        "matched_stop": stop,
        "stop_reason": stop,
    })
}

fn tool_call(call: &ToolCall) -> Value {
    json!({"id": call.id, "type": "function",
        "function": {"name": call.name, "arguments": call.arguments}})
}

fn is_reasoning(delta: &Delta) -> bool {
    matches!(delta.event, Event::Reasoning(_))
}

fn reasoning_names(field: ReasoningField) -> &'static [&'static str] {
    match field {
        ReasoningField::ReasoningContent => &["reasoning_content"],
        ReasoningField::Reasoning => &["reasoning"],
        ReasoningField::Both => &["reasoning_content", "reasoning"],
    }
}

/// Chunks of a streamed answer.
#[derive(Debug)]
pub(crate) struct ChatStream {
    app: Arc<App>,
    style: ChatStyle,
    streaming: Streaming,
    choices: Vec<ChoiceState>,
}

#[derive(Clone, Debug, Default)]
struct ChoiceState {
    /// The role chunk was sent.
    opened: bool,
    /// Reasoning that waits for its end.
    reasoning: Option<Delta>,
}

impl ChatStream {
    /// Nothing sent yet.
    pub(crate) fn new(
        app: Arc<App>,
        style: ChatStyle,
        streaming: Streaming,
        choices: usize,
    ) -> Self {
        ChatStream {
            app,
            style,
            streaming,
            choices: vec![ChoiceState::default(); choices],
        }
    }

    fn chunk(&self, choices: Value, group: &SequenceGroup) -> Value {
        let mut object = head(&self.app, &self.style, "chat.completion.chunk");
        object.insert("choices".into(), choices);
        if self.streaming.continuous {
            object.insert("usage".into(), usage::usage(group.counts()));
        } else if self.streaming.usage {
            object.insert("usage".into(), Value::Null);
        }
        object.into()
    }

    fn open(&mut self, index: usize, group: &SequenceGroup, chunks: &mut Vec<Value>) {
        if !std::mem::replace(&mut self.choices[index].opened, true) {
            let choices = json!([{"index": index, "delta": {"role": "assistant", "content": ""},
                "logprobs": null, "finish_reason": null}]);
            chunks.push(self.chunk(choices, group));
        }
    }

    /// The chunk of a piece; the end of a call has none.
    fn piece(
        &mut self,
        index: usize,
        delta: Delta,
        group: &SequenceGroup,
        chunks: &mut Vec<Value>,
    ) {
        let fields = match delta.event {
            Event::Content(text) => json!({"content": text}),
            Event::Reasoning(text) => {
                let names = reasoning_names(self.app.config.reasoning_field).iter();
                names.map(|&name| (name, text.as_str())).collect()
            }
            Event::CallStart { index, id, name } => json!({"tool_calls": [{"index": index,
                "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]}),
            Event::CallArguments { index, text } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            }
            Event::CallEnd { .. } => return,
        };
        self.open(index, group, chunks);
        let vocabulary = &self.app.files.vocabulary;
        let logprobs = logprobs::chat_object(vocabulary, self.style.logprobs, &delta.lines);
        let choices = json!([{"index": index, "delta": fields, "logprobs": logprobs,
            "finish_reason": null}]);
        chunks.push(self.chunk(choices, group));
    }

    /// Holds reasoning back where the client wants it in one piece or not at all.
    fn hold(&mut self, index: usize, delta: Delta) -> Option<Delta> {
        if !is_reasoning(&delta) {
            return Some(delta);
        }
        if !self.style.include_reasoning {
            return None;
        }
        if self.style.stream_reasoning {
            return Some(delta);
        }
        match &mut self.choices[index].reasoning {
            Some(held) => held.append(delta),
            empty => *empty = Some(delta),
        }
        None
    }
}

impl StreamFormat for ChatStream {
    fn news(&mut self, news: News, group: &SequenceGroup, chunks: &mut Vec<Value>) {
        let index = news.choice;
        for delta in news.deltas {
            if let Some(delta) = self.hold(index, delta) {
                if let Some(reasoning) = self.choices[index].reasoning.take() {
                    self.piece(index, reasoning, group, chunks);
                }
                self.piece(index, delta, group, chunks);
            }
        }
        let Some(outcome) = news.outcome else {
            return;
        };
        if let Some(reasoning) = self.choices[index].reasoning.take() {
            self.piece(index, reasoning, group, chunks);
        }
        self.open(index, group, chunks);
        let vocabulary = &self.app.files.vocabulary;
        let asked = self.style.logprobs && !outcome.rest.is_empty();
        let stop = matched_stop(&outcome);
        let choices = json!([{"index": index, "delta": {},
            "logprobs": logprobs::chat_object(vocabulary, asked, &outcome.rest),
            "finish_reason": outcome.finish_reason(), "matched_stop": stop, "stop_reason": stop}]);
        chunks.push(self.chunk(choices, group));
    }

    fn end(&mut self, group: &SequenceGroup, chunks: &mut Vec<Value>) {
        if !self.streaming.usage {
            return;
        }
        let mut object = head(&self.app, &self.style, "chat.completion.chunk");
        object.insert("choices".into(), json!([]));
        let info = self.app.engine.info();
        let metrics = self.app.config.request_metrics;
        usage::add_totals(&mut object, group, info, metrics, self.style.spec_details);
        chunks.push(object.into());
    }
}

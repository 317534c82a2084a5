//! Answers to a generate request, whole or as events.

use engine::RequestStats;
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::event_stream::StreamFormat;
use crate::generation::Outcome;
use crate::sequence_group::{News, SequenceGroup};
use crate::text_stream::Matched;

/// What an answer looks like.
#[derive(Clone, Debug)]
pub(crate) struct GenerateStyle {
    /// The client's name for the request, or one made for it.
    pub(crate) id: String,
    /// Whether the answer is a list.
    pub(crate) list: bool,
    /// Sequences in all.
    pub(crate) sequences: usize,
}

/// The whole answer.
pub(crate) fn whole(style: &GenerateStyle, answers: &[Answer], group: &SequenceGroup) -> Value {
    let mut objects: Vec<Value> = Vec::with_capacity(answers.len());
    for answer in answers {
        let text: String = answer
            .deltas
            .iter()
            .map(|delta| delta.event.text())
            .collect();
        let seconds = group.elapsed().as_secs_f64();
        let info = ended(style, &answer.outcome, &answer.ids, seconds);
        objects.push(json!({"text": text, "output_ids": answer.ids, "meta_info": info}));
    }
    match style.list {
        true => objects.into(),
        false => objects.pop().unwrap_or_default(),
    }
}

/// `meta_info` of a sequence that has ended.
fn ended(style: &GenerateStyle, outcome: &Outcome, ids: &[u32], seconds: f64) -> Value {
    let tokens = outcome.completion_tokens;
    let prompt = (outcome.prompt_tokens, outcome.cached_tokens);
    let mut info = counts(style, prompt, tokens);
    speculation(&mut info, tokens, &outcome.stats);
    info.insert("finish_reason".into(), finish_reason(outcome, ids));
    info.insert("e2e_latency".into(), json!(seconds));
    info.into()
}

/// `prompt_tokens`: all, and those from the prefix cache.
fn counts(
    style: &GenerateStyle,
    (prompt_tokens, cached_tokens): (usize, usize),
    tokens: usize,
) -> Map<String, Value> {
    let info = json!({
        "id": style.id,
        "finish_reason": null,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "cached_tokens": cached_tokens,
    });
    match info {
        Value::Object(info) => info,
        _ => Map::new(),
    }
}

fn speculation(info: &mut Map<String, Value>, tokens: usize, stats: &RequestStats) {
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    let more = json!({
        "spec_verify_ct": stats.steps,
        // Of all tokens, the one of the prefill too, as this field is defined there.
        "spec_accept_length": share(tokens, stats.steps),
        "spec_accept_rate": share(stats.accepted, stats.drafted),
        "spec_num_correct_drafts": stats.accepted,
        "spec_num_proposed_drafts": stats.drafted,
        "spec_correct_drafts_histogram": stats.acceptance_histogram,
    });
    if let Value::Object(more) = more {
        info.extend(more);
    }
}

fn finish_reason(outcome: &Outcome, ids: &[u32]) -> Value {
    if outcome.aborted {
        return json!({"type": "abort", "message": "Aborted on request."});
    }
    match &outcome.matched {
        None => json!({"type": "length", "length": outcome.completion_tokens}),
        // Raw text has no calls.
        Some(Matched::EndOfTurn | Matched::Call) => json!({"type": "stop", "matched": ids.last()}),
        Some(Matched::Token(id)) => json!({"type": "stop", "matched": id}),
        Some(Matched::Text(text)) => json!({"type": "stop", "matched": text}),
    }
}

/// Events of a streamed answer; each has everything so far.
#[derive(Debug)]
pub(crate) struct GenerateStream {
    style: GenerateStyle,
    /// Text and ids per sequence.
    parts: Vec<(String, Vec<u32>)>,
}

impl GenerateStream {
    /// Nothing sent yet.
    pub(crate) fn new(style: GenerateStyle) -> Self {
        let parts = vec![Default::default(); style.sequences];
        GenerateStream { style, parts }
    }
}

impl StreamFormat for GenerateStream {
    fn news(&mut self, news: News, group: &SequenceGroup, chunks: &mut Vec<Value>) {
        let (text, ids) = &mut self.parts[news.choice];
        let grown = !news.deltas.is_empty();
        news.deltas
            .iter()
            .for_each(|delta| text.push_str(delta.event.text()));
        ids.extend(news.ids);
        let info = match &news.outcome {
            Some(outcome) => {
                let seconds = group.elapsed().as_secs_f64();
                ended(&self.style, outcome, ids, seconds)
            }
            None if grown => {
                let prompt = group.prompt_of(news.choice);
                counts(&self.style, prompt, ids.len()).into()
            }
            None => return,
        };
        let mut chunk = json!({"text": text, "output_ids": ids, "meta_info": info});
        if self.style.list {
            chunk["index"] = news.choice.into();
        }
        chunks.push(chunk);
    }

    fn end(&mut self, _group: &SequenceGroup, _chunks: &mut Vec<Value>) {}
}

//! Answers to a completion request, whole or in chunks.

use std::sync::Arc;

use engine::TokenLogprob;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Streaming, matched_stop};
use crate::app::App;
use crate::event_stream::StreamFormat;
use crate::logprobs::Columns;
use crate::sequence_group::{News, SequenceGroup};
use crate::text_stream::TokenLine;
use crate::usage;
use crate::vocabulary::Vocabulary;

/// What an answer looks like.
#[derive(Clone, Debug)]
pub(crate) struct CompletionStyle {
    /// `id`.
    pub(crate) id: String,
    /// `created`, in Unix seconds.
    pub(crate) created: u64,
    /// `model`.
    pub(crate) model: String,
    /// Whether tokens have log-probabilities.
    pub(crate) logprobs: bool,
    /// Whether special tokens have no text.
    pub(crate) skip_special: bool,
    /// Choices per prompt.
    pub(crate) choices: usize,
    /// Per prompt: what comes in front of its outputs.
    pub(crate) echoes: Vec<Option<Echo>>,
    /// Whether to add SGLang's speculation statistics.
    pub(crate) spec_details: bool,
}

/// A prompt that is repeated in front of its output.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    /// As it was sent.
    pub(crate) text: String,
    /// Its tokens.
    pub(crate) ids: Vec<u32>,
}

impl CompletionStyle {
    fn echo(&self, index: usize) -> Option<&Echo> {
        self.echoes.get(index / self.choices)?.as_ref()
    }

    /// The prompt's columns.
    fn push_prompt(
        &self,
        columns: &mut Columns,
        vocabulary: &Vocabulary,
        echo: &Echo,
        logprobs: &[TokenLogprob],
    ) {
        let known = std::iter::once(None).chain(logprobs.iter().map(Some));
        for (&id, logprob) in echo.ids.iter().zip(known) {
            columns.push(vocabulary, id, logprob, true);
        }
        columns.end_prompt();
    }

    fn push_lines(&self, columns: &mut Columns, vocabulary: &Vocabulary, lines: &[TokenLine]) {
        for line in lines {
            let visible = !(self.skip_special && vocabulary.is_special(line.id));
            columns.push(vocabulary, line.id, Some(&line.logprob), visible);
        }
    }

    fn head(&self, app: &App) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("id".into(), self.id.as_str().into());
        object.insert("object".into(), "text_completion".into());
        object.insert("created".into(), self.created.into());
        object.insert("model".into(), self.model.as_str().into());
        object.insert("system_fingerprint".into(), app.fingerprint.as_str().into());
        object
    }
}

/// The whole answer.
pub(crate) fn whole(
    app: &App,
    style: &CompletionStyle,
    answers: Vec<Answer>,
    group: &SequenceGroup,
) -> Value {
    let vocabulary = &app.files.vocabulary;
    let mut choices = Vec::with_capacity(answers.len());
    for (index, answer) in answers.iter().enumerate() {
        let (deltas, outcome) = (&answer.deltas, &answer.outcome);
        let mut columns = Columns::default();
        let mut text = String::new();
        if let Some(echo) = style.echo(index) {
            text.push_str(&echo.text);
            style.push_prompt(&mut columns, vocabulary, echo, &outcome.prompt_logprobs);
        }
        for delta in deltas {
            text.push_str(delta.event.text());
            style.push_lines(&mut columns, vocabulary, &delta.lines);
        }
        style.push_lines(&mut columns, vocabulary, &outcome.rest);
        let stop = matched_stop(outcome);
        choices.push(json!({
            "index": index,
            "text": text,
            "logprobs": if style.logprobs { columns.take() } else { Value::Null },
            "finish_reason": outcome.finish_reason(),
            "matched_stop": stop,
            "stop_reason": stop,
        }));
    }
    let mut object = style.head(app);
    object.insert("choices".into(), choices.into());
    let metrics = app.config.request_metrics;
    usage::add_totals(
        &mut object,
        group,
        app.engine.info(),
        metrics,
        style.spec_details,
    );
    object.into()
}

/// Chunks of a streamed answer.
#[derive(Debug)]
pub(crate) struct CompletionStream {
    app: Arc<App>,
    style: CompletionStyle,
    streaming: Streaming,
    /// Per choice.
    columns: Vec<Columns>,
    /// Per choice: the prompt was repeated.
    echoed: Vec<bool>,
}

impl CompletionStream {
    /// Nothing sent yet.
    pub(crate) fn new(app: Arc<App>, style: CompletionStyle, streaming: Streaming) -> Self {
        let count = style.echoes.len() * style.choices;
        CompletionStream {
            app,
            style,
            streaming,
            columns: std::iter::repeat_with(Columns::default)
                .take(count)
                .collect(),
            echoed: vec![false; count],
        }
    }

    fn chunk(&self, choice: Value, group: &SequenceGroup) -> Value {
        let mut object = self.style.head(&self.app);
        object.insert("choices".into(), json!([choice]));
        if self.streaming.continuous {
            object.insert("usage".into(), usage::usage(group.counts()));
        } else if self.streaming.usage {
            object.insert("usage".into(), Value::Null);
        }
        object.into()
    }

    fn take_columns(&mut self, index: usize, some: bool) -> Value {
        match self.style.logprobs && some {
            true => self.columns[index].take(),
            false => Value::Null,
        }
    }
}

impl StreamFormat for CompletionStream {
    fn news(&mut self, news: News, group: &SequenceGroup, chunks: &mut Vec<Value>) {
        let index = news.choice;
        let app = Arc::clone(&self.app);
        let vocabulary = &app.files.vocabulary;
        let mut pieces: Vec<(String, Value)> = Vec::new();
        let begun = !news.deltas.is_empty() || news.outcome.is_some();
        let columns = &mut self.columns[index];
        // Prompt values come with the first token, which may not have any text yet.
        if let Some(echo) = self.style.echo(index) {
            let first = !self.echoed[index] && (begun || !news.prompt_logprobs.is_empty());
            if first {
                self.style
                    .push_prompt(columns, vocabulary, echo, &news.prompt_logprobs);
                let text = echo.text.clone();
                self.echoed[index] = true;
                let logprobs = self.take_columns(index, true);
                pieces.push((text, logprobs));
            }
        }
        for delta in news.deltas {
            let columns = &mut self.columns[index];
            self.style.push_lines(columns, vocabulary, &delta.lines);
            let logprobs = self.take_columns(index, true);
            pieces.push((delta.event.text().to_owned(), logprobs));
        }
        for (text, logprobs) in pieces {
            let choice = json!({"index": index, "text": text, "logprobs": logprobs,
                "finish_reason": null});
            chunks.push(self.chunk(choice, group));
        }
        let Some(outcome) = news.outcome else {
            return;
        };
        let columns = &mut self.columns[index];
        self.style.push_lines(columns, vocabulary, &outcome.rest);
        let logprobs = self.take_columns(index, !outcome.rest.is_empty());
        let stop = matched_stop(&outcome);
        let choice = json!({"index": index, "text": "", "logprobs": logprobs,
            "finish_reason": outcome.finish_reason(), "matched_stop": stop, "stop_reason": stop});
        chunks.push(self.chunk(choice, group));
    }

    fn end(&mut self, group: &SequenceGroup, chunks: &mut Vec<Value>) {
        if !self.streaming.usage {
            return;
        }
        let mut object = self.style.head(&self.app);
        object.insert("choices".into(), json!([]));
        let info = self.app.engine.info();
        let metrics = self.app.config.request_metrics;
        usage::add_totals(&mut object, group, info, metrics, self.style.spec_details);
        chunks.push(object.into());
    }
}

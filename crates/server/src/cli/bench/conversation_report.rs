//! What `spinney bench conversation` prints: a line per turn as it is measured.

use engine::{Finish, ModelInfo, PrefixCacheConfig};
use serde_json::{Value, json};

use super::show;
use crate::cli::args::bench::ConversationBenchArgs;
use crate::cli::exit::Failure;
use crate::cli::print;

/// What was measured on.
#[derive(Clone, Debug)]
pub struct Facts {
    model_path: String,
    device: String,
    context_length: usize,
}

impl Facts {
    /// Of an engine.
    pub fn of(model_path: &str, info: &ModelInfo) -> Self {
        Facts {
            model_path: model_path.to_owned(),
            device: info.device.clone(),
            context_length: info.context_length,
        }
    }
}

/// An answer to a turn.
#[derive(Clone, Debug)]
pub struct Answer {
    /// All of it.
    pub tokens: Vec<u32>,
    /// Counters and times.
    pub finish: Finish,
}

impl Answer {
    /// From the request to its first token.
    fn first_token_ms(&self) -> f64 {
        self.finish.stats.queue_ms + self.finish.stats.prefill_ms
    }

    /// This one came without the cache, the other with it.
    pub fn with(&self, cached: &Answer) -> Turn {
        Turn {
            prompt: self.finish.prompt_tokens,
            cached: cached.finish.cached_tokens,
            without_ms: self.first_token_ms(),
            with_ms: cached.first_token_ms(),
            identical: self.tokens == cached.tokens,
        }
    }
}

/// A turn, measured both ways.
#[derive(Clone, Debug)]
pub struct Turn {
    prompt: usize,
    cached: usize,
    without_ms: f64,
    with_ms: f64,
    /// Both gave the same tokens.
    pub identical: bool,
}

impl Turn {
    fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "first_token_without_ms": self.without_ms,
            "first_token_with_ms": self.with_ms,
            "identical": self.identical,
        })
    }
}

/// Prints.
pub struct Report<'a> {
    args: &'a ConversationBenchArgs,
    facts: Facts,
    cache: &'a PrefixCacheConfig,
}

impl<'a> Report<'a> {
    /// About an engine with this cache.
    pub fn new(
        args: &'a ConversationBenchArgs,
        facts: Facts,
        cache: &'a PrefixCacheConfig,
    ) -> Self {
        Report { args, facts, cache }
    }

    /// What stands in front of the turns.
    pub fn begin(&self) -> Result<(), Failure> {
        let Facts {
            model_path,
            device,
            context_length,
        } = &self.facts;
        let text = format!(
            "{model_path} on {device}, context {context_length}, chunks of {}, a state kept every \
             {} tokens and at ends of turns; milliseconds to the first token\n\
             turn   prompt   cached     without        with  ratio\n",
            self.args.context.chunked_prefill_size, self.cache.interval,
        );
        show(self.args.json, &text)
    }

    /// One line.
    pub fn turn(&self, number: usize, turn: &Turn) -> Result<(), Failure> {
        let Turn {
            prompt,
            cached,
            without_ms,
            with_ms,
            identical,
        } = turn;
        let ratio = without_ms / with_ms;
        let note = match identical {
            true => "",
            false => "  other tokens",
        };
        let line = format!(
            "{number:4} {prompt:8} {cached:8} {without_ms:11.1} {with_ms:11.1} {ratio:6.2}{note}\n"
        );
        show(self.args.json, &line)
    }

    /// Sums, and the object.
    pub fn finish(&self, turns: &[Turn]) -> Result<(), Failure> {
        let prompts: usize = turns.iter().map(|turn| turn.prompt).sum();
        let cached: usize = turns.iter().map(|turn| turn.cached).sum();
        let without: f64 = turns.iter().map(|turn| turn.without_ms).sum();
        let with: f64 = turns.iter().map(|turn| turn.with_ms).sum();
        let identical = turns.iter().all(|turn| turn.identical);
        let ratio = without / with;
        let answers = if identical { "identical" } else { "different" };
        let line = format!(
            " all {prompts:8} {cached:8} {without:11.1} {with:11.1} {ratio:6.2}\n{answers} answers \
             with and without the cache\n"
        );
        show(self.args.json, &line)?;
        if !self.args.json {
            return Ok(());
        }
        let turns: Vec<Value> = turns.iter().map(Turn::json).collect();
        let object = json!({
            "model_path": self.facts.model_path,
            "device": self.facts.device,
            "context_length": self.facts.context_length,
            "interval": self.cache.interval,
            "turns": turns,
            "identical": identical,
        });
        print(&format!("{object}\n"))
    }
}

//! One request on its way through the engine, from its updates to text.

use engine::{Finish, FinishReason, RequestStats, RequestUpdate, TokenLogprob};

use crate::text_stream::{Delta, Matched, TextStream, TokenLine};

/// How an output ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What ended it; `None` = the limit of tokens.
    pub matched: Option<Matched>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that count, the ending one included.
    pub completion_tokens: usize,
    /// Of these, the ones up to the end of the reasoning.
    pub reasoning_tokens: usize,
    /// Tokens with log-probabilities that belong to no text.
    pub rest: Vec<TokenLine>,
    /// Log-probabilities of prompt tokens 1, 2, ... if they were asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Counters and times.
    pub stats: RequestStats,
}

impl Outcome {
    /// `finish_reason` of the answer.
    pub fn finish_reason(&self) -> &'static str {
        match self.matched {
            Some(_) => "stop",
            None => "length",
        }
    }
}

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interruption {
    /// Aborted on request or because the server ends.
    #[error("the request was aborted")]
    Aborted,
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Failed(String),
}

/// What to do after an update.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Wait for the next one.
    Going,
    /// The text ended after so many tokens: call [`engine::EngineHandle::finish`], then wait.
    Enough(usize),
    /// That was the last one.
    Ended(Result<Outcome, Interruption>),
}

/// The state of one request between updates.
#[derive(Debug)]
pub struct Generation {
    stream: TextStream,
    matched: Option<Matched>,
    prompt_logprobs: Vec<TokenLogprob>,
}

impl Generation {
    /// Before the first update.
    pub fn new(stream: TextStream) -> Self {
        Generation {
            stream,
            matched: None,
            prompt_logprobs: Vec::new(),
        }
    }

    /// Tokens so far that count.
    pub fn kept(&self) -> usize {
        self.stream.kept()
    }

    /// Of these, reasoning.
    pub fn reasoning_tokens(&self) -> usize {
        self.stream.reasoning_tokens()
    }

    /// Log-probabilities of prompt tokens that nobody took yet.
    pub fn take_prompt_logprobs(&mut self) -> Vec<TokenLogprob> {
        std::mem::take(&mut self.prompt_logprobs)
    }

    /// Takes an update and appends the text that became final to `deltas`.
    pub fn take(&mut self, update: RequestUpdate, deltas: &mut Vec<Delta>) -> Progress {
        self.prompt_logprobs.extend(update.prompt_logprobs);
        let ended_before = self.matched.is_some();
        for token in update.tokens {
            if self.matched.is_some() {
                break;
            }
            self.matched = self.stream.push(token, deltas);
        }
        match update.finish {
            Some(finish) => Progress::Ended(self.end(finish, deltas)),
            None if self.matched.is_some() && !ended_before => Progress::Enough(self.stream.kept()),
            None => Progress::Going,
        }
    }

    fn end(&mut self, finish: Finish, deltas: &mut Vec<Delta>) -> Result<Outcome, Interruption> {
        match finish.reason {
            FinishReason::Aborted => return Err(Interruption::Aborted),
            FinishReason::Error(text) => return Err(Interruption::Failed(text)),
            FinishReason::Stop | FinishReason::Length | FinishReason::Finished => {}
        }
        let rest = self.stream.finish(deltas);
        Ok(Outcome {
            matched: self.matched.take(),
            prompt_tokens: finish.prompt_tokens,
            completion_tokens: self.stream.kept(),
            reasoning_tokens: self.stream.reasoning_tokens(),
            rest,
            prompt_logprobs: self.take_prompt_logprobs(),
            stats: finish.stats,
        })
    }
}

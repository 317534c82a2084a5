//! One request on its way through the engine, from its updates to text.

use engine::{Finish, FinishReason, RequestStats, RequestUpdate, StepRecord, TokenLogprob};

use crate::text_stream::{Delta, Matched, TextStream, TokenLine};

/// How an output ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What ended it; `None` = the limit of tokens, an abort, or options that left nothing of what
    /// its form allows.
    pub matched: Option<Matched>,
    /// Somebody ended it before its time.
    pub aborted: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, the ones that came from the prefix cache.
    pub cached_tokens: usize,
    /// Tokens that count, the ending one included.
    pub completion_tokens: usize,
    /// Of these, the ones up to the end of the reasoning.
    pub reasoning_tokens: usize,
    /// Calls of tools that are complete.
    pub calls: usize,
    /// Tokens with log-probabilities that belong to no text.
    pub rest: Vec<TokenLine>,
    /// Log-probabilities of prompt tokens 1, 2, ... if they were asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Counters and times.
    pub stats: RequestStats,
    /// Verify passes that count.
    pub records: Vec<StepRecord>,
}

impl Outcome {
    /// `finish_reason` of the answer.
    pub fn finish_reason(&self) -> &'static str {
        match (&self.matched, self.aborted) {
            (_, true) => "abort",
            (Some(_), false) if self.calls > 0 => "tool_calls",
            (Some(_), false) => "stop",
            (None, false) => "length",
        }
    }
}

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interruption {
    /// It waited for too long and was not begun.
    #[error("the request waited for too long")]
    Expired,
    /// The engine failed at it.
    #[error("the engine failed: {0}")]
    Failed(String),
    /// The engine failed before it began with it.
    #[error("the engine failed before it began with the request: {0}")]
    NotBegun(String),
}

/// What to do after an update.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Wait for the next one.
    Going,
    /// The text ended after so many tokens: call [`engine::EngineHandle::finish`], then wait.
    Enough(usize),
    /// That was the last one.
    Ended(Result<Box<Outcome>, Interruption>),
}

/// The state of one request between updates.
#[derive(Debug)]
pub struct Generation {
    stream: TextStream,
    prompt_logprobs: Vec<TokenLogprob>,
}

impl Generation {
    /// Before the first update.
    pub fn new(stream: TextStream) -> Self {
        Generation {
            stream,
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
        let ended_before = self.stream.matched().is_some();
        for token in update.tokens {
            if self.stream.matched().is_some() {
                break;
            }
            self.stream.push(token, deltas);
        }
        match update.finish {
            Some(finish) => Progress::Ended(self.end(finish, deltas).map(Box::new)),
            None if self.stream.matched().is_some() && !ended_before => {
                Progress::Enough(self.stream.kept())
            }
            None => Progress::Going,
        }
    }

    fn end(
        &mut self,
        mut finish: Finish,
        deltas: &mut Vec<Delta>,
    ) -> Result<Outcome, Interruption> {
        match finish.reason {
            FinishReason::Expired => return Err(Interruption::Expired),
            FinishReason::Error(text) if finish.stats.prefill_ms == 0.0 && self.kept() == 0 => {
                return Err(Interruption::NotBegun(text));
            }
            FinishReason::Error(text) => return Err(Interruption::Failed(text)),
            FinishReason::Stop
            | FinishReason::Length
            | FinishReason::Blocked
            | FinishReason::Finished
            | FinishReason::Aborted => {}
        }
        if finish.reason == FinishReason::Stop {
            self.stream.end_turn();
        }
        let rest = self.stream.finish(deltas);
        // The engine may have ended by itself before it heard of a stop string.
        finish.trim(self.stream.kept());
        let aborted = finish.reason == FinishReason::Aborted && self.stream.matched().is_none();
        Ok(Outcome {
            matched: self.stream.matched().cloned(),
            aborted,
            prompt_tokens: finish.prompt_tokens,
            cached_tokens: finish.cached_tokens,
            completion_tokens: self.stream.kept(),
            reasoning_tokens: self.stream.reasoning_tokens(),
            calls: self.stream.calls(),
            rest,
            prompt_logprobs: self.take_prompt_logprobs(),
            stats: finish.stats,
            records: finish.records,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::{RequestId, TokenUpdate};

    use super::*;
    use crate::testing::{END_OF_TURN, byte_vocabulary};
    use crate::text_stream::{Split, TextOptions};

    fn generation(stop: &str) -> Generation {
        let options = TextOptions {
            split: Split::Off,
            tools: None,
            stops: vec![stop.to_owned()],
            include_stop: false,
            end_ids: vec![END_OF_TURN],
            stop_ids: Vec::new(),
            skip_special: true,
            min_tokens: 0,
        };
        Generation::new(TextStream::new(Arc::new(byte_vocabulary()), options))
    }

    fn update(ids: &[u32], reason: Option<FinishReason>) -> RequestUpdate {
        let token = |&id: &u32| TokenUpdate { id, logprob: None };
        RequestUpdate {
            id: RequestId(1),
            started: None,
            prompt_logprobs: Vec::new(),
            tokens: ids.iter().map(token).collect(),
            trace: None,
            finish: reason.map(|reason| Finish {
                reason,
                prompt_tokens: 3,
                cached_tokens: 2,
                completion_tokens: 9,
                stats: RequestStats::default(),
                // The prefill's token, then a pass of two tokens and one of six.
                records: [(1, 1), (3, 5)]
                    .map(|(before, accepted)| StepRecord {
                        before,
                        drafted: 15,
                        accepted,
                    })
                    .to_vec(),
            }),
        }
    }

    fn ended(progress: Progress) -> Result<Outcome, Interruption> {
        match progress {
            Progress::Ended(outcome) => outcome.map(|outcome| *outcome),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_stop_string_is_reported_once_and_what_follows_is_dropped() {
        let mut generation = generation("bc");
        let mut deltas = Vec::new();
        let ids = [97, 98, 99, 100];
        let progress = generation.take(update(&ids, None), &mut deltas);
        assert_eq!(progress, Progress::Enough(3));
        let progress = generation.take(update(&ids, None), &mut deltas);
        assert_eq!(progress, Progress::Going);
        let last = update(&[], Some(FinishReason::Finished));
        let outcome = ended(generation.take(last, &mut deltas)).unwrap();
        assert_eq!(outcome.matched, Some(Matched::Text("bc".to_owned())));
        assert_eq!((outcome.prompt_tokens, outcome.completion_tokens), (3, 3));
        assert_eq!(outcome.cached_tokens, 2);
        let text: String = deltas.iter().map(|delta| delta.event.text()).collect();
        assert_eq!(text, "a");
    }

    #[test]
    fn a_stop_string_in_the_last_step_is_a_stop_all_the_same() {
        let ids = [97, 98, 99, 100];
        let last = update(&ids, Some(FinishReason::Length));
        let outcome = ended(generation("bc").take(last, &mut Vec::new())).unwrap();
        assert_eq!(outcome.finish_reason(), "stop");
        assert_eq!(outcome.completion_tokens, 3);
        // Token 3 is the last that counts: the second pass gave nothing.
        let stats = &outcome.stats;
        assert_eq!((stats.steps, stats.drafted, stats.accepted), (1, 15, 1));
        assert_eq!(stats.acceptance_histogram[..3], [0, 1, 0]);
    }

    #[test]
    fn limits_and_ends_of_turn_are_told_apart() {
        let finish = |ids: &[u32], reason| {
            ended(generation("x").take(update(ids, Some(reason)), &mut Vec::new())).unwrap()
        };
        let length = finish(&[97], FinishReason::Length);
        assert_eq!((length.finish_reason(), length.matched), ("length", None));
        let whole = finish(&[97, 98], FinishReason::Stop);
        assert_eq!(whole.matched, Some(Matched::EndOfTurn), "of a constraint");
        assert_eq!(whole.completion_tokens, 2);
        let stop = finish(&[97, END_OF_TURN], FinishReason::Stop);
        assert_eq!(stop.matched, Some(Matched::EndOfTurn));
        assert_eq!(stop.completion_tokens, 2);
    }

    #[test]
    fn an_abort_leaves_what_there_was() {
        let last = update(&[97], Some(FinishReason::Aborted));
        let outcome = ended(generation("x").take(last, &mut Vec::new())).unwrap();
        assert_eq!(
            (outcome.finish_reason(), outcome.completion_tokens),
            ("abort", 1)
        );
        // A text that had ended before is complete.
        let mut ending = generation("b");
        ending.take(update(&[98], None), &mut Vec::new());
        let last = update(&[], Some(FinishReason::Aborted));
        let outcome = ended(ending.take(last, &mut Vec::new())).unwrap();
        assert_eq!(outcome.finish_reason(), "stop");
    }

    #[test]
    fn failures_are_no_outcomes() {
        let take = |ids: &[u32], reason| {
            ended(generation("x").take(update(ids, Some(reason)), &mut Vec::new())).unwrap_err()
        };
        assert_eq!(take(&[], FinishReason::Expired), Interruption::Expired);
        let why = || "why".to_owned();
        let failed = take(&[97], FinishReason::Error(why()));
        assert_eq!(failed, Interruption::Failed(why()));
        let innocent = take(&[], FinishReason::Error(why()));
        assert_eq!(innocent, Interruption::NotBegun(why()));
    }
}

//! What a request has done so far: it stays when the request loses its slot.

use std::time::Instant;

use crate::auto::PhiAverage;
use crate::constraint::{Checked, Guarded};
use crate::{Finish, FinishReason, Request, RequestStats, Started, StepRecord};
use model::{Emitted, StepSequence};

/// Output, counters and times of a request since its first admission.
#[derive(Debug)]
pub(crate) struct History {
    /// Emitted tokens.
    pub(crate) output: Vec<u32>,
    /// Acceptance predicted for it.
    pub(crate) phi: PhiAverage,
    /// The request's, behind the emitted tokens; `None`: every token may follow.
    pub(crate) constraint: Option<Guarded>,
    /// Prompt tokens that the prefix cache spared at the first admission.
    pub(crate) cached: usize,
    /// Prompt tokens that were processed at least once, or spared.
    prefilled: usize,
    steps: Vec<StepRecord>,
    submitted: Instant,
    prefill_began: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl History {
    /// Of a request that is admitted for the first time; takes its constraint.
    pub(crate) fn new(request: &mut Request, submitted: Instant, cached: usize) -> Self {
        History {
            output: Vec::new(),
            phi: PhiAverage::default(),
            constraint: request.constraint.take().map(Guarded::new),
            cached,
            prefilled: cached,
            steps: Vec::new(),
            submitted,
            prefill_began: None,
            first_token: None,
            last_token: None,
        }
    }

    /// The report of the first admission, which is now.
    pub(crate) fn started(&self) -> Started {
        Started {
            cached_tokens: self.cached,
            queue_ms: self.submitted.elapsed().as_secs_f64() * 1e3,
        }
    }

    /// When the request came.
    pub(crate) fn submitted(&self) -> Instant {
        self.submitted
    }

    /// A chunk is about to run.
    pub(crate) fn begin_chunk(&mut self, now: Instant) {
        self.prefill_began.get_or_insert(now);
    }

    /// The prefill stands at `end`: how many of the tokens before it were never processed before.
    pub(crate) fn count_prefill(&mut self, end: usize) -> usize {
        let new = end.saturating_sub(self.prefilled);
        self.prefilled += new;
        new
    }

    /// Drops the new tokens that the constraint does not let count, and says whether it ends the
    /// request there.
    pub(crate) fn constrain(&mut self, tokens: &mut Vec<Emitted>) -> Option<FinishReason> {
        let constraint = self.constraint.as_mut()?;
        let Checked { kept, end } = constraint.check(tokens.iter().map(|token| token.id));
        tokens.truncate(kept);
        if constraint.is_released() {
            self.constraint = None;
        }
        end
    }

    /// Tokens were emitted.
    pub(crate) fn emit(&mut self, tokens: impl Iterator<Item = u32>, now: Instant) {
        self.output.extend(tokens);
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
    }

    /// Counts a verify pass; before its tokens are emitted.
    pub(crate) fn count_step(&mut self, step: &StepSequence) {
        let small = |value: usize| u8::try_from(value).expect("a segment has at most 64 rows");
        let emitted = self.output.len();
        self.steps.push(StepRecord {
            before: u32::try_from(emitted).expect("a context has fewer than 2^32 tokens"),
            drafted: small(step.drafted),
            accepted: small(step.accepted),
        });
    }

    /// The terminal report, of which only the first `kept` output tokens count.
    pub(crate) fn finish(&self, prompt: usize, reason: FinishReason, kept: usize) -> Finish {
        let ms = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.duration_since(from).as_secs_f64() * 1e3,
            _ => 0.0,
        };
        let now = Some(Instant::now());
        let mut finish = Finish {
            reason,
            prompt_tokens: prompt,
            cached_tokens: self.cached,
            completion_tokens: self.output.len(),
            stats: RequestStats {
                queue_ms: ms(Some(self.submitted), self.prefill_began.or(now)),
                prefill_ms: ms(self.prefill_began, self.first_token.or(now)),
                decode_ms: ms(self.first_token, self.last_token),
                ..RequestStats::default()
            },
            records: self.steps.clone(),
        };
        finish.trim(kept);
        finish
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::request;

    fn step(history: &mut History, drafted: usize, accepted: usize) {
        let token = Emitted {
            id: 3,
            logprob: None,
        };
        history.count_step(&StepSequence {
            slot: 0,
            tokens: vec![token; accepted + 1],
            rows: 16,
            drafted,
            accepted,
            ended: None,
            not_finite: None,
            prediction: None,
        });
        history.emit(std::iter::repeat_n(3, accepted + 1), Instant::now());
    }

    #[test]
    fn counters_follow_what_the_caller_kept() {
        let mut history = History::new(&mut request(10, 100, 1), Instant::now(), 0);
        history.emit(std::iter::once(3), Instant::now());
        for (drafted, accepted) in [(15, 3), (15, 0), (7, 5)] {
            step(&mut history, drafted, accepted);
        }
        let counters = |kept| {
            let finish = history.finish(10, FinishReason::Finished, kept);
            let stats = finish.stats;
            (
                finish.completion_tokens,
                stats.steps,
                stats.drafted,
                stats.accepted,
            )
        };
        assert_eq!(counters(99), (12, 3, 37, 8));
        assert_eq!(counters(12), (12, 3, 37, 8));
        assert_eq!(counters(11), (11, 3, 37, 8));
        assert_eq!(counters(8), (8, 3, 37, 5));
        assert_eq!(counters(6), (6, 2, 30, 3));
        assert_eq!(counters(3), (3, 1, 15, 2));
        assert_eq!(counters(1), (1, 0, 0, 0));
        assert_eq!(counters(0), (0, 0, 0, 0));
    }
}

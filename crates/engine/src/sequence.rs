//! A request that owns a slot and pages.

use std::ops::Range;
use std::time::Instant;

use crate::auto::PhiAverage;
use crate::constraint::{Checked, Guarded};
use crate::kv_pool::BlockTable;
use crate::state_pool::StateSlot;
use crate::{Finish, FinishReason, Request, RequestId, RequestStats, StepRecord};
use model::{Emitted, StepSequence};

/// A running sequence.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Whose it is.
    pub(crate) id: RequestId,
    /// What was asked for.
    pub(crate) request: Request,
    /// Its slot.
    pub(crate) slot: StateSlot,
    /// Its pages.
    pub(crate) pages: BlockTable,
    /// Tokens to emit at most; 0 = score the prompt only.
    pub(crate) tokens_max: usize,
    /// Acceptance predicted for it.
    pub(crate) phi: PhiAverage,
    /// The request's, behind the emitted tokens; `None`: every token may follow.
    pub(crate) constraint: Option<Guarded>,
    prefilled: usize,
    emitted: usize,
    steps: Vec<StepRecord>,
    submitted: Instant,
    prefill_began: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Sequence {
    /// A sequence before its first chunk.
    pub(crate) fn new(
        id: RequestId,
        mut request: Request,
        tokens_max: usize,
        slot: StateSlot,
        pages: BlockTable,
        submitted: Instant,
    ) -> Self {
        Sequence {
            constraint: request.constraint.take().map(Guarded::new),
            id,
            request,
            slot,
            pages,
            tokens_max,
            phi: PhiAverage::default(),
            prefilled: 0,
            emitted: 0,
            steps: Vec::new(),
            submitted,
            prefill_began: None,
            first_token: None,
            last_token: None,
        }
    }

    /// The prompt is not processed to its end yet.
    pub(crate) fn is_prefilling(&self) -> bool {
        self.prefilled < self.request.prompt.len()
    }

    /// Positions of the next chunk: up to the next multiple of `chunk` or the prompt's end.
    pub(crate) fn next_chunk(&self, chunk: usize) -> Range<usize> {
        let end = (self.prefilled / chunk + 1) * chunk;
        self.prefilled..end.min(self.request.prompt.len())
    }

    /// Output tokens so far.
    pub(crate) fn emitted(&self) -> usize {
        self.emitted
    }

    /// Tokens it may still emit.
    pub(crate) fn tokens_left(&self) -> usize {
        self.tokens_max - self.emitted
    }

    /// Rows that a verify pass can write behind the committed tokens. The newest token is not
    /// committed: it is the root, row 0.
    pub(crate) fn rows_left(&self) -> usize {
        let committed = self.request.prompt.len() + self.emitted - 1;
        self.pages.tokens() - committed
    }

    /// A chunk is about to run.
    pub(crate) fn begin_chunk(&mut self, now: Instant) {
        self.prefill_began.get_or_insert(now);
    }

    /// `tokens` more prompt tokens were processed.
    pub(crate) fn end_chunk(&mut self, tokens: usize) {
        self.prefilled += tokens;
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

    /// `count` tokens were emitted.
    pub(crate) fn emit(&mut self, count: usize, now: Instant) {
        self.emitted += count;
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
    }

    /// Counts a verify pass; before its tokens are emitted.
    pub(crate) fn count_step(&mut self, step: &StepSequence) {
        let small = |value: usize| u8::try_from(value).expect("a segment has at most 64 rows");
        self.steps.push(StepRecord {
            before: u32::try_from(self.emitted).expect("a context has fewer than 2^32 tokens"),
            drafted: small(step.drafted),
            accepted: small(step.accepted),
        });
    }

    /// The terminal report, of which only the first `kept` output tokens count.
    pub(crate) fn finish(&self, reason: FinishReason, kept: usize) -> Finish {
        let ms = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.duration_since(from).as_secs_f64() * 1e3,
            _ => 0.0,
        };
        let now = Some(Instant::now());
        let mut finish = Finish {
            reason,
            prompt_tokens: self.request.prompt.len(),
            completion_tokens: self.emitted,
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
    use model::{Emitted, SamplingParams};

    use super::*;
    use crate::kv_pool::KvPool;
    use crate::state_pool::StatePool;

    fn sequence(prompt: usize, tokens_max: usize) -> Sequence {
        let request = Request {
            priority: 0,
            prompt: vec![1; prompt],
            sampling: SamplingParams::default(),
            max_tokens: tokens_max,
            min_tokens: 0,
            stop_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            trace: false,
            speculative: true,
            shape: None,
            constraint: None,
        };
        let slot = StatePool::new(1).reserve().expect("a slot is free");
        let pages = KvPool::new(8)
            .reserve(prompt + tokens_max)
            .expect("pages are free");
        Sequence::new(
            RequestId(1),
            request,
            tokens_max,
            slot,
            pages,
            Instant::now(),
        )
    }

    fn step(sequence: &mut Sequence, drafted: usize, accepted: usize) {
        let token = Emitted {
            id: 3,
            logprob: None,
        };
        sequence.count_step(&StepSequence {
            slot: 0,
            tokens: vec![token; accepted + 1],
            rows: 16,
            drafted,
            accepted,
            ended: None,
            not_finite: None,
            prediction: None,
        });
        sequence.emit(accepted + 1, Instant::now());
    }

    #[test]
    fn chunks_start_at_multiples_and_end_at_the_prompts_end() {
        let mut sequence = sequence(150, 10);
        let mut chunks = Vec::new();
        while sequence.is_prefilling() {
            let chunk = sequence.next_chunk(64);
            chunks.push(chunk.clone());
            sequence.end_chunk(chunk.len());
        }
        assert_eq!(chunks, [0..64, 64..128, 128..150]);
    }

    #[test]
    fn rows_end_with_the_pages() {
        let mut sequence = sequence(60, 70);
        sequence.end_chunk(60);
        sequence.emit(1, Instant::now());
        assert_eq!(
            (sequence.rows_left(), sequence.tokens_left()),
            (192 - 60, 69)
        );
        sequence.emit(69, Instant::now());
        assert_eq!(
            (sequence.rows_left(), sequence.tokens_left()),
            (192 - 129, 0)
        );
    }

    #[test]
    fn counters_follow_what_the_caller_kept() {
        let mut sequence = sequence(10, 100);
        sequence.end_chunk(10);
        sequence.emit(1, Instant::now());
        for (drafted, accepted) in [(15, 3), (15, 0), (7, 5)] {
            step(&mut sequence, drafted, accepted);
        }
        let counters = |kept| {
            let finish = sequence.finish(FinishReason::Finished, kept);
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

//! A request that owns a slot and pages.

use std::ops::Range;

use crate::history::History;
use crate::kv_pool::BlockTable;
use crate::prefix_cache::Reservation;
use crate::prefix_cache::boundaries::Boundaries;
use crate::state_pool::StateSlot;
use crate::{Finish, FinishReason, Request, RequestId};
use ops::PAGE_TOKENS;

/// What a sequence does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its prompt is not processed to its end.
    Prefill,
    /// It emitted tokens before it lost a slot, and they are not processed to their end.
    Replay,
    /// It emits tokens.
    Decode,
}

/// Places for states that decoding passes.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// The place of the next one.
    pub(crate) begun: Option<Reservation>,
    /// The latest one, and its position.
    pub(crate) kept: Option<(usize, Reservation)>,
}

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
    /// Of these, how many the runner knows.
    pub(crate) pages_told: usize,
    /// Tokens to emit at most; 0 = score the prompt only.
    pub(crate) tokens_max: usize,
    /// What it has done since its first admission.
    pub(crate) history: History,
    /// Where its prefill stops to keep its state; `None`: nowhere.
    pub(crate) boundaries: Option<Boundaries>,
    /// See [`Decoded`].
    pub(crate) decoded: Decoded,
    /// Prompt tokens that are processed.
    prefilled: usize,
    /// Which tokens of the history's output must be processed again. The newest at admission is not
    /// among them: the next step processes it.
    replay: Range<usize>,
}

impl Sequence {
    /// A sequence of which `resumed` prompt tokens need not be computed.
    pub(crate) fn new(
        (id, request, history): (RequestId, Request, History),
        tokens_max: usize,
        (slot, pages): (StateSlot, BlockTable),
        resumed: usize,
    ) -> Self {
        Sequence {
            replay: 0..history.output.len().saturating_sub(1),
            id,
            request,
            slot,
            pages,
            pages_told: 0,
            tokens_max,
            history,
            boundaries: None,
            decoded: Decoded::default(),
            prefilled: resumed,
        }
    }

    /// See [`Stage`].
    pub(crate) fn stage(&self) -> Stage {
        if self.prefilled < self.request.prompt.len() {
            Stage::Prefill
        } else if !self.replay.is_empty() {
            Stage::Replay
        } else {
            Stage::Decode
        }
    }

    /// Prompt tokens that are processed.
    pub(crate) fn prefilled(&self) -> usize {
        self.prefilled
    }

    /// Prompt tokens that are not.
    pub(crate) fn to_prefill(&self) -> usize {
        self.request.prompt.len() - self.prefilled
    }

    /// Positions of the next chunk of at most `budget` tokens: up to the next boundary or the
    /// prompt's end. Elsewhere it ends at a multiple of 64, since only there a prefill may be cut
    /// without a trace; empty if the budget does not reach one.
    pub(crate) fn next_chunk(&self, budget: usize) -> Range<usize> {
        let start = self.prefilled;
        let boundary = self.boundaries.as_ref().and_then(|all| all.after(start));
        let end = boundary.unwrap_or(self.request.prompt.len());
        if end - start <= budget {
            return start..end;
        }
        let cut = (start + budget) / PAGE_TOKENS * PAGE_TOKENS;
        start..cut.max(start)
    }

    /// The prompt's end gives the first output token.
    pub(crate) fn wants_first(&self) -> bool {
        self.tokens_max > 0 && self.history.output.is_empty()
    }

    /// The next emitted tokens to process again, at most `rows`.
    pub(crate) fn next_replay(&self, rows: usize) -> &[u32] {
        let count = self.replay.len().min(rows);
        &self.history.output[self.replay.start..][..count]
    }

    /// So many more emitted tokens were processed again.
    pub(crate) fn end_replay(&mut self, tokens: usize) {
        self.replay.start += tokens;
    }

    /// Output tokens so far.
    pub(crate) fn emitted(&self) -> usize {
        self.history.output.len()
    }

    /// Tokens it may still emit.
    pub(crate) fn tokens_left(&self) -> usize {
        self.tokens_max - self.emitted()
    }

    /// Tokens whose keys and values exist while it decodes. The newest token is not among them: it
    /// is the root, row 0 of the next step.
    pub(crate) fn committed(&self) -> usize {
        self.request.prompt.len() + self.emitted() - 1
    }

    /// Rows that a verify pass can write behind the committed tokens.
    pub(crate) fn rows_left(&self) -> usize {
        self.pages.tokens().saturating_sub(self.committed())
    }

    /// `tokens` more prompt tokens were processed.
    pub(crate) fn end_chunk(&mut self, tokens: usize) {
        self.prefilled += tokens;
    }

    /// The terminal report, of which only the first `kept` output tokens count.
    pub(crate) fn finish(&self, reason: FinishReason, kept: usize) -> Finish {
        self.history.finish(self.request.prompt.len(), reason, kept)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::kv_pool::KvPool;
    use crate::state_pool::StatePool;
    use crate::tests::request;

    fn sequence(prompt: usize, emitted: usize) -> Sequence {
        let mut request = request(prompt, 100, 1);
        let mut history = History::new(&mut request, Instant::now(), 0);
        if emitted > 0 {
            history.emit(0..emitted as u32, Instant::now());
        }
        let slot = StatePool::new(1).reserve().expect("a slot is free");
        let pages = KvPool::new(8).reserve(prompt + 70).expect("pages are free");
        Sequence::new((RequestId(1), request, history), 100, (slot, pages), 0)
    }

    fn chunks(sequence: &mut Sequence, budget: usize) -> Vec<Range<usize>> {
        let mut chunks = Vec::new();
        while sequence.stage() == Stage::Prefill {
            let next = sequence.next_chunk(budget);
            assert!(!next.is_empty(), "a budget of 64 always reaches further");
            sequence.end_chunk(next.len());
            chunks.push(next);
        }
        chunks
    }

    #[test]
    fn budgets_cut_chunks_at_pages_only() {
        let mut cut = sequence(300, 0);
        assert_eq!(
            chunks(&mut cut, 100),
            [0..64, 64..128, 128..192, 192..256, 256..300]
        );
        assert_eq!(chunks(&mut sequence(150, 0), 128), [0..128, 128..150]);
        let mut sequence = sequence(300, 0);
        assert!(sequence.next_chunk(63).is_empty());
        sequence.end_chunk(256);
        assert_eq!(sequence.next_chunk(44), 256..300);
        assert!(sequence.next_chunk(43).is_empty());
    }

    #[test]
    fn chunks_stop_where_a_state_is_kept() {
        let mut sequence = sequence(300, 0);
        sequence.boundaries = Some(Boundaries::new(128, Some(200), None, 300));
        assert_eq!(
            chunks(&mut sequence, 256),
            [0..128, 128..192, 192..256, 256..300]
        );
    }

    #[test]
    fn emitted_tokens_but_the_newest_are_replayed() {
        let mut sequence = sequence(10, 20);
        assert_eq!(sequence.stage(), Stage::Prefill);
        sequence.end_chunk(10);
        let mut replays = Vec::new();
        while sequence.stage() == Stage::Replay {
            let tokens = sequence.next_replay(8).to_vec();
            sequence.end_replay(tokens.len());
            replays.push(tokens.len());
        }
        assert_eq!((replays, sequence.committed()), (vec![8, 8, 3], 29));
        sequence.history.emit(0..5, Instant::now());
        assert_eq!(
            sequence.stage(),
            Stage::Decode,
            "a step processes what it emits"
        );
    }

    #[test]
    fn rows_end_with_the_pages() {
        let mut sequence = sequence(60, 1);
        sequence.end_chunk(60);
        assert_eq!(
            (sequence.rows_left(), sequence.tokens_left()),
            (192 - 60, 99)
        );
        sequence.history.emit(0..69, Instant::now());
        assert_eq!(
            (sequence.rows_left(), sequence.tokens_left()),
            (192 - 129, 30)
        );
    }
}

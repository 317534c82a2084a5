//! Pages for sequences that grow, and sequences that give theirs up.

use super::{Scheduler, Waiting};
use crate::RequestId;
use crate::sequence::{Sequence, Stage};

/// Lower goes on, higher gives way.
fn rank(sequence: &Sequence) -> (i64, RequestId) {
    (sequence.request.priority, sequence.id)
}

impl Scheduler {
    /// Gives a decoding sequence pages for `rows` rows behind its committed tokens, as far as the
    /// context goes, from those that are free or that only the cache holds. `false`, and it has what it
    /// had, if there are too few.
    pub(crate) fn grow(&mut self, index: usize, rows: usize) -> bool {
        let sequence = &mut self.running[index];
        let tokens = (sequence.committed() + rows).min(self.limits.context);
        let missing = tokens
            .div_ceil(ops::PAGE_TOKENS)
            .saturating_sub(sequence.pages.pages().len());
        if let (Some(cache), Some(short)) = (&mut self.cache, missing.checked_sub(self.kv.free()))
            && short > 0
        {
            cache.evict_pages(&mut self.kv, short);
        }
        self.kv.extend(&mut sequence.pages, tokens)
    }

    /// Gives every decoding sequence at least a row, the most urgent first, and sends others back
    /// to the queue for that. Returns who
    /// was sent back, and the lengths of their prompts.
    pub(crate) fn make_room(&mut self) -> Vec<(RequestId, usize)> {
        let mut order: Vec<_> = (self.running.iter())
            .filter(|sequence| sequence.stage() == Stage::Decode)
            .map(rank)
            .collect();
        order.sort_unstable();
        let mut sent_back = Vec::new();
        for (_, id) in order {
            while let Some(index) = self.find(id)
                && !self.grow(index, 1)
            {
                let last = self.running.iter().enumerate();
                let last = last.max_by_key(|(_, sequence)| rank(sequence));
                let victim = last.expect("it runs itself").0;
                let sequence = &self.running[victim];
                sent_back.push((sequence.id, sequence.request.prompt.len()));
                self.preempt(victim);
            }
        }
        sent_back
    }

    /// Sends a running sequence back to the queue, with all that it has done.
    pub(crate) fn preempt(&mut self, index: usize) {
        let (id, request, history) = self.take(index);
        self.waiting.push(Waiting {
            id,
            submitted: history.submitted(),
            request,
            history: Some(history),
        });
    }
}

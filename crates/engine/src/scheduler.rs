//! Who waits, who runs, and what the next call to the runner is.

mod admission;
mod paging;
mod queue;
#[cfg(test)]
mod tests;

use std::ops::Range;

use ops::PAGE_TOKENS;

use crate::chunk_shares::shares;
use crate::history::History;
use crate::kv_pool::KvPool;
use crate::prefix_cache::PrefixCache;
use crate::sequence::{Sequence, Stage};
use crate::state_pool::StatePool;
use crate::{Request, RequestId};

pub(crate) use admission::Admission;
pub(crate) use queue::{Queue, Waiting};

/// A chunk of a running sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlan {
    /// Index in [`Scheduler::running`].
    pub(crate) index: usize,
    /// Positions of its tokens.
    pub(crate) range: Range<usize>,
}

/// What to run next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing runs.
    Idle,
    /// One step of all sequences that decode.
    Decode,
    /// One prefill call.
    Prefill(Vec<ChunkPlan>),
    /// One call that processes emitted tokens of these again, so many of each.
    Replay(Vec<(usize, usize)>),
}

/// The kinds of work, in the order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Decode,
    Prefill,
    Replay,
}

impl Turn {
    fn next(self) -> Turn {
        match self {
            Turn::Decode => Turn::Prefill,
            Turn::Prefill => Turn::Replay,
            Turn::Replay => Turn::Decode,
        }
    }
}

/// Sizes that admission and calls obey.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulerLimits {
    /// Longest prompt and output.
    pub(crate) context: usize,
    /// Rows of a round, which is a step and a prefill call; a multiple of 64.
    pub(crate) chunk: usize,
    /// Rows of one sequence in a step.
    pub(crate) tree_rows: usize,
    /// Tokens of one sequence in a replay.
    pub(crate) replay_rows: usize,
    /// Tokens of all sequences in a replay.
    pub(crate) replay_rows_all: usize,
    /// Tokens between the states that a prefill keeps.
    pub(crate) interval: usize,
}

/// First come, first served among requests of the same priority; nobody overtakes the head of the
/// queue. A request runs from when a slot and pages for its prompt and one verify block are free; it
/// takes more pages as it grows, and where none is free the last one in the queue's order goes
/// back to the queue. The first one therefore always goes on.
///
/// Work comes in rounds of a step, a prefill call and a replay, of which what is not due is left
/// out, so that none starves.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// Requests that wait.
    pub(crate) waiting: Queue,
    /// In order of admission.
    pub(crate) running: Vec<Sequence>,
    /// Pages.
    pub(crate) kv: KvPool,
    /// Slots.
    pub(crate) slots: StatePool,
    /// Prompts of before; `None` = nothing is kept.
    pub(crate) cache: Option<PrefixCache>,
    limits: SchedulerLimits,
    turn: Turn,
    /// Rows of the last step of this round.
    step_rows: usize,
    /// The head of the queue when it found no room, and how much of it there was.
    blocked: Option<(RequestId, usize, usize)>,
}

impl Scheduler {
    /// An idle scheduler.
    pub(crate) fn new(
        kv: KvPool,
        slots: StatePool,
        cache: Option<PrefixCache>,
        limits: SchedulerLimits,
    ) -> Self {
        Scheduler {
            waiting: Queue::default(),
            running: Vec::with_capacity(slots.total()),
            kv,
            slots,
            cache,
            limits,
            turn: Turn::Replay,
            step_rows: 0,
            blocked: None,
        }
    }

    /// Neither queue nor slots hold a request.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Index of a running request.
    pub(crate) fn find(&self, id: RequestId) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.id == id)
    }

    /// Indices of the sequences that decode.
    pub(crate) fn decoding(&self) -> Vec<usize> {
        self.in_stage(Stage::Decode).collect()
    }

    fn in_stage(&self, stage: Stage) -> impl Iterator<Item = usize> {
        let running = self.running.iter().enumerate();
        running.filter_map(move |(index, sequence)| (sequence.stage() == stage).then_some(index))
    }

    /// Ends a running sequence: slot and pages are free again.
    pub(crate) fn release(&mut self, index: usize) {
        self.take(index);
    }

    /// Takes a sequence out of its slot and its pages.
    fn take(&mut self, index: usize) -> (RequestId, Request, History) {
        let sequence = self.running.remove(index);
        self.kv.release(sequence.pages);
        self.slots.release(sequence.slot);
        let kept = sequence.decoded.kept.map(|(_, reservation)| reservation);
        for reservation in kept.into_iter().chain(sequence.decoded.begun) {
            let cache = self.cache.as_mut().expect("it reserved the place");
            cache.cancel(reservation);
        }
        (sequence.id, sequence.request, sequence.history)
    }

    /// What to run next: the first kind of work that is due behind the last one.
    pub(crate) fn next_work(&mut self) -> Work {
        for _ in 0..3 {
            self.turn = self.turn.next();
            let work = match self.turn {
                Turn::Decode => {
                    self.step_rows = 0;
                    self.in_stage(Stage::Decode).next().map(|_| Work::Decode)
                }
                Turn::Prefill => Some(self.chunks())
                    .filter(|all| !all.is_empty())
                    .map(Work::Prefill),
                Turn::Replay => Some(self.replays())
                    .filter(|all| !all.is_empty())
                    .map(Work::Replay),
            };
            if let Some(work) = work {
                return work;
            }
        }
        Work::Idle
    }

    /// A step had so many rows: the prefill call of this round has fewer.
    pub(crate) fn count_step(&mut self, rows: usize) {
        self.step_rows = rows;
    }

    /// Chunks for what the step has left of the round's rows, in whole pages and at least one.
    fn chunks(&self) -> Vec<ChunkPlan> {
        let indices: Vec<usize> = self.in_stage(Stage::Prefill).collect();
        let left: Vec<usize> = (indices.iter())
            .map(|&index| self.running[index].to_prefill())
            .collect();
        let taken = self.step_rows / PAGE_TOKENS * PAGE_TOKENS;
        let budget = (self.limits.chunk.saturating_sub(taken)).max(PAGE_TOKENS);
        let plans = indices.iter().zip(shares(&left, budget));
        plans
            .map(|(&index, share)| ChunkPlan {
                index,
                range: self.running[index].next_chunk(share),
            })
            .filter(|plan| !plan.range.is_empty())
            .collect()
    }

    fn replays(&self) -> Vec<(usize, usize)> {
        let mut rows = self.limits.replay_rows_all;
        let mut replays = Vec::new();
        for index in self.in_stage(Stage::Replay) {
            let most = self.limits.replay_rows.min(rows);
            let tokens = self.running[index].next_replay(most).len();
            rows -= tokens;
            if tokens > 0 {
                replays.push((index, tokens));
            }
        }
        replays
    }

    /// Pages that sequences hold.
    pub(crate) fn pages_used(&self) -> usize {
        self.kv.used() - self.kv.only_cached()
    }

    /// With nothing running every page that the cache does not hold and every slot must be free;
    /// says what is wrong otherwise.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let cached = match &self.cache {
            Some(cache) => {
                cache.audit_idle()?;
                cache.pages().collect()
            }
            None => Vec::new(),
        };
        self.kv.audit(cached)?;
        self.slots.audit()
    }
}

//! Who waits, who runs, and what the next call to the runner is.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crate::kv_pool::KvPool;
use crate::sequence::Sequence;
use crate::state_pool::StatePool;
use crate::{Request, RequestId};

/// A request in the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Whose it is.
    pub(crate) id: RequestId,
    /// What was asked for.
    pub(crate) request: Request,
    /// When.
    pub(crate) submitted: Instant,
}

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
    /// One prefill call.
    Prefill(Vec<ChunkPlan>),
    /// One step of these running sequences.
    Decode(Vec<usize>),
}

/// Sizes that admission and chunks obey.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulerLimits {
    /// Longest prompt and output.
    pub(crate) context: usize,
    /// Chunks start at multiples of this; also the rows of one prefill call.
    pub(crate) chunk: usize,
    /// Rows of one sequence in a step.
    pub(crate) tree_rows: usize,
}

/// First come, first served among requests of the same priority: the head of the queue waits until a slot and pages for its prompt and
/// its longest output are free, and nobody overtakes it. Prefill calls and decode steps alternate
/// while both are due, so neither starves.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// Requests in the queue.
    pub(crate) waiting: VecDeque<Waiting>,
    /// In order of admission.
    pub(crate) running: Vec<Sequence>,
    /// Pages.
    pub(crate) kv: KvPool,
    /// Slots.
    pub(crate) slots: StatePool,
    limits: SchedulerLimits,
    prefilled_last: bool,
}

impl Scheduler {
    /// An idle scheduler.
    pub(crate) fn new(kv: KvPool, slots: StatePool, limits: SchedulerLimits) -> Self {
        Scheduler {
            waiting: VecDeque::new(),
            running: Vec::with_capacity(slots.total()),
            kv,
            slots,
            limits,
            prefilled_last: false,
        }
    }

    /// Neither queue nor slots hold a request.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Puts a request behind all that are as urgent as it is.
    pub(crate) fn queue(&mut self, waiting: Waiting) {
        let ahead = |other: &Waiting| other.request.priority <= waiting.request.priority;
        let place = self.waiting.partition_point(ahead);
        self.waiting.insert(place, waiting);
    }

    /// Whether a request is in the queue.
    pub(crate) fn is_waiting(&self, id: RequestId) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == id)
    }

    /// Moves the head of the queue into a slot, if one and enough pages are free.
    pub(crate) fn admit(&mut self) -> Option<&Sequence> {
        let head = self.waiting.front()?;
        if self.slots.used() == self.slots.total() {
            return None;
        }
        let prompt = head.request.prompt.len();
        let tokens_max = head.request.max_tokens.min(self.limits.context - prompt);
        // The last verify pass may write `tree_rows - 1` rows behind the last token. A prompt that
        // is only scored owns the place of one token all the same: a slot always has an output.
        let longest = prompt + tokens_max.max(1) + self.limits.tree_rows - 1;
        let pages = self.kv.reserve(longest.min(self.limits.context))?;
        let slot = self.slots.reserve().expect("a slot is free");
        let Waiting {
            id,
            request,
            submitted,
        } = self.waiting.pop_front().expect("the queue has a head");
        let sequence = Sequence::new(id, request, tokens_max, slot, pages, submitted);
        self.running.push(sequence);
        self.running.last()
    }

    /// Takes a request out of the queue.
    pub(crate) fn remove_waiting(&mut self, id: RequestId) -> Option<Waiting> {
        let index = self.waiting.iter().position(|waiting| waiting.id == id)?;
        self.waiting.remove(index)
    }

    /// Index of a running request.
    pub(crate) fn find(&self, id: RequestId) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.id == id)
    }

    /// Ends a running sequence: its slot and pages are free again.
    pub(crate) fn release(&mut self, index: usize) {
        let sequence = self.running.remove(index);
        self.kv.release(sequence.pages);
        self.slots.release(sequence.slot);
    }

    /// What to run next.
    pub(crate) fn next_work(&mut self) -> Work {
        let mut chunks = Vec::new();
        let mut decoding = Vec::new();
        let mut rows = 0;
        for (index, sequence) in self.running.iter().enumerate() {
            if !sequence.is_prefilling() {
                decoding.push(index);
                continue;
            }
            let range = sequence.next_chunk(self.limits.chunk);
            if rows + range.len() <= self.limits.chunk {
                rows += range.len();
                chunks.push(ChunkPlan { index, range });
            }
        }
        let prefill = !chunks.is_empty() && (decoding.is_empty() || !self.prefilled_last);
        self.prefilled_last = prefill;
        if prefill {
            Work::Prefill(chunks)
        } else if decoding.is_empty() {
            Work::Idle
        } else {
            Work::Decode(decoding)
        }
    }

    /// With nothing running every page and slot must be free; says what is wrong otherwise.
    pub(crate) fn audit(&self) -> Result<(), String> {
        self.kv.audit([])?;
        self.slots.audit()
    }
}

#[cfg(test)]
mod tests {
    use model::SamplingParams;

    use super::*;

    fn scheduler(pages: usize, slots: usize) -> Scheduler {
        let limits = SchedulerLimits {
            context: 512,
            chunk: 128,
            tree_rows: 16,
        };
        Scheduler::new(KvPool::new(pages), StatePool::new(slots), limits)
    }

    fn submit(scheduler: &mut Scheduler, id: u64, prompt: usize, max_tokens: usize) {
        submit_at(scheduler, id, prompt, max_tokens, 0);
    }

    fn submit_at(
        scheduler: &mut Scheduler,
        id: u64,
        prompt: usize,
        max_tokens: usize,
        priority: i64,
    ) {
        scheduler.queue(Waiting {
            id: RequestId(id),
            request: Request {
                priority,
                prompt: vec![0; prompt],
                sampling: SamplingParams::default(),
                max_tokens,
                min_tokens: 0,
                stop_ids: Vec::new(),
                logprobs: None,
                prompt_logprobs: None,
                trace: false,
                speculative: true,
                shape: None,
                cache_salt: None,
                turn_end: None,
                constraint: None,
            },
            submitted: Instant::now(),
        });
    }

    fn admit_all(scheduler: &mut Scheduler) -> Vec<u64> {
        std::iter::from_fn(|| scheduler.admit().map(|sequence| sequence.id.0)).collect()
    }

    fn run(scheduler: &mut Scheduler, work: &Work) {
        if let Work::Prefill(chunks) = work {
            for chunk in chunks {
                scheduler.running[chunk.index].end_chunk(chunk.range.len());
            }
        }
    }

    #[test]
    fn nobody_overtakes_the_head_of_the_queue() {
        let mut scheduler = scheduler(8, 4);
        submit(&mut scheduler, 1, 200, 100);
        submit(&mut scheduler, 2, 300, 200);
        submit(&mut scheduler, 3, 10, 10);
        assert_eq!(admit_all(&mut scheduler), [1]);
        assert_eq!(scheduler.kv.used(), 5, "200 + 100 + 15 tokens");
        scheduler.release(0);
        assert_eq!(
            admit_all(&mut scheduler),
            [2],
            "the pool is full with 512 tokens"
        );
        scheduler.release(0);
        assert_eq!(admit_all(&mut scheduler), [3]);
        scheduler.release(0);
        scheduler.audit().expect("everything came back");
    }

    #[test]
    fn urgent_requests_go_first_and_equal_ones_in_order() {
        let mut scheduler = scheduler(64, 8);
        for (id, priority) in [(1, 0), (2, 5), (3, -1), (4, 0), (5, i64::MIN), (6, -1)] {
            submit_at(&mut scheduler, id, 10, 10, priority);
        }
        assert_eq!(admit_all(&mut scheduler), [5, 3, 6, 1, 4, 2]);
    }

    #[test]
    fn output_is_lowered_to_the_context_and_slots_limit_too() {
        let mut scheduler = scheduler(64, 2);
        for id in 1..=3 {
            submit(&mut scheduler, id, 500, usize::MAX / 2);
        }
        assert_eq!(admit_all(&mut scheduler), [1, 2]);
        assert_eq!(scheduler.running[0].tokens_max, 12);
        assert_eq!(scheduler.running[0].pages.pages().len(), 8);
    }

    #[test]
    fn a_prompt_that_is_only_scored_has_room_for_one_token() {
        let mut scheduler = scheduler(64, 1);
        scheduler.limits.tree_rows = 1;
        submit(&mut scheduler, 1, 64, 0);
        let sequence = scheduler.admit().expect("everything is free");
        assert_eq!((sequence.tokens_max, sequence.pages.tokens()), (0, 128));
    }

    #[test]
    fn short_prompts_share_a_call_and_long_ones_alternate_with_steps() {
        let mut scheduler = scheduler(64, 8);
        for (id, prompt) in [(1, 40), (2, 300), (3, 50), (4, 60)] {
            submit(&mut scheduler, id, prompt, 20);
        }
        admit_all(&mut scheduler);
        let mut kinds = Vec::new();
        for _ in 0..8 {
            let work = scheduler.next_work();
            run(&mut scheduler, &work);
            kinds.push(match work {
                Work::Idle => "idle".to_string(),
                Work::Decode(indices) => format!("decode {indices:?}"),
                Work::Prefill(chunks) => {
                    let list: Vec<_> = chunks.iter().map(|c| (c.index, c.range.clone())).collect();
                    format!("prefill {list:?}")
                }
            });
        }
        let expected = [
            "prefill [(0, 0..40), (2, 0..50)]",
            "decode [0, 2]",
            "prefill [(1, 0..128)]",
            "decode [0, 2]",
            "prefill [(1, 128..256)]",
            "decode [0, 2]",
            "prefill [(1, 256..300), (3, 0..60)]",
            "decode [0, 1, 2, 3]",
        ];
        assert_eq!(kinds, expected);
    }
}

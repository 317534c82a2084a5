//! Whether everybody gets on.

use std::collections::BTreeMap;

use super::setting::Setting;
use crate::RequestId;
use crate::scheduler::Scheduler;
use crate::sequence::{Sequence, Stage};

/// Priority and id: who goes first.
pub(super) type Rank = (i64, RequestId);

/// Calls of a round.
const ROUND: u64 = 3;

/// A running sequence as it was behind a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) rank: Rank,
    pub(super) stage: Stage,
    done: usize,
    /// The turn that `done` is of.
    since: u64,
}

/// See the module.
pub(super) struct Progress {
    pub(super) running: BTreeMap<RequestId, Seen>,
    /// Who was the first of those that prefill and of those that replay, and since when without
    /// getting on.
    first: [Option<(RequestId, usize, u64)>; 2],
    /// The most urgent of all that wait or run, and since when it stands still.
    urgent: Option<(RequestId, usize, u64)>,
    /// Turns in which anybody who runs gets on, and in which the most urgent starts.
    bounds: (u64, u64),
}

pub(super) fn rank(sequence: &Sequence) -> Rank {
    (sequence.request.priority, sequence.id)
}

/// Tokens that were processed, those that have to be once more not among them.
fn done(sequence: &Sequence) -> usize {
    // The replay and the rest are counted from the same end, so that both only grow.
    let again = sequence.next_replay(usize::MAX).len();
    sequence.prefilled() + 2 * sequence.emitted() - again
}

/// `now` if something was done since, else what was before.
fn since(
    before: Option<(RequestId, usize, u64)>,
    now: (RequestId, usize, u64),
) -> (RequestId, usize, u64) {
    match before {
        Some(before) if (before.0, before.1) == (now.0, now.1) => before,
        _ => now,
    }
}

impl Progress {
    pub(super) fn new(setting: &Setting) -> Self {
        let setup = &setting.setup;
        let (context, slots) = (setup.context as u64, setup.running_max as u64);
        // One page of one prompt, or one token of one replay, for each round.
        let replay = setting.settings().0.runner.replay_rows_max() as u64;
        let one = context.div_ceil(64) + 1 + context.div_ceil(replay);
        let all = ROUND * (slots * one + 1);
        Progress {
            running: BTreeMap::new(),
            first: [None; 2],
            urgent: None,
            bounds: (all, all + ROUND * (context + 1)),
        }
    }

    /// Looks at what runs behind a turn.
    pub(super) fn look(&mut self, scheduler: &Scheduler, turn: u64) {
        let mut running = BTreeMap::new();
        for sequence in &scheduler.running {
            let (id, stage) = (sequence.id, sequence.stage());
            let done = done(sequence);
            let before = self.running.get(&id);
            let before = before.filter(|before| before.done == done && before.stage == stage);
            let since = before.map_or(turn, |before| before.since);
            let still = turn - since;
            let most = match stage {
                Stage::Decode => ROUND,
                Stage::Prefill | Stage::Replay => self.bounds.0,
            };
            assert!(
                still <= most,
                "{id:?} stood still in {stage:?} for {still} turns"
            );
            let rank = rank(sequence);
            running.insert(
                id,
                Seen {
                    rank,
                    stage,
                    done,
                    since,
                },
            );
        }
        self.running = running;
        self.look_at_first(scheduler, turn);
        self.look_at_urgent(scheduler, turn);
    }

    /// The first of a stage gets on in every round.
    fn look_at_first(&mut self, scheduler: &Scheduler, turn: u64) {
        for (first, stage) in self.first.iter_mut().zip([Stage::Prefill, Stage::Replay]) {
            let mut all = scheduler.running.iter();
            let now = all.find(|sequence| sequence.stage() == stage);
            *first = now.map(|now| since(*first, (now.id, done(now), turn)));
            if let Some((id, _, since)) = *first {
                assert!(
                    turn - since <= ROUND,
                    "{id:?}, first in {stage:?}, stood still"
                );
            }
        }
    }

    fn look_at_urgent(&mut self, scheduler: &Scheduler, turn: u64) {
        let running = scheduler.running.iter();
        let running = running.map(|sequence| (rank(sequence), done(sequence)));
        let waiting = scheduler.waiting.iter();
        let waiting = waiting.map(|waiting| ((waiting.request.priority, waiting.id), 0));
        let first = running.chain(waiting).min();
        self.urgent = first.map(|(rank, done)| since(self.urgent, (rank.1, done, turn)));
        if let Some((id, _, since)) = self.urgent {
            let most = self.bounds.1;
            assert!(turn - since <= most, "{id:?} comes first and stands still");
        }
    }
}

//! An engine without its thread, and those who use it.

use std::sync::mpsc::channel;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::arrivals::Arrivals;
use super::coverage::Coverage;
use super::invariants;
use super::ledger::{Ledger, is_broken};
use super::progress::{Progress, Rank};
use super::setting::Setting;
use crate::handle::Command;
use crate::scheduler::Waiting;
use crate::sequence::Stage;
use crate::tests::single::Single;
use crate::{EngineStats, FinishReason, RequestId, SubmitError};

/// Turns within which everything that was taken must have ended.
const DRAIN_TURNS: u64 = 100_000;
/// Kinds of commands that end requests, by what the request does.
const PHASES: usize = 5;

/// See the module.
pub(super) struct World {
    pub(super) setting: Setting,
    pub(super) coverage: Coverage,
    pub(super) turn: u64,
    random: Pcg64,
    engine: Single,
    arrivals: Arrivals,
    ledger: Ledger,
    progress: Progress,
    /// Counters behind the last turn.
    stats: EngineStats,
    /// Copies of snapshots behind the last turn.
    filled: u64,
    /// Whether requests come now.
    busy: bool,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Pcg64::seed_from_u64(seed);
        let setting = Setting::new(&mut random);
        let engine = Single::new(&setting.setup, setting.auto());
        let decoded = setting.setup.cache.is_some_and(|cache| cache.0.decoded);
        World {
            coverage: Coverage::default(),
            turn: 0,
            random,
            stats: engine.handle.stats(),
            engine,
            arrivals: Arrivals::default(),
            ledger: Ledger::new(decoded),
            progress: Progress::new(&setting),
            filled: 0,
            busy: true,
            setting,
        }
    }

    /// The whole history.
    pub(super) fn run(&mut self) {
        for _ in 0..self.setting.turns {
            self.act();
            self.step();
        }
        match self.random.random_bool(0.7) {
            true => self.engine.handle.drain(),
            false => {
                self.coverage.count("shutdowns", 1);
                self.engine.handle.shutdown();
                let all: Vec<RequestId> = self.ledger.live.keys().copied().collect();
                for id in all {
                    self.end(id, FinishReason::Aborted, usize::MAX);
                }
            }
        }
        self.engine.step_loop.take_commands();
        let refused = self.engine.handle.submit(crate::tests::request(1, 1, 1));
        assert!(matches!(refused, Err(SubmitError::Unavailable(_))));
        let until = self.turn + DRAIN_TURNS;
        while !self.engine.step_loop.scheduler.is_empty() || !self.ledger.live.is_empty() {
            assert!(self.turn < until, "the engine does not drain");
            self.step();
        }
        self.flush();
        invariants::nothing_is_left(
            &self.engine.step_loop.scheduler,
            &self.engine.handle.stats(),
            &self.ledger,
        );
        self.count_stats();
    }

    /// Commands before a turn.
    fn act(&mut self) {
        let scheduler = &self.engine.step_loop.scheduler;
        let empty = scheduler.is_empty();
        let waiting = scheduler.waiting.iter().count();
        if self.random.random_bool(0.004) || (empty && self.random.random_bool(0.1)) {
            self.busy = empty;
        }
        if self.busy
            && waiting < self.setting.crowd
            && self.random.random_bool(self.setting.arrival)
        {
            self.submit();
        }
        if self.random.random_bool(self.setting.ending) {
            self.end_one();
        }
        if self.random.random_bool(0.01) {
            self.expire();
        }
        if self.random.random_bool(0.01) {
            let id = RequestId(1 << 60);
            self.engine.handle.abort(id);
            self.engine.handle.finish(id, 0);
            self.engine.handle.expire(vec![id]);
        }
        if self.random.random_bool(if empty { 0.1 } else { 0.002 }) {
            self.flush();
        }
        self.engine.step_loop.take_commands();
    }

    fn submit(&mut self) {
        let setup = &self.setting.setup;
        let info = self.engine.handle.info();
        let group = self.arrivals.group(&mut self.random, &self.setting, info);
        let before = self.engine.handle.stats();
        let free = before.slots_total - before.running;
        let room = setup.queue_max == 0 || before.waiting + group.len() <= setup.queue_max + free;
        match self.engine.handle.submit_all(group.clone()) {
            Ok(ids) => {
                assert!(room, "the queue was full");
                self.coverage.count("requests", ids.len() as u64);
                for (id, request) in ids.into_iter().zip(group) {
                    self.ledger.submit(id, request, setup.context);
                }
            }
            Err(error) => {
                let full = matches!(error, SubmitError::QueueFull { .. });
                assert!(full && !room, "{error}");
                self.coverage.count("refused", 1);
            }
        }
        self.engine.step_loop.take_commands();
    }

    /// Requests by what they do: new, sent back, and the stages of those that run.
    fn phases(&self) -> [Vec<RequestId>; PHASES] {
        let mut phases: [Vec<RequestId>; PHASES] = Default::default();
        let scheduler = &self.engine.step_loop.scheduler;
        for waiting in scheduler.waiting.iter() {
            phases[usize::from(waiting.history.is_some())].push(waiting.id);
        }
        for sequence in &scheduler.running {
            let phase = match sequence.stage() {
                Stage::Prefill => 2,
                Stage::Replay => 3,
                Stage::Decode => 4,
            };
            phases[phase].push(sequence.id);
        }
        phases
    }

    /// Aborts or finishes somebody; what is rare is as likely as the rest.
    fn end_one(&mut self) {
        let names = [
            ["aborted new", "finished new"],
            ["aborted preempted", "finished preempted"],
            ["aborted in prefill", "finished in prefill"],
            ["aborted in replay", "finished in replay"],
            ["aborted in decode", "finished in decode"],
        ];
        let phases = self.phases().into_iter().zip(names);
        let phases: Vec<_> = phases.filter(|(ids, _)| !ids.is_empty()).collect();
        if phases.is_empty() {
            return;
        }
        let (ids, [aborted, finished]) = &phases[self.random.random_range(0..phases.len())];
        let id = ids[self.random.random_range(0..ids.len())];
        if self.random.random_bool(0.5) {
            self.coverage.count(aborted, 1);
            self.engine.handle.abort(id);
            self.end(id, FinishReason::Aborted, usize::MAX);
            // Twice is once.
            if self.random.random_bool(0.1) {
                self.engine.handle.finish(id, 0);
            }
        } else {
            let kept = self.random.random_range(0..60);
            self.coverage.count(finished, 1);
            self.engine.handle.finish(id, kept);
            self.end(id, FinishReason::Finished, kept);
        }
        self.engine.step_loop.take_commands();
    }

    /// A command that ends a live request was sent.
    fn end(&mut self, id: RequestId, reason: FinishReason, kept: usize) {
        self.ledger.end(id, reason, kept);
    }

    fn expire(&mut self) {
        let [new, sent_back, others @ ..] = self.phases();
        let mut ids: Vec<RequestId> = Vec::new();
        for _ in 0..self.random.random_range(1..3) {
            if !new.is_empty() {
                let id = new[self.random.random_range(0..new.len())];
                ids.extend((!ids.contains(&id)).then_some(id));
            }
        }
        let rest: Vec<RequestId> = others.into_iter().flatten().chain(sent_back).collect();
        let blocked = !rest.is_empty() && self.random.random_bool(0.3);
        if blocked {
            ids.push(rest[self.random.random_range(0..rest.len())]);
            self.coverage.count("expired in vain", 1);
        }
        self.engine.handle.expire(ids.clone());
        if !blocked {
            self.coverage.count("expired", ids.len() as u64);
            for id in ids {
                self.end(id, FinishReason::Expired, usize::MAX);
            }
        }
        self.engine.step_loop.take_commands();
    }

    fn flush(&mut self) {
        let (done, answer) = channel();
        let command = Command::FlushCache(done);
        self.engine
            .commands
            .send(command)
            .expect("the loop listens");
        let idle = self.engine.step_loop.scheduler.is_empty();
        self.engine.step_loop.take_commands();
        assert_eq!(answer.try_recv(), Ok(idle), "whether the cache was flushed");
        if idle {
            self.ledger.flush();
            self.coverage.count("flushed", 1);
        } else {
            self.coverage.count("flushed in vain", 1);
        }
    }

    /// A turn and everything that must hold behind it.
    fn step(&mut self) {
        self.turn += 1;
        let rank = |waiting: &Waiting| (waiting.request.priority, waiting.id);
        let waiting: Vec<Rank> = self
            .engine
            .step_loop
            .scheduler
            .waiting
            .iter()
            .map(rank)
            .collect();
        let starts = self.progress.starts(&self.engine.step_loop.scheduler);
        self.engine
            .step_loop
            .turn()
            .expect("the stub does not fail");
        self.coverage.count("turns", 1);
        let runner = &mut self.engine.step_loop.runner;
        runner.shapes.lock().expect("nobody panicked").clear();
        let scheduler = &self.engine.step_loop.scheduler;
        for waiting in scheduler.waiting.iter() {
            let again =
                waiting.history.is_some() && self.progress.running.contains_key(&waiting.id);
            if again && waiting.request.prompt_logprobs.is_some() {
                self.coverage.count("preempted while scored", 1);
            }
        }
        let sent_back = scheduler.waiting.iter();
        let sent_back = sent_back.filter_map(|w| Some((w.id, w.history.as_ref()?.cached, 0)));
        let running = scheduler.running.iter();
        let running = running.map(|s| (s.id, s.history.cached, s.prefilled()));
        let here: Vec<_> = running.chain(sent_back).collect();
        self.receive();
        for (id, cached, prefilled) in here {
            self.ledger.watch(id, cached, prefilled);
        }
        let scheduler = &self.engine.step_loop.scheduler;
        invariants::nobody_is_lost(scheduler, &self.ledger);
        invariants::order(scheduler, &waiting, &self.progress, &mut self.coverage);
        invariants::ownership(scheduler);
        let memory = &mut self.engine.step_loop.runner.memory;
        invariants::contents(scheduler, memory, &mut self.filled);
        let stats = self.engine.handle.stats();
        invariants::gauges(scheduler, &stats, &self.stats);
        // Who started may have been sent back at once.
        if stats.preemptions == self.stats.preemptions {
            let mut waiting = scheduler.waiting.iter().map(|waiting| Some(waiting.id));
            let idles = starts.is_some() && waiting.any(|id| id == starts);
            assert!(!idles, "{starts:?} waits though there is room");
        }
        self.stats = stats;
        self.progress.look(scheduler, self.turn);
    }

    fn receive(&mut self) {
        while let Ok(output) = self.engine.outputs.try_recv() {
            let mut ids: Vec<RequestId> = output.updates.iter().map(|u| u.id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), output.updates.len(), "one entry per request");
            for update in &output.updates {
                let Some((live, finish)) = self.ledger.book(update) else {
                    continue;
                };
                self.coverage.count("ended", 1);
                if finish.reason == FinishReason::Blocked {
                    self.coverage.count("constraints blocked", 1);
                }
                if let FinishReason::Error(_) = &finish.reason {
                    let events = ["constraints failed", "not finite"];
                    let broken = is_broken(&finish.reason);
                    self.coverage.count(events[usize::from(broken)], 1);
                }
                if finish.cached_tokens > 0 {
                    self.coverage.count("hits", 1);
                }
                if live.had_slot() {
                    self.ledger.ended += 1;
                }
                let history = [live.request.prompt, live.output].concat();
                if self.random.random_bool(0.5) {
                    let salt = live.request.cache_salt;
                    self.arrivals.remember(&mut self.random, salt, history);
                }
            }
        }
    }

    fn count_stats(&mut self) {
        let stats = self.engine.handle.stats();
        let cache = &stats.prefix_cache;
        let memory = &self.engine.step_loop.runner.memory;
        let resumed = self.engine.step_loop.runner.resumed;
        for (event, times) in [
            ("tokens", stats.generated_tokens),
            ("sequence steps", stats.drafts),
            ("accepted drafts", stats.accepted_tokens),
            ("preemptions", stats.preemptions),
            ("replayed tokens", stats.replayed_tokens),
            ("prompt tokens", stats.prompt_tokens),
            ("hit tokens", cache.hit_tokens),
            ("pages evicted", cache.pages_evicted),
            ("snapshots evicted", cache.snapshots_evicted),
            ("copies to the device", memory.snapshots.filled),
            ("copies to the host", memory.host.filled),
            ("resumed prompts", resumed[0]),
            ("resumed outputs", resumed[1]),
            ("histories", 1),
        ] {
            self.coverage.count(event, times);
        }
    }
}

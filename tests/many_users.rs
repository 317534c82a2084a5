//! What a request gets does not depend on anything that others do or that the engine decides: mode,
//! batch, chunks, preemption and replay, hits and misses of the prefix cache. Random schedules on
//! the bundled pair, against each request alone in plain decoding without a cache.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![allow(dead_code, reason = "the modules serve several tests")]

#[path = "common/catalogue.rs"]
mod catalogue;
#[path = "common/pair.rs"]
mod pair;
#[path = "common/residues.rs"]
mod residues;
#[path = "common/schedule.rs"]
mod schedule;

use std::collections::BTreeMap;
use std::time::Instant;

use catalogue::{Alone, Answer, Catalogue};
use engine::{Engine, EngineStats, FinishReason};
use pair::{Pair, stop};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use schedule::{Heard, House, Leave, Visit, draw_visits, play};

/// What happened, summed over schedules.
#[derive(Debug, Default)]
struct Figures {
    totals: BTreeMap<&'static str, u64>,
    modes: BTreeMap<String, u64>,
}

impl Figures {
    fn add(&mut self, name: &'static str, count: u64) {
        *self.totals.entry(name).or_default() += count;
    }

    fn of(&self, name: &str) -> u64 {
        self.totals.get(name).copied().unwrap_or_default()
    }

    /// Of one schedule.
    fn hear(&mut self, house: &House, visits: &[Visit], heard: &[Heard]) {
        *self.modes.entry(house.mode.to_string()).or_default() += 1;
        for (visit, heard) in visits.iter().zip(heard) {
            let finish = heard.finish.as_ref().unwrap();
            self.add("requests", 1);
            self.add("tokens compared", heard.answer.tokens.len() as u64);
            self.add("accepted drafts", finish.stats.accepted as u64);
            let request = &visit.request;
            for (name, is) in [
                ("with log-probabilities", request.logprobs.is_some()),
                ("with a constraint", request.constraint.is_some()),
                ("with scored prompts", request.prompt_logprobs.is_some()),
                ("aborted", finish.reason == FinishReason::Aborted),
                ("finished by hand", finish.reason == FinishReason::Finished),
                ("ended by a stop id", finish.reason == FinishReason::Stop),
            ] {
                self.add(name, u64::from(is));
            }
            let cached = finish.cached_tokens as u64;
            let looked = house.config.prefix_cache.is_some() && request.prompt_logprobs.is_none();
            self.add("cache hits", u64::from(cached > 0));
            self.add("tokens from the cache", cached);
            self.add("cache misses", u64::from(looked && cached == 0));
        }
    }

    /// Of an engine's life.
    fn count(&mut self, stats: &EngineStats) {
        let cache = &stats.prefix_cache;
        for (name, count) in [
            ("preemptions", stats.preemptions),
            ("tokens replayed", stats.replayed_tokens),
            ("pages evicted", cache.pages_evicted),
            ("snapshots evicted", cache.snapshots_evicted),
            ("snapshots to the host", cache.offloads),
            ("snapshots from the host", cache.fetches),
        ] {
            self.add(name, count);
        }
    }

    fn print(&self) {
        for (name, count) in &self.totals {
            println!("{name:24} {count:9}");
        }
        for (mode, count) in &self.modes {
            println!("schedules, {mode:13} {count:9}");
        }
    }
}

/// Why a visit did not get what it should have got.
fn fault(expected: &Answer, heard: &Heard, visit: &Visit, house: &House) -> Option<&'static str> {
    let finish = heard.finish.as_ref()?;
    let (prompt, cached) = (visit.request.prompt.len(), finish.cached_tokens);
    let looked = house.config.prefix_cache.is_some() && visit.request.prompt_logprobs.is_none();
    let possible = cached < prompt && cached.is_multiple_of(64) && (looked || cached == 0);
    if finish.prompt_tokens != prompt || !possible {
        return Some("the prompt's counts are wrong");
    }
    let emitted = heard.answer.tokens.len();
    let counts = match (visit.leave, &finish.reason) {
        (Some(Leave::Finish(_, kept)), FinishReason::Finished) => emitted.min(kept),
        _ => emitted,
    };
    if finish.completion_tokens != counts {
        return Some("the output's count is wrong");
    }
    let early = match (visit.leave, &finish.reason) {
        (Some(Leave::Abort(_)), reason) => *reason == FinishReason::Aborted,
        (Some(Leave::Finish(..)), reason) => *reason == FinishReason::Finished,
        _ => false,
    };
    let equal = match early {
        true => heard.answer.begins(expected),
        false => heard.answer == *expected,
    };
    (!equal).then_some("the answer differs")
}

/// Ends an engine whose cache must give everything back.
fn close(engine: Engine) {
    assert_eq!(engine.handle.flush_cache(), Some(true), "nothing runs");
    let cache = engine.handle.stats().prefix_cache;
    let held = (cache.pages, cache.device_snapshots, cache.host_snapshots);
    assert_eq!(held, (0, 0, 0), "a flushed cache is empty");
    stop(engine);
}

/// Plays so many schedules, some on each engine, and counts the requests that got something else
/// than alone.
fn differences(schedules: u64, per_house: u64, seed: u64) -> (u64, Figures) {
    let began = Instant::now();
    let (pair, files) = Pair::bundled();
    let mut alone = Alone::start(&pair);
    let catalogue = Catalogue::new(&files, &alone.engine, 1 + schedules.div_ceil(600));
    let (mut different, mut figures) = (0, Figures::default());
    for first in (0..schedules).step_by(per_house as usize) {
        let random = &mut Pcg64::seed_from_u64(seed ^ first << 20);
        let house = House::draw(&catalogue, (first / per_house).is_multiple_of(2), random);
        let engine = pair.start_with(house.config.clone());
        for number in first..schedules.min(first + per_house) {
            let visits = draw_visits(&catalogue, &house, random);
            let heard = play(&engine, &visits);
            for (visit, heard) in visits.iter().zip(&heard) {
                let expected = alone.answer(&catalogue, visit.key);
                if let Some(fault) = fault(expected, heard, visit, &house) {
                    different += 1;
                    println!("seed {seed}, schedule {number}, {house:?}\n{fault}: {visit:?}");
                    println!("expected {expected:?}\nfound    {heard:?}");
                }
            }
            figures.hear(&house, &visits, &heard);
            if random.random_bool(0.2) {
                assert_eq!(engine.handle.flush_cache(), Some(true), "nothing runs");
            }
        }
        figures.count(&engine.handle.stats());
        close(engine);
        let done = schedules.min(first + per_house);
        if done.is_multiple_of(100) {
            let seconds = began.elapsed().as_secs_f64();
            println!("{done} schedules, {different} requests differ, {seconds:.0} s");
            figures.print();
        }
    }
    figures.add("distinct requests", alone.count() as u64);
    stop(alone.engine);
    println!("seed {seed}, {schedules} schedules, {different} requests differ");
    figures.print();
    (different, figures)
}

/// What happens in any few schedules.
const OFTEN: [&str; 7] = [
    "cache hits",
    "cache misses",
    "pages evicted",
    "snapshots evicted",
    "with a constraint",
    "with scored prompts",
    "accepted drafts",
];
/// What depends on who happens to run beside whom, and needs many.
const SELDOM: [&str; 6] = [
    "preemptions",
    "tokens replayed",
    "snapshots to the host",
    "snapshots from the host",
    "aborted",
    "finished by hand",
];

/// Without these the comparison would say little. `often`: so many of each at least.
fn assert_happened(figures: &Figures, names: &[&str], often: u64) {
    for name in names {
        let count = figures.of(name);
        assert!(count >= often, "{name}: {count}, expected {often} at least");
    }
}

#[test]
fn answers_do_not_depend_on_other_users() {
    let (different, figures) = differences(24, 3, 1);
    assert_eq!(different, 0);
    assert_happened(&figures, &OFTEN, 3);
}

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

#[test]
#[ignore = "takes half an hour; run it after changes to the scheduler, the cache or the step"]
fn answers_do_not_depend_on_other_users_in_a_thousand_schedules() {
    let schedules = number("SPINNEY_TEST_SCHEDULES", 1_000);
    let (different, figures) = differences(schedules, 4, number("SPINNEY_TEST_SEED", 7));
    assert_eq!(different, 0);
    assert_happened(&figures, &[&OFTEN[..], &SELDOM].concat(), schedules / 20);
}

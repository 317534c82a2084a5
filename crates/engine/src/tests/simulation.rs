//! The step loop over the stub in one thread: long random histories, everything that must hold
//! checked after every turn.
//!
//! A seed is a history: settings, requests and what happens to them. A failure names its seed, and
//! `SPINNEY_SIMULATION_SEED` runs that one alone; `SPINNEY_SIMULATION_TURNS` says how many turns the
//! long test takes.

mod arrivals;
mod coverage;
mod invariants;
mod law;
mod ledger;
mod progress;
mod setting;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use coverage::Coverage;
use world::World;

/// Workers: the tests are to take two cores.
const WORKERS: u64 = 2;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")))
}

/// One history, from its first turn until everything has come back.
fn run_seed(seed: u64) -> Coverage {
    let mut world = World::new(seed);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Err(payload) = result {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        panic!(
            "seed {seed}, turn {}: {}\n{:?}\nSPINNEY_SIMULATION_SEED={seed} replays it",
            world.turn,
            text.unwrap_or("no message"),
            world.setting
        );
    }
    world.coverage
}

/// Histories from `first` on until they have had so many turns.
fn run_turns(first: u64, turns: u64) -> Coverage {
    let next = AtomicU64::new(first);
    let done = AtomicU64::new(0);
    let work = || {
        let mut all = Coverage::default();
        while done.load(Ordering::Relaxed) < turns {
            let one = run_seed(next.fetch_add(1, Ordering::Relaxed));
            done.fetch_add(one.get("turns"), Ordering::Relaxed);
            all.add(&one);
        }
        all
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        let mut all = Coverage::default();
        for worker in workers {
            match worker.join() {
                Ok(part) => all.add(&part),
                Err(payload) => std::panic::resume_unwind(payload),
            }
        }
        all
    })
}

fn run(first: u64, turns: u64) {
    if let Some(seed) = number("SPINNEY_SIMULATION_SEED") {
        println!("{}", run_seed(seed));
        return;
    }
    let began = std::time::Instant::now();
    let coverage = run_turns(first, turns);
    println!("{coverage}{:.1} s", began.elapsed().as_secs_f64());
    coverage.check(turns);
}

#[test]
fn invariants_hold_in_any_history() {
    run(0, 300_000);
}

#[test]
#[ignore = "takes minutes; SPINNEY_SIMULATION_TURNS says how many turns"]
fn invariants_hold_for_millions_of_turns() {
    let turns = number("SPINNEY_SIMULATION_TURNS").unwrap_or(2_000_000);
    run(1_000_000, turns);
}

#[test]
fn a_seed_is_one_history() {
    for seed in 0..4 {
        assert_eq!(run_seed(seed).to_string(), run_seed(seed).to_string());
    }
}

//! The bundled pair in every mode: acceptance on the held-out prompts, and tokens per second.
//!
//! `cargo bench --bench pair` prints two tables; `-- PER_GROUP MAX_TOKENS` changes the sizes.
#![allow(dead_code, reason = "the module serves several targets")]

#[path = "../tests/common/pair.rs"]
mod pair;

use std::collections::BTreeMap;
use std::time::Instant;

use engine::{Engine, Request, SamplingParams};
use pair::{HeldOut, MODES, Mode, Output, Pair, held_out, run, stop};

/// Repetitions of a timing.
const ROUNDS: usize = 5;

/// Steps and accepted drafts of one group of prompts.
#[derive(Default)]
struct Acceptance {
    steps: usize,
    accepted: usize,
    histogram: [usize; 16],
}

impl Acceptance {
    fn add(&mut self, output: &Output) {
        let stats = &output.finish.stats;
        self.steps += stats.steps;
        self.accepted += stats.accepted;
        for (sum, count) in self.histogram.iter_mut().zip(&stats.acceptance_histogram) {
            *sum += count;
        }
    }

    /// Tokens per step.
    fn tau(&self) -> f64 {
        1.0 + self.accepted as f64 / self.steps as f64
    }
}

fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let per_group = numbers.next().unwrap_or(100);
    let max_tokens = numbers.next().unwrap_or(256);
    let (pair, files) = Pair::bundled();
    let prompts = held_out(&files, per_group);
    let requests: Vec<Request> = prompts
        .iter()
        .map(|prompt| {
            let ends = &files.generation.end_ids;
            pair::request(&prompt.ids, SamplingParams::default(), ends, max_tokens)
        })
        .collect();
    acceptance(&pair, &prompts, &requests);
    speed(&pair, &requests);
}

/// Greedy acceptance per group.
fn acceptance(pair: &Pair, prompts: &[HeldOut], requests: &[Request]) {
    println!("{} held-out prompts, greedy", prompts.len());
    println!("mode      group         steps  tau    histogram of accepted drafts 0..15");
    let mut linear = BTreeMap::new();
    for mode in MODES.into_iter().filter(|mode| *mode != Mode::Plain) {
        let engine = pair.start(mode, 8);
        let outputs = run(&engine, requests, 8, None);
        stop(engine);
        let mut groups: BTreeMap<&str, Acceptance> = BTreeMap::new();
        for (prompt, output) in prompts.iter().zip(&outputs) {
            groups.entry(&prompt.group).or_default().add(output);
            groups.entry("(all)").or_default().add(output);
        }
        for (group, counts) in &groups {
            let tau = counts.tau();
            if mode == Mode::Linear {
                linear.insert(group.to_string(), tau);
            }
            println!(
                "{mode:9} {group:12} {:6}  {tau:.3}  {:?}  {:+.2} % over linear",
                counts.steps,
                counts.histogram,
                100.0 * (tau / linear[*group] - 1.0)
            );
        }
    }
}

/// Tokens per second of decoding at 1 and 8 requests at once. Modes take turns within a round, so
/// that a change of the machine's speed meets all of them.
fn speed(pair: &Pair, requests: &[Request]) {
    // Evenly from all groups, few enough for many rounds.
    let some: Vec<Request> = requests
        .iter()
        .step_by(requests.len().div_ceil(32))
        .cloned()
        .collect();
    println!("\ntokens/s over {} prompts, {ROUNDS} rounds", some.len());
    println!("at once  mode      median   runs");
    for at_once in [1, 8] {
        let engines: Vec<Engine> = MODES
            .iter()
            .map(|mode| pair.start(*mode, at_once))
            .collect();
        let mut runs = [[0.0; ROUNDS]; MODES.len()];
        for round in 0..ROUNDS {
            for (engine, rates) in engines.iter().zip(&mut runs) {
                let start = Instant::now();
                let outputs = run(engine, &some, at_once, None);
                let tokens: usize = outputs.iter().map(|output| output.tokens.len()).sum();
                rates[round] = tokens as f64 / start.elapsed().as_secs_f64();
            }
        }
        for engine in engines {
            stop(engine);
        }
        let plain = median(runs[0]);
        for (mode, rates) in MODES.iter().zip(runs) {
            let each: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
            let rate = median(rates);
            println!(
                "{at_once:7}  {mode:9} {rate:6.0}   {}   {:.2}x plain",
                each.join(" "),
                rate / plain
            );
        }
    }
}

fn median(mut rates: [f64; ROUNDS]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[ROUNDS / 2]
}

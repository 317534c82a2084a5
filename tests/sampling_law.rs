//! Sampled tokens follow the target's law in every mode.
//!
//! The joint law of output tokens 2 and 3 is enumerated from the log-probabilities of the model,
//! with top-k and temperature applied here, and compared with counts of many seeds by chi-square.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![allow(dead_code, reason = "the module serves several tests")]

#[path = "common/pair.rs"]
mod pair;

use std::collections::HashMap;

use engine::{Device, Engine, Request, SamplingParams};
use pair::{MODES, Mode, Pair, run, stop};

/// Output tokens of a sample: enough for the first draft to be several nodes deep.
const TOKENS: usize = 6;
const TOP_K: usize = 6;
const TEMPERATURE: f32 = 0.9;
/// Probability of a larger statistic than the one seen, if the law is right. Seeds are fixed, so a
/// test that passes once passes always.
const SIGNIFICANCE: f64 = 1e-3;

type Law = HashMap<[u32; 2], f64>;

/// `P(next)` after a prefix: the `TOP_K` most likely tokens at `temperature`.
fn next(engine: &Engine, prefix: &[u32], temperature: f64) -> Vec<(u32, f64)> {
    let mut request = pair::request(prefix, SamplingParams::default(), &[], 1);
    request.logprobs = Some(TOP_K);
    let id = engine.handle.submit(request).unwrap();
    let mut top = None;
    loop {
        for update in engine.outputs.recv().unwrap().updates {
            assert_eq!(update.id, id);
            if let Some(token) = update.tokens.into_iter().next() {
                top = token.logprob.map(|logprob| logprob.top);
            }
            if update.finish.is_some() {
                let top = top.expect("a token with its alternatives");
                let mass = top
                    .iter()
                    .map(|&(id, l)| (id, (f64::from(l) / temperature).exp()));
                let total: f64 = mass.clone().map(|(_, mass)| mass).sum();
                return mass.map(|(id, mass)| (id, mass / total)).collect();
            }
        }
    }
}

/// `P(t2, t3) = sum over t1 of P(t1) P(t2 | t1) P(t3 | t1, t2)`.
fn enumerate(engine: &Engine, prompt: &[u32], temperature: f64) -> Law {
    let extended = |tokens: &[u32]| [prompt, tokens].concat();
    let mut law = Law::new();
    for (first, p1) in next(engine, prompt, temperature) {
        for (second, p2) in next(engine, &extended(&[first]), temperature) {
            for (third, p3) in next(engine, &extended(&[first, second]), temperature) {
                *law.entry([second, third]).or_default() += p1 * p2 * p3;
            }
        }
    }
    law
}

/// Counts of tokens 2 and 3, and how many drafts were accepted on the way.
fn sample(engine: &Engine, prompt: &[u32], seeds: std::ops::Range<u64>) -> (Law, usize) {
    let requests: Vec<Request> = seeds
        .map(|seed| {
            let sampling = SamplingParams {
                temperature: TEMPERATURE,
                top_k: TOP_K as u32,
                seed,
                ..SamplingParams::default()
            };
            pair::request(prompt, sampling, &[], TOKENS)
        })
        .collect();
    let mut counts = Law::new();
    let mut accepted = 0;
    for output in run(engine, &requests, 16, None) {
        assert_eq!(output.tokens.len(), TOKENS);
        let [second, third] = [output.tokens[1], output.tokens[2]];
        *counts.entry([second, third]).or_default() += 1.0;
        accepted += output.finish.stats.accepted;
    }
    (counts, accepted)
}

/// Chi-square of counts under a law, cells of fewer than 5 expected counts in one; returns the
/// statistic, the degrees of freedom and the probability of a larger one.
fn chi_square(counts: &Law, law: &Law) -> (f64, usize, f64) {
    let total: f64 = counts.values().sum();
    let outside: f64 = counts
        .iter()
        .filter(|(cell, _)| !law.contains_key(*cell))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(outside, 0.0, "samples outside the law");
    let (mut statistic, mut cells) = (0.0, 0);
    let (mut rare_expected, mut rare_seen) = (0.0, 0.0);
    let mut add = |expected: f64, seen: f64| {
        statistic += (seen - expected).powi(2) / expected;
        cells += 1;
    };
    for (cell, probability) in law {
        let (expected, seen) = (
            probability * total,
            counts.get(cell).copied().unwrap_or(0.0),
        );
        if expected < 5.0 {
            rare_expected += expected;
            rare_seen += seen;
        } else {
            add(expected, seen);
        }
    }
    if rare_expected >= 5.0 {
        add(rare_expected, rare_seen);
    }
    let degrees = cells - 1;
    (statistic, degrees, upper_tail(statistic, degrees as f64))
}

/// Wilson and Hilferty: the cube root of chi-square over its degrees is nearly normal.
fn upper_tail(statistic: f64, degrees: f64) -> f64 {
    let spread = 2.0 / (9.0 * degrees);
    let z = ((statistic / degrees).cbrt() - (1.0 - spread)) / spread.sqrt();
    0.5 * erfc(z / std::f64::consts::SQRT_2)
}

/// Complementary error function, relative error below 1.2e-7 (Numerical Recipes' Chebyshev fit).
fn erfc(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.5 * x.abs());
    let terms = [
        -1.26551223,
        1.00002368,
        0.37409196,
        0.09678418,
        -0.18628806,
        0.27886807,
        -1.13520398,
        1.48851587,
        -0.82215223,
        0.17087277,
    ];
    let polynomial = terms.iter().rev().fold(0.0, |sum, term| sum * t + term);
    let value = t * (-x * x + polynomial).exp();
    if x < 0.0 { 2.0 - value } else { value }
}

/// `wrong` scales the temperature of a law that the samples must not follow: the test can fail.
fn compare(pair: &Pair, prompt: &[u32], samples: u64, wrong: f64) {
    let plain = pair.start(Mode::Plain, 16);
    let law = enumerate(&plain, prompt, f64::from(TEMPERATURE));
    let other = enumerate(&plain, prompt, f64::from(TEMPERATURE) * wrong);
    stop(plain);
    let total: f64 = law.values().sum();
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    println!("{} pairs of tokens, {samples} samples per mode", law.len());
    for (index, mode) in (0..).zip(MODES) {
        let engine = pair.start(mode, 16);
        let (counts, accepted) = sample(&engine, prompt, index * samples..(index + 1) * samples);
        stop(engine);
        let (statistic, degrees, p) = chi_square(&counts, &law);
        let (far, _, p_far) = chi_square(&counts, &other);
        println!(
            "{mode:8} chi-square {statistic:.1} of {degrees} degrees, p = {p:.3}; against the law \
             of temperature x {wrong}: {far:.1}, p = {p_far:.1e}; {accepted} drafts accepted"
        );
        assert!(p > SIGNIFICANCE, "{mode}");
        assert!(
            p_far < SIGNIFICANCE,
            "{mode}: the test cannot tell laws apart"
        );
        assert_eq!(accepted > 0, mode != Mode::Plain, "{mode} must speculate");
    }
}

/// On a GPU the bundled pair: no kernels are made for the heads of the random one.
#[test]
fn a_pair_follows_its_law() {
    match pair::device() {
        Device::Cpu => compare(&Pair::random(), &[5, 17, 40], 3_000, 1.5),
        _ => {
            let (pair, files) = Pair::bundled();
            let prompt = files.vocabulary.encode("The sum").unwrap();
            compare(&pair, &prompt, 6_000, 1.5);
        }
    }
}

#[test]
#[ignore = "takes minutes; run it with --release after changes to sampling"]
fn random_pair_follows_its_law_over_20000_samples() {
    compare(&Pair::random(), &[5, 17, 40], 20_000, 1.15);
}

#[test]
#[ignore = "takes most of an hour; run it with --release after changes to sampling"]
fn bundled_pair_follows_its_law_over_20000_samples() {
    let (pair, files) = Pair::bundled();
    let prompt = files.vocabulary.encode("The sum").unwrap();
    compare(&pair, &prompt, 20_000, 1.15);
}

#[test]
fn tail_of_chi_square_as_in_tables() {
    for (statistic, degrees, p) in [
        (18.307, 10.0, 0.05),
        (63.691, 40.0, 0.01),
        (9.342, 10.0, 0.5),
    ] {
        assert!((upper_tail(statistic, degrees) - p).abs() < 2e-3);
    }
}

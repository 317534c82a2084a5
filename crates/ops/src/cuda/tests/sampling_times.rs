//! Times of the ops on logits, from graphs of twenty calls. Not a check: run by name with
//! `--ignored --nocapture`.

use std::time::Instant;

use super::{get, gpu, poisoned, put, put_batch, put_slots, put_walk};
use crate::limits::{EMIT_MAX, TOP_LOGPROBS_MAX};
use crate::testing::{chain, floats, tree_batch};
use crate::{
    Backend, Batch, Cpu, Cuda, OpsError, Rows, Sample, SamplingRow, ScratchNeeds, Slots,
    TokenLogprobs, TopK, Walk,
};

const VOCAB: usize = 248_320;

/// Microseconds of one call: the median of ten rounds of ten graphs of twenty calls.
fn time(cuda: &Cuda, mut call: impl FnMut() -> Result<(), OpsError>) -> f64 {
    let flag = put(cuda, &[0u32]);
    call().unwrap();
    let graph = cuda
        .record(&mut || {
            for _ in 0..20 {
                call()?;
            }
            Ok(())
        })
        .unwrap()
        .expect("CUDA has graphs");
    let mut rounds: Vec<f64> = (0..10)
        .map(|_| {
            get(cuda, &flag);
            let start = Instant::now();
            for _ in 0..10 {
                cuda.launch(&graph).unwrap();
            }
            get(cuda, &flag);
            start.elapsed().as_secs_f64() * 1e6 / 200.0
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[5]
}

/// Logits of which some stand out.
fn logits(rows: usize) -> Vec<f32> {
    let mut logits = floats(7, rows * VOCAB);
    for (n, z) in logits.iter_mut().enumerate() {
        *z = *z * 5.0 + if n % 5003 == 0 { 9.0 } else { 0.0 };
    }
    logits
}

fn reserve(cuda: &Cuda, rows: usize) {
    let needs = ScratchNeeds {
        rows,
        sequences: rows,
        vocab_rows: VOCAB,
        ..ScratchNeeds::default()
    };
    cuda.reserve(&needs).unwrap();
}

#[test]
#[ignore = "prints times"]
fn topk_times() {
    let Some(cuda) = gpu() else { return };
    for rows in [1, 8, 16, 32, 64] {
        reserve(&cuda, rows);
        let logits = put(&cuda, &logits(rows));
        let live = put(&cuda, &[rows as u32, 1]);
        for k in [8, 15] {
            let (mut ids, mut logprobs) = (poisoned(&cuda, rows * k), poisoned(&cuda, rows * k));
            let us = time(&cuda, || {
                cuda.topk_logprobs(TopK {
                    rows: Rows::new(rows, &live),
                    vocab_rows: VOCAB,
                    vocab_used: VOCAB,
                    k,
                    logits: &logits,
                    ids: &mut ids,
                    logprobs: &mut logprobs,
                })
            });
            println!("topk {rows} rows, k {k}: {us:.2} us");
        }
    }
}

/// A chain of `rows` rows in slot 0 with the options.
fn chain_batch(
    cuda: &Cuda,
    rows: usize,
    options: impl Fn(&mut SamplingRow),
) -> (Batch<Cuda>, Slots<Cuda>) {
    let mut slots = Slots::new(&Cpu::default(), 1, 2, VOCAB, VOCAB).unwrap();
    let row = &mut slots.sampling[0];
    (row.top_p, row.repetition_penalty) = (1.0, 1.0);
    options(row);
    let batch = tree_batch(&[&chain(rows)]);
    (put_batch(cuda, &batch), put_slots(cuda, &slots))
}

fn sample_time(cuda: &Cuda, rows: usize, options: impl Fn(&mut SamplingRow)) -> f64 {
    let (batch, slots) = chain_batch(cuda, rows, options);
    reserve(cuda, rows);
    let logits = put(cuda, &logits(rows));
    let (mut choice, mut finite) = (poisoned(cuda, rows), poisoned(cuda, rows));
    time(cuda, || {
        cuda.sample(Sample {
            rows: batch.rows(rows),
            batch: &batch,
            slots: &slots,
            logits: &logits,
            choice: &mut choice,
            finite: &mut finite,
        })
    })
}

#[test]
#[ignore = "prints times"]
fn sample_times() {
    let Some(cuda) = gpu() else { return };
    for rows in [1, 8, 16, 32, 64] {
        let print = |what: &str, options: fn(&mut SamplingRow)| {
            let us = sample_time(&cuda, rows, options);
            println!("sample {rows} rows, {what}: {us:.2} us");
        };
        print("greedy", |_| ());
        print("temperature 1", |row| row.temperature = 1.0);
        print("top_k 20, top_p 0.95", |row| {
            (row.temperature, row.top_k, row.top_p) = (1.0, 20, 0.95);
        });
        if rows == 16 || rows == 64 {
            print("greedy, frequency penalty", |row| {
                row.frequency_penalty = 0.5
            });
            print("top_p 0.5, candidates", |row| {
                (row.temperature, row.top_p) = (0.5, 0.5);
            });
            print("top_p 0.95 of a flat row", |row| {
                (row.temperature, row.top_p) = (3.0, 0.95);
            });
            print("top_k 20000, top_p 0.9", |row| {
                (row.temperature, row.top_k, row.top_p) = (1.0, 20_000, 0.9);
            });
        }
    }
}

#[test]
#[ignore = "prints times"]
fn token_logprobs_times() {
    let Some(cuda) = gpu() else { return };
    for (sequences, asked) in [(1, 0), (1, 1), (32, 0)] {
        let mut slots = Slots::new(&Cpu::default(), sequences, 2, VOCAB, VOCAB).unwrap();
        slots
            .sampling
            .iter_mut()
            .for_each(|row| row.logprobs = asked);
        let tree = chain(EMIT_MAX);
        let trees: Vec<&[i32]> = (0..sequences).map(|_| &tree[..]).collect();
        let batch = tree_batch(&trees);
        let mut walk = Walk::new(&Cpu::default(), sequences + 1).unwrap();
        walk.emitted.fill(6);
        let entries = (sequences + 1) * EMIT_MAX;
        reserve(&cuda, sequences + 1);
        let (batch, slots, walk) = (
            put_batch(&cuda, &batch),
            put_slots(&cuda, &slots),
            put_walk(&cuda, &walk),
        );
        let logits = put(&cuda, &logits(EMIT_MAX));
        let mut logprob = poisoned(&cuda, entries);
        let mut top_ids = poisoned(&cuda, entries * TOP_LOGPROBS_MAX);
        let mut top_logprobs = poisoned(&cuda, entries * TOP_LOGPROBS_MAX);
        let us = time(&cuda, || {
            cuda.token_logprobs(TokenLogprobs {
                batch: &batch,
                slots: &slots,
                walk: &walk,
                logits: &logits,
                logprob: &mut logprob,
                top_ids: &mut top_ids,
                top_logprobs: &mut top_logprobs,
            })
        });
        println!("token_logprobs {sequences} sequences, asked {asked}: {us:.2} us");
    }
}

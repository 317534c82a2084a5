//! Ops on logits: the drafter's best ids, sampling, log-probs of tokens.

use ops::{
    Backend, Cuda, EMIT_MAX, OpsError, Rows, Sample, SamplingRow, TOP_LOGPROBS_MAX, TokenLogprobs,
    TopK, Walk,
};

use crate::bench::{Bench, Case, VOCABULARY};
use crate::memory::{Buf, put, turns};
use crate::sequences::{Sequences, Setting, chain};

const ROWS: [usize; 6] = [1, 8, 16, 32, 64, 256];

/// Sets what a request asks for.
type Options = fn(&mut SamplingRow);

const SAMPLING: [(&str, Options); 7] = [
    ("greedy", |_| ()),
    ("temperature 1", |row| row.temperature = 1.0),
    ("top_k 20, top_p 0.95", |row| {
        (row.temperature, row.top_k, row.top_p) = (1.0, 20, 0.95);
    }),
    ("greedy, frequency penalty", |row| {
        row.frequency_penalty = 0.5;
    }),
    ("top_p 0.5, temperature 0.5", |row| {
        (row.temperature, row.top_p) = (0.5, 0.5);
    }),
    ("top_p 0.95, temperature 3", |row| {
        (row.temperature, row.top_p) = (3.0, 0.95);
    }),
    ("top_k 20000, top_p 0.9", |row| {
        (row.temperature, row.top_k, row.top_p) = (1.0, 20_000, 0.9);
    }),
];

pub fn run(bench: &Bench) -> Result<(), OpsError> {
    bench.head();
    for rows in ROWS {
        top_k(bench, rows)?;
        sample(bench, rows)?;
    }
    for (count, asked) in [(1, 0), (1, 1), (16, 0), (16, 1)] {
        token_logprobs(bench, count, asked)?;
    }
    Ok(())
}

/// Logits of rows, some of which stand out, in as many buffers as no cache holds.
fn logits(cuda: &Cuda, rows: usize) -> Result<Vec<Buf<f32>>, OpsError> {
    let mut state = 1u64;
    let values: Vec<f32> = (0..rows * VOCABULARY)
        .map(|n| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let uniform = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            5.0 * uniform + if n % 5003 == 0 { 9.0 } else { 0.0 }
        })
        .collect();
    (0..turns(4 * values.len()))
        .map(|_| put(cuda, &values))
        .collect()
}

fn top_k(bench: &Bench, rows: usize) -> Result<(), OpsError> {
    let cuda = &bench.cuda;
    for k in [8, 15] {
        let name = format!("top-k, {rows} rows, k {k}");
        if !bench.wants(&name) {
            continue;
        }
        let logits = logits(cuda, rows)?;
        let live = put(cuda, &[rows as u32, 1])?;
        let (mut ids, mut logprobs) = (cuda.alloc(rows * k)?, cuda.alloc(rows * k)?);
        let case = Case::new(name, 4 * rows * VOCABULARY, logits.len());
        bench.case(case, &mut |turn| {
            cuda.topk_logprobs(TopK {
                rows: Rows {
                    capacity: rows,
                    live: &live,
                    prompt: false,
                },
                vocab_rows: VOCABULARY,
                vocab_used: VOCABULARY,
                k,
                logits: &logits[turn],
                ids: &mut ids,
                logprobs: &mut logprobs,
            })
        })?;
    }
    Ok(())
}

fn sample(bench: &Bench, rows: usize) -> Result<(), OpsError> {
    let cuda = &bench.cuda;
    for (what, options) in SAMPLING {
        let name = format!("sample, {rows} rows, {what}");
        if !bench.wants(&name) {
            continue;
        }
        let logits = logits(cuda, rows)?;
        let mut setting = Setting::new(chain(rows.min(16)), 512);
        setting.vocabulary = VOCABULARY;
        options(&mut setting.sampling);
        let sequences = Sequences::new(cuda, rows.div_ceil(16), &setting)?;
        let (mut choice, mut finite) = (cuda.alloc(rows)?, cuda.alloc(rows)?);
        let case = Case::new(name, 4 * rows * VOCABULARY, logits.len());
        bench.case(case, &mut |turn| {
            cuda.sample(Sample {
                rows: sequences.batch.rows(rows),
                batch: &sequences.batch,
                slots: &sequences.slots,
                masks: None,
                logits: &logits[turn],
                choice: &mut choice,
                finite: &mut finite,
            })
        })?;
    }
    Ok(())
}

/// Six tokens of each sequence.
fn token_logprobs(bench: &Bench, count: usize, asked: u32) -> Result<(), OpsError> {
    const EMITTED: usize = 6;
    let name = format!("token log-probs, {count} sequences, asked {asked}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let cuda = &bench.cuda;
    let mut setting = Setting::new(chain(EMIT_MAX), 512);
    setting.vocabulary = VOCABULARY;
    setting.sampling.logprobs = asked;
    let sequences = Sequences::new(cuda, count, &setting)?;
    let mut walk = Walk::new(cuda, count)?;
    walk.emitted = put(cuda, &vec![EMITTED as u32; count])?;
    let path: Vec<u32> = (0..count * EMIT_MAX)
        .map(|n| (n % EMIT_MAX) as u32)
        .collect();
    walk.path = put(cuda, &path)?;
    let logits = logits(cuda, count * EMIT_MAX)?;
    let entries = count * EMIT_MAX;
    let mut logprob = cuda.alloc(entries)?;
    let mut top_ids = cuda.alloc(entries * TOP_LOGPROBS_MAX)?;
    let mut top_logprobs = cuda.alloc(entries * TOP_LOGPROBS_MAX)?;
    let read = if asked == 0 { 0 } else { count * EMITTED };
    let case = Case::new(name, 4 * read * VOCABULARY, logits.len());
    bench.case(case, &mut |turn| {
        cuda.token_logprobs(TokenLogprobs {
            batch: &sequences.batch,
            slots: &sequences.slots,
            walk: &walk,
            logits: &logits[turn],
            logprob: &mut logprob,
            top_ids: &mut top_ids,
            top_logprobs: &mut top_logprobs,
        })
    })
}

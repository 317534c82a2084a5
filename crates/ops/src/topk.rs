//! The k most likely tokens of a row and their log-probabilities.

use std::cmp::Ordering;

use rayon::prelude::*;

use crate::limits::TOPK_MAX;
use crate::logprobs::{log_sum_exp, logprob};
use crate::{Backend, Cpu, Rows};

/// Logits of a batch from which on the rows are shared among threads.
pub(crate) const PARALLEL_LOGITS: usize = 1 << 16;

/// Over ids `0 .. vocab_used` of each row: `log_z = m + ln sum e^(z - m)`; the k largest logits in
/// descending order, ties to the lower id; `logprob = min(z - log_z, 0)`.
///
/// A NaN ranks below -inf, and makes every log-probability of its row NaN: the draft ends there.
/// A row of -inf has log-probabilities of -inf.
pub struct TopK<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Columns of `logits`.
    pub vocab_rows: usize,
    /// Columns that name tokens.
    pub vocab_used: usize,
    /// Candidates per row, at most [`crate::TOPK_MAX`] and at most `vocab_used`.
    pub k: usize,
    /// `[rows, vocab_rows]`.
    pub logits: &'a B::Buf<f32>,
    /// `[rows, k]`.
    pub ids: &'a mut B::Buf<u32>,
    /// `[rows, k]`.
    pub logprobs: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(op: TopK<'_, Cpu>) {
    let (k, rows) = (op.k, op.rows.live[0] as usize);
    assert!(
        k <= TOPK_MAX && k <= op.vocab_used && op.vocab_used <= op.vocab_rows,
        "{k} candidates of {} ids in rows of {}; at most {TOPK_MAX}",
        op.vocab_used,
        op.vocab_rows
    );
    assert!(
        rows <= op.rows.capacity,
        "{rows} live rows, {} launched",
        op.rows.capacity
    );
    if k == 0 || rows == 0 {
        return;
    }
    let choose = |logits: &[f32], ids: &mut [u32], logprobs: &mut [f32]| {
        let logits = &logits[..op.vocab_used];
        let log_z = log_sum_exp(logits);
        ids.copy_from_slice(&k_largest(logits, k));
        for (id, out) in ids.iter().zip(logprobs) {
            *out = logprob(logits[*id as usize], log_z);
        }
    };
    let logits = &op.logits[..rows * op.vocab_rows];
    let ids = &mut op.ids[..rows * k];
    let logprobs = &mut op.logprobs[..rows * k];
    if logits.len() < PARALLEL_LOGITS {
        for ((logits, ids), logprobs) in logits
            .chunks(op.vocab_rows)
            .zip(ids.chunks_mut(k))
            .zip(logprobs.chunks_mut(k))
        {
            choose(logits, ids, logprobs);
        }
    } else {
        logits
            .par_chunks(op.vocab_rows)
            .zip(ids.par_chunks_mut(k))
            .zip(logprobs.par_chunks_mut(k))
            .for_each(|((logits, ids), logprobs)| choose(logits, ids, logprobs));
    }
}

/// Larger first, NaN last.
pub(crate) fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a)
        .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Ids of the `k` largest logits (all, where there are fewer) in descending order, ties to the
/// lower id, NaN last.
pub(crate) fn k_largest(logits: &[f32], k: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(k + 1);
    if k == 0 {
        return best;
    }
    for (id, &z) in logits.iter().enumerate() {
        // Ids ascend, so an equal logit stands behind those already there.
        let not_after = |&other: &u32| descending(logits[other as usize], z).is_le();
        if best.len() == k {
            if not_after(&best[k - 1]) {
                continue;
            }
            best.pop();
        }
        best.insert(best.partition_point(not_after), id as u32);
    }
    best
}

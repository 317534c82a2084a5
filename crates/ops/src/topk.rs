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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bits, floats, live, on_every_path};

    /// Ids and log-probabilities of every row.
    fn best(
        logits: &[f32],
        vocab_rows: usize,
        vocab_used: usize,
        k: usize,
    ) -> (Vec<u32>, Vec<f32>) {
        let rows = logits.len() / vocab_rows;
        let (mut ids, mut logprobs) = (vec![0; rows * k].into(), vec![7.0; rows * k].into());
        let op = TopK {
            rows: Rows {
                capacity: rows,
                live: &live(rows),
                prompt: false,
            },
            vocab_rows,
            vocab_used,
            k,
            logits: &logits.into(),
            ids: &mut ids,
            logprobs: &mut logprobs,
        };
        Cpu::default().topk_logprobs(op).unwrap();
        (ids.into(), logprobs.into())
    }

    #[test]
    fn the_best_agree_with_a_sort_and_f64() {
        for (vocab_used, vocab_rows) in [(1, 1), (15, 20), (64, 64), (1000, 1003)] {
            // Few distinct values, so that ties are common.
            let logits: Vec<f32> = floats(1, 3 * vocab_rows)
                .iter()
                .map(|z| (z * 40.0).round() / 4.0)
                .collect();
            for k in [0, 1, 8, 15] {
                let k = k.min(vocab_used);
                let (ids, logprobs) = best(&logits, vocab_rows, vocab_used, k);
                for (row, logits) in logits.chunks(vocab_rows).enumerate() {
                    let logits = &logits[..vocab_used];
                    let mut sorted: Vec<u32> = (0..vocab_used as u32).collect();
                    // Stable: the lower id stays first.
                    sorted.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
                    assert_eq!(ids[row * k..(row + 1) * k], sorted[..k]);
                    let total: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
                    for (n, id) in sorted[..k].iter().enumerate() {
                        let exact = f64::from(logits[*id as usize]) - total.ln();
                        let found = f64::from(logprobs[row * k + n]);
                        assert!((found - exact).abs() < 3e-6, "{found} for {exact}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_depends_on_itself_only() {
        let (rows, vocab) = (64, 1100);
        assert!(rows * vocab > PARALLEL_LOGITS);
        let logits = floats(1, rows * vocab);
        let all = on_every_path(|| best(&logits, vocab, vocab, 15).1);
        for row in 0..rows {
            let alone = best(&logits[row * vocab..][..vocab], vocab, vocab, 15);
            assert_eq!(bits(&alone.1), bits(&all[row * 15..][..15]));
        }
    }

    #[test]
    fn not_a_number_ranks_last_and_shows_in_every_logprob_of_its_row() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let logits = [
            nan, 1.0, -inf, 2.0, 3.0, 0.0, -inf, -inf, -inf, -inf, -inf, -inf,
        ];
        let (ids, logprobs) = best(&logits, 4, 4, 4);
        assert_eq!(ids, [3, 1, 2, 0, 0, 1, 2, 3, 0, 1, 2, 3]);
        assert!(logprobs[..4].iter().all(|p| p.is_nan()));
        assert_eq!(logprobs[6..], [-inf; 6]);
        let (_, logprobs) = best(&[inf, 0.0], 2, 2, 2);
        assert!(logprobs.iter().all(|p| p.is_nan()));
    }

    #[test]
    #[should_panic(expected = "16 candidates of 20 ids in rows of 20; at most 15")]
    fn too_many_candidates_are_refused() {
        best(&[0.0; 20], 20, 20, 16);
    }
}

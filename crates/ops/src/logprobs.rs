//! Log-probabilities of emitted tokens.

use crate::limits::{EMIT_MAX, NONE, TOP_LOGPROBS_MAX};
use crate::topk::k_largest;
use crate::{Backend, Batch, Cpu, Slots, Walk};

/// For token j of a sequence whose slot asks for them: natural log of the softmax of the raw f32
/// logits of path row j over ids `0 .. vocab_used`, before bias, penalties and temperature; and
/// the `TOP_LOGPROBS_MAX` most likely ids in descending order, ties to the lower id. Entries of
/// other slots and of tokens that were not emitted keep what they had.
pub struct TokenLogprobs<'a, B: Backend> {
    /// Segments.
    pub batch: &'a Batch<B>,
    /// Which slots ask.
    pub slots: &'a Slots<B>,
    /// Paths and tokens.
    pub walk: &'a Walk<B>,
    /// `[rows, vocab_rows]`.
    pub logits: &'a B::Buf<f32>,
    /// `[sequences, EMIT_MAX]`.
    pub logprob: &'a mut B::Buf<f32>,
    /// `[sequences, EMIT_MAX, TOP_LOGPROBS_MAX]`; NONE where there are fewer ids.
    pub top_ids: &'a mut B::Buf<u32>,
    /// `[sequences, EMIT_MAX, TOP_LOGPROBS_MAX]`; -inf where there are fewer ids.
    pub top_logprobs: &'a mut B::Buf<f32>,
}

/// Log-probability of `target` and the `k` best of one row of raw logits over `0..vocab_used`:
/// the definition that [`TokenLogprobs`] and prompt log-probabilities share.
///
/// Fewer than `k` where the row is shorter. A `target` beyond the row has -inf. A NaN logit makes
/// every value NaN.
pub fn row_logprobs(logits: &[f32], target: u32, k: usize) -> (f32, Vec<(u32, f32)>) {
    let log_z = log_sum_exp(logits);
    let of = |id: u32| match logits.get(id as usize) {
        Some(&z) => logprob(z, log_z),
        None => f32::NEG_INFINITY,
    };
    let best = k_largest(logits, k);
    (
        of(target),
        best.into_iter().map(|id| (id, of(id))).collect(),
    )
}

/// `m + ln sum e^(z - m)` with `m` the largest logit, summed over tiles of 64 ids and then over
/// the tiles, each in ascending order. -inf for a row of -inf; NaN where a logit is NaN or +inf.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f32 {
    // `max` passes over NaN; the sum does not.
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY && !logits.iter().any(|z| z.is_nan()) {
        return f32::NEG_INFINITY;
    }
    let sum: f32 = logits
        .chunks(64)
        .map(|tile| tile.iter().map(|z| (z - largest).exp()).sum::<f32>())
        .sum();
    largest + sum.ln()
}

/// `min(z - log_z, 0)`, keeping NaN; -inf in a row of -inf.
pub(crate) fn logprob(z: f32, log_z: f32) -> f32 {
    if log_z == f32::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    let value = z - log_z;
    if value > 0.0 { 0.0 } else { value }
}

pub(crate) fn cpu(op: TokenLogprobs<'_, Cpu>) {
    let (batch, slots, walk) = (op.batch, op.slots, op.walk);
    for sequence in 0..batch.live[1] as usize {
        if slots.sampling[batch.sequence_slot[sequence] as usize].logprobs == 0 {
            continue;
        }
        let start = batch.sequence_start[sequence] as usize;
        for token in 0..walk.emitted[sequence] as usize {
            let entry = sequence * EMIT_MAX + token;
            let row = start + walk.path[entry] as usize;
            let logits = &op.logits[row * slots.vocab_rows..][..slots.vocab_used];
            let (own, best) = row_logprobs(logits, walk.tokens[entry], TOP_LOGPROBS_MAX);
            op.logprob[entry] = own;
            let entries = entry * TOP_LOGPROBS_MAX..(entry + 1) * TOP_LOGPROBS_MAX;
            let ids = &mut op.top_ids[entries.clone()];
            let logprobs = &mut op.top_logprobs[entries];
            ids.fill(NONE);
            logprobs.fill(f32::NEG_INFINITY);
            for (place, (id, value)) in best.into_iter().enumerate() {
                (ids[place], logprobs[place]) = (id, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{chain, floats, slots, tree_batch};

    #[test]
    fn a_row_agrees_with_f64() {
        for vocab in [1, 63, 64, 65, 1000] {
            let logits: Vec<f32> = floats(1, vocab).iter().map(|z| 20.0 * z).collect();
            let total: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
            let target = vocab as u32 / 2;
            let (own, best) = row_logprobs(&logits, target, 5);
            let exact = |id: u32| f64::from(logits[id as usize]) - total.ln();
            assert!((f64::from(own) - exact(target)).abs() < 4e-6);
            assert_eq!(best.len(), vocab.min(5), "fewer where the row is shorter");
            assert!(best.is_sorted_by(|a, b| a.1 >= b.1));
            for (id, logprob) in best {
                assert!((f64::from(logprob) - exact(id)).abs() < 4e-6);
            }
        }
    }

    #[test]
    fn extremes_have_their_limits() {
        let inf = f32::INFINITY;
        assert_eq!(row_logprobs(&[1.0, 2.0], 2, 1).0, -inf, "beyond the row");
        assert_eq!(row_logprobs(&[], 0, 3), (-inf, vec![]));
        assert_eq!(row_logprobs(&[-inf, -inf], 0, 1), (-inf, vec![(0, -inf)]));
        assert_eq!(
            row_logprobs(&[1000.0, -inf], 0, 2),
            (0.0, vec![(0, 0.0), (1, -inf)])
        );
        assert!(row_logprobs(&[f32::NAN, 1.0], 1, 1).0.is_nan());
    }

    #[test]
    fn emitted_tokens_of_those_who_ask_are_reported() {
        let (vocab_used, vocab_rows) = (7, 10);
        let mut slots = slots(2, vocab_used);
        slots.sampling[1].logprobs = 1;
        let tree = chain(4);
        let batch = tree_batch(&[&tree, &tree]);
        let mut walk = Walk::new(&Cpu::default(), 2).unwrap();
        walk.emitted.copy_from_slice(&[2, 2]);
        walk.path[EMIT_MAX..EMIT_MAX + 2].copy_from_slice(&[0, 3]);
        walk.tokens[EMIT_MAX..EMIT_MAX + 2].copy_from_slice(&[6, 2]);
        let logits = floats(1, 10 * vocab_rows).into();
        let mut logprob: Box<[f32]> = vec![7.0; 2 * EMIT_MAX].into();
        let mut top_ids: Box<[u32]> = vec![7; 2 * EMIT_MAX * TOP_LOGPROBS_MAX].into();
        let mut top_logprobs: Box<[f32]> = vec![7.0; 2 * EMIT_MAX * TOP_LOGPROBS_MAX].into();
        let op = TokenLogprobs {
            batch: &batch,
            slots: &slots,
            walk: &walk,
            logits: &logits,
            logprob: &mut logprob,
            top_ids: &mut top_ids,
            top_logprobs: &mut top_logprobs,
        };
        Cpu::default().token_logprobs(op).unwrap();
        for (entry, (row, token)) in [(4, 6), (7, 2)].into_iter().enumerate() {
            let entry = EMIT_MAX + entry;
            let row = &logits[row * vocab_rows..][..vocab_used];
            let (own, best) = row_logprobs(row, token, TOP_LOGPROBS_MAX);
            assert_eq!(logprob[entry], own);
            let ids = &top_ids[entry * TOP_LOGPROBS_MAX..][..TOP_LOGPROBS_MAX];
            let values = &top_logprobs[entry * TOP_LOGPROBS_MAX..][..TOP_LOGPROBS_MAX];
            let found: Vec<_> = ids.iter().copied().zip(values.iter().copied()).collect();
            assert_eq!(found[..vocab_used], best);
            assert!(
                found[vocab_used..]
                    .iter()
                    .all(|f| *f == (NONE, f32::NEG_INFINITY))
            );
        }
        assert_eq!(logprob.iter().filter(|&&p| p != 7.0).count(), 2);
        assert!(
            top_ids[..EMIT_MAX * TOP_LOGPROBS_MAX]
                .iter()
                .all(|&id| id == 7)
        );
    }
}

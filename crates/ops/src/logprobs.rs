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

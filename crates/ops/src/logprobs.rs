//! Log-probabilities of emitted tokens.

use crate::{Backend, Batch, Cpu, Slots, Walk};

/// For token j of a sequence whose slot asks for them: natural log of the softmax of the raw f32
/// logits of path row j over ids `0 .. vocab_used`, before bias, penalties and temperature; and
/// the `TOP_LOGPROBS_MAX` most likely ids in descending order, ties to the lower id.
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
    /// `[sequences, EMIT_MAX, TOP_LOGPROBS_MAX]`.
    pub top_logprobs: &'a mut B::Buf<f32>,
}

/// Log-probability of `target` and the `k` best of one row of raw logits over `0..vocab_used`:
/// the definition that [`TokenLogprobs`] and prompt log-probabilities share.
pub fn row_logprobs(_logits: &[f32], _target: u32, _k: usize) -> (f32, Vec<(u32, f32)>) {
    todo!()
}

pub(crate) fn cpu(_op: TokenLogprobs<'_, Cpu>) {
    todo!()
}

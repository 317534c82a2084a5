//! The k most likely tokens of a row and their log-probabilities.

use crate::{Backend, Cpu, Rows};

/// Over ids `0 .. vocab_used` of each row: `log_z = m + ln sum e^(z - m)`; the k largest logits in
/// descending order, ties to the lower id; `logprob = min(z - log_z, 0)`.
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

pub(crate) fn cpu(_op: TopK<'_, Cpu>) {
    todo!()
}

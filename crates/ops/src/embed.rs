//! Token rows of the embedding table.

use crate::{Backend, Batch, Cpu, Rows, Tensor};

/// `out[r, :] = table[token[r], :]`, unscaled.
pub struct Embed<'a, B: Backend> {
    /// Rows to fill.
    pub rows: Rows<'a, B>,
    /// Gives the token of each row.
    pub batch: &'a Batch<B>,
    /// `[vocab, hidden]`.
    pub table: &'a Tensor<B>,
    /// `[rows, hidden]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(_op: Embed<'_, Cpu>) {
    todo!()
}

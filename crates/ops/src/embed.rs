//! Token rows of the embedding table.

use crate::{Backend, Batch, Cpu, NONE, Rows, Tensor};

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

pub(crate) fn cpu(op: Embed<'_, Cpu>) {
    let hidden = op.table.columns;
    for row in 0..op.rows.count() {
        if op.batch.row_sequence[row] == NONE {
            continue;
        }
        let token = op.batch.token[row] as usize;
        assert!(
            token < op.table.rows,
            "token {token} of row {row} in a table of {} ids",
            op.table.rows
        );
        let out = &mut op.out[row * hidden..][..hidden];
        op.table.storage.widen_to(token * hidden, out);
    }
}

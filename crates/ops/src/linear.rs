//! Matrix products: rows of activations times the transpose of a weight.

use crate::{Backend, Cpu, Rows, Tensor};

/// In which order the products of one output are summed. The order is a property of the weight,
/// never of the row count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summation {
    /// One run over K: 16 partial sums, lane `j` takes columns `j, j + 16, ...`, then a balanced
    /// tree over the lanes.
    Whole,
    /// Row-parallel weights: K cut into 8 equal blocks, each summed as `Whole`, then a balanced
    /// tree over the blocks, so that tensor-parallel sizes 1, 2, 4 and 8 give the same bits.
    EightBlocks,
}

/// What happens to the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// `out = x Wt`.
    Store,
    /// `out = out + x Wt`: the residual stream.
    Add,
}

/// `out[r, o] = sum_k x[r, k] * weight[o, k]`, optionally added to what `out` holds.
pub struct Linear<'a, B: Backend> {
    /// Rows to multiply.
    pub rows: Rows<'a, B>,
    /// `[rows, weight.columns]`.
    pub x: &'a B::Buf<f32>,
    /// `[outputs, inputs]`.
    pub weight: &'a Tensor<B>,
    /// Summation order.
    pub summation: Summation,
    /// Store or add.
    pub output: Output,
    /// `[rows, weight.rows]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(_op: Linear<'_, Cpu>) {
    todo!()
}

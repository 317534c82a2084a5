//! Causal attention of the target: committed context, then the row's own ancestors.

use crate::{Backend, Batch, Cpu, KvLayer, Rows, Slots};

/// Row `i` with depth `d` attends to cache indices `0 .. length[slot]`, then to its ancestors from
/// depth 0 to `d` (itself) at cache indices `length[slot] + ancestor`. Keys thus enter in position
/// order whatever the tree, and a row gets the bits it would get in plain decoding.
///
/// `out[r, h] = softmax(q . K / sqrt(head_dim)) V * sigmoid(gate[r, h])`; query head `h` reads KV
/// head `h / (heads / kv_heads)`.
pub struct Attention<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Segments and parents.
    pub batch: &'a Batch<B>,
    /// Lengths and block tables.
    pub slots: &'a Slots<B>,
    /// Keys and values, those of this batch's rows included.
    pub cache: &'a KvLayer<B>,
    /// Query heads.
    pub heads: usize,
    /// `[rows, heads, head_dim]` normed and rotated.
    pub query: &'a B::Buf<f32>,
    /// `[rows, heads, 2 * head_dim]`: the gate is the second half of each head.
    pub query_gate: &'a B::Buf<f32>,
    /// `[rows, heads, head_dim]`.
    pub out: &'a mut B::Buf<f32>,
}

/// A tree of at most `TREE_ROWS_MAX` rows per sequence.
pub(crate) fn tree_cpu(_op: Attention<'_, Cpu>) {
    todo!()
}

/// A chunk: every row's parent is the row before it.
pub(crate) fn prefill_cpu(_op: Attention<'_, Cpu>) {
    todo!()
}

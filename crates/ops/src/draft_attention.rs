//! Attention of the drafter: cached context, then the block itself.

use crate::{Backend, Batch, Cpu, KvLayer, Rows, Slots};

/// What a block row may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockMask {
    /// All context and the whole block.
    Full,
    /// Position `p` sees `r` iff `0 <= p - r < window`.
    CausalWindow(usize),
    /// Position `p` sees `r` iff `|p - r| < window`.
    Window(usize),
    /// All context, and block rows up to its own.
    Causal,
}

/// Row `i` of a block stands at position `length[slot] + i`; the context is cache indices
/// `0 .. length[slot]`. Keys enter in position order: context, then block.
/// `out[r, h] = softmax(q . K / sqrt(head_dim)) V`; no gate.
pub struct DraftAttention<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Blocks.
    pub batch: &'a Batch<B>,
    /// Lengths and block tables.
    pub slots: &'a Slots<B>,
    /// The layer's context keys and values.
    pub cache: &'a KvLayer<B>,
    /// What is visible.
    pub mask: BlockMask,
    /// Query heads.
    pub heads: usize,
    /// `[rows, heads, head_dim]`.
    pub query: &'a B::Buf<f32>,
    /// `[rows, kv_heads, head_dim]` of the block.
    pub block_keys: &'a B::Buf<f32>,
    /// `[rows, kv_heads, head_dim]` of the block.
    pub block_values: &'a B::Buf<f32>,
    /// `[rows, heads, head_dim]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(_op: DraftAttention<'_, Cpu>) {
    todo!()
}

//! Attention of the drafter: cached context, then the block itself.

use std::ops::Range;

use crate::head_attention::{HeadAttention, Tail, Visible};
use crate::segment::segments;
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
    pub query: &'a B::Buf<B::Act>,
    /// `[rows, kv_heads, head_dim]` of the block.
    pub block_keys: &'a B::Buf<B::Act>,
    /// `[rows, kv_heads, head_dim]` of the block.
    pub block_values: &'a B::Buf<B::Act>,
    /// `[rows, heads, head_dim]`.
    pub out: &'a mut B::Buf<B::Act>,
}

impl BlockMask {
    /// Positions that position `p` sees, of `end` positions in all: one range for every mask.
    fn visible(self, p: usize, end: usize) -> Range<usize> {
        match self {
            BlockMask::Full => 0..end,
            BlockMask::CausalWindow(window) => (p + 1).saturating_sub(window)..p + 1,
            BlockMask::Window(window) => (p + 1).saturating_sub(window)..end.min(p + window),
            BlockMask::Causal => 0..p + 1,
        }
    }
}

pub(crate) fn cpu(op: DraftAttention<'_, Cpu>) {
    let width = op.cache.heads * op.cache.head_dim;
    let attention = HeadAttention {
        batch: op.batch,
        slots: op.slots,
        cache: op.cache,
        heads: op.heads,
        query: op.query,
        gate: None,
    };
    attention.run(
        &segments(op.batch, op.rows),
        |segment| Tail::Block {
            keys: &op.block_keys[segment.start * width..],
            values: &op.block_values[segment.start * width..],
            count: segment.rows,
        },
        |segment, row| {
            let length = op.slots.length[segment.slot] as usize;
            let seen = op.mask.visible(length + row, length + segment.rows);
            Visible {
                cached: seen.start.min(length)..seen.end.min(length),
                tail: (seen.start.max(length) - length..seen.end - length).collect(),
            }
        },
        op.out,
    );
}

#[cfg(test)]
mod tests;

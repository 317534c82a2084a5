//! Causal attention of the target: committed context, then the row's own ancestors.

use crate::head_attention::{Gate, HeadAttention, Tail, Visible};
use crate::segment::{Segment, segments};
use crate::{Backend, Batch, Cpu, KvLayer, Rows, Slots, TreeTables};

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
    pub query: &'a B::Buf<B::Act>,
    /// `[rows, gate_row_stride]`: value j of the gate of head h stands at column
    /// `h * 2 * head_dim + head_dim + j`.
    pub gate: &'a B::Buf<B::Act>,
    /// Values per row of `gate`.
    pub gate_row_stride: usize,
    /// `[rows, heads, head_dim]`.
    pub out: &'a mut B::Buf<B::Act>,
    /// Ancestors of a tree's rows for kernels; the CPU follows `batch.parent`. A chunk of a prompt
    /// is a chain and needs none.
    pub tree: &'a TreeTables<B>,
}

/// A tree of at most `TREE_ROWS_MAX` rows per sequence.
pub(crate) fn tree_cpu(op: Attention<'_, Cpu>) {
    let length = |segment: &Segment| op.slots.length[segment.slot] as usize;
    heads(&op).run(
        &segments(op.batch, op.rows),
        |segment| Tail::Cached {
            first: length(segment),
            count: segment.rows,
        },
        |segment, row| Visible {
            cached: 0..length(segment),
            tail: path(&op.batch.parent[segment.start..][..segment.rows], row),
        },
        op.out,
    );
}

/// A chunk: every row's parent is the row before it.
pub(crate) fn prefill_cpu(op: Attention<'_, Cpu>) {
    let length = |segment: &Segment| op.slots.length[segment.slot] as usize;
    heads(&op).run(
        &segments(op.batch, op.rows),
        |_| Tail::Cached { first: 0, count: 0 },
        |segment, row| Visible {
            cached: 0..length(segment) + row + 1,
            tail: Vec::new(),
        },
        op.out,
    );
}

fn heads<'a>(op: &Attention<'a, Cpu>) -> HeadAttention<'a> {
    HeadAttention {
        batch: op.batch,
        slots: op.slots,
        cache: op.cache,
        heads: op.heads,
        query: op.query,
        gate: Some(Gate {
            values: op.gate,
            row_stride: op.gate_row_stride,
        }),
    }
}

/// Row 0, ..., the row's parent, the row.
fn path(parents: &[i32], row: usize) -> Vec<usize> {
    let mut path = vec![row];
    let mut row = row;
    while let Ok(parent) = usize::try_from(parents[row]) {
        assert!(
            parent < row,
            "row {row} has parent {parent}; parents come first"
        );
        path.push(parent);
        row = parent;
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests;

//! Gated DeltaNet: the recurrence of one layer over a tree or a chunk.

use crate::limits::DEPTH_MAX;
use crate::{Backend, Batch, OpsError, Rows, Slots, TreeTables};

mod recurrence;
mod scan;

pub(crate) use scan::cpu;

/// Sizes of a GDN layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GdnShape {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v, z, beta and g; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Values per head of q and k.
    pub key_dim: usize,
    /// Values per head of v.
    pub value_dim: usize,
}

impl GdnShape {
    /// Values of q (and of k) of one row.
    pub fn key_width(self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Values of v (and of z and o) of one row.
    pub fn value_width(self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: q, k, v.
    pub fn channels(self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Values of one sequence's state.
    pub fn state_len(self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }
}

/// Recurrent state of one layer for every slot.
pub struct GdnState<B: Backend> {
    /// Sizes.
    pub shape: GdnShape,
    /// `[slots, value_heads, key_dim, value_dim]` state after the last stored token.
    pub state: B::Buf<f32>,
    /// `[slots, 3, channels]` pre-convolution rows of the last three committed tokens, oldest
    /// first.
    pub conv: B::Buf<f32>,
    /// `[slots, DEPTH_MAX, key_width]` normalised keys of accepted rows that `state` lacks.
    pub pending_key: B::Buf<f32>,
    /// `[slots, DEPTH_MAX, value_width]` their values.
    pub pending_value: B::Buf<f32>,
    /// `[slots, DEPTH_MAX, value_heads, 2]` their g and beta.
    pub pending_gate: B::Buf<f32>,
}

impl<B: Backend> GdnState<B> {
    /// Zeroed state for `slots` slots.
    pub fn new(backend: &B, shape: GdnShape, slots: usize) -> Result<Self, OpsError> {
        Ok(GdnState {
            shape,
            state: backend.alloc(slots * shape.state_len())?,
            conv: backend.alloc(slots * 3 * shape.channels())?,
            pending_key: backend.alloc(slots * DEPTH_MAX * shape.key_width())?,
            pending_value: backend.alloc(slots * DEPTH_MAX * shape.value_width())?,
            pending_gate: backend.alloc(slots * DEPTH_MAX * shape.value_heads * 2)?,
        })
    }

    /// Bytes of one slot of one layer.
    pub fn slot_bytes(shape: GdnShape) -> usize {
        let pending = shape.key_width() + shape.value_width() + 2 * shape.value_heads;
        size_of::<f32>() * (shape.state_len() + 3 * shape.channels() + DEPTH_MAX * pending)
    }
}

/// What a verify keeps of each row and layer until the walk is known: exactly the values the scan
/// used, so that the replay repeats it bit by bit.
pub struct GdnJournal<B: Backend> {
    /// `[rows, channels]` pre-convolution rows.
    pub conv_in: B::Buf<f32>,
    /// `[rows, key_width]` normalised keys.
    pub key: B::Buf<f32>,
    /// `[rows, value_width]` values.
    pub value: B::Buf<f32>,
    /// `[rows, value_heads, 2]` g and beta.
    pub gate: B::Buf<f32>,
}

impl<B: Backend> GdnJournal<B> {
    /// Zeroed journal for `rows` rows.
    pub fn new(backend: &B, shape: GdnShape, rows: usize) -> Result<Self, OpsError> {
        Ok(GdnJournal {
            conv_in: backend.alloc(rows * shape.channels())?,
            key: backend.alloc(rows * shape.key_width())?,
            value: backend.alloc(rows * shape.value_width())?,
            gate: backend.alloc(rows * shape.value_heads * 2)?,
        })
    }
}

/// What becomes of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GdnMode {
    /// A tree: the state after the pending rows and row 0 is stored, the rest is decided later.
    Verify,
    /// A chunk of a prompt: the state after the last row is stored, and the convolution history
    /// becomes the last three rows of `[history; conv_in]`.
    Prefill,
}

/// Per value head `h` (key head `h / (value_heads / key_heads)`) and node `i` with parent `p`:
///
/// ```text
/// q = l2(conv q) / sqrt(key_dim)   k = l2(conv k)   l2(x) = x / sqrt(sum(x^2) + 1e-6)
/// g = -exp(A_log) * softplus(a + dt_bias)           beta = sigmoid(b)
/// S' = e^g S_p;  u = beta (v - S'^T k);  S_i = S' + k u^T;  o_i = S_i^T q
/// ```
///
/// Before row 0 the slot's pending rows are replayed. Rows are visited in
/// [`TreeTables::scan_order`] with its save and restore slots, so every node starts from the state
/// of its own parent; in [`GdnMode::Prefill`] rows are visited in order and no table is read. The
/// journal's `key`, `value` and `gate` are filled in `Verify`.
pub struct GdnScan<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Segments.
    pub batch: &'a Batch<B>,
    /// Visit order.
    pub tree: &'a TreeTables<B>,
    /// Pending counts.
    pub slots: &'a Slots<B>,
    /// Tree or chunk.
    pub mode: GdnMode,
    /// `[rows, channels]` after convolution: q, k, v.
    pub qkv: &'a B::Buf<f32>,
    /// `[rows, 2 * value_heads]`: b, then a.
    pub ba: &'a B::Buf<f32>,
    /// `[value_heads]`.
    pub a_log: &'a B::Buf<f32>,
    /// `[value_heads]`.
    pub dt_bias: &'a B::Buf<f32>,
    /// State read and written. `conv` is written in `Prefill` only.
    pub state: &'a mut GdnState<B>,
    /// `conv_in` is read in `Prefill`; the rest is written in `Verify`.
    pub journal: &'a mut GdnJournal<B>,
    /// `[rows, value_heads, value_dim]`.
    pub out: &'a mut B::Buf<f32>,
}

#[cfg(test)]
mod tests;

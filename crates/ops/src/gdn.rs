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

    /// Values per row of [`GdnJournal::mixed`]: `channels | z | b | a`, rounded up so that rows
    /// are aligned for vector loads.
    pub fn mixed_stride(self) -> usize {
        (self.channels() + self.value_width() + 2 * self.value_heads).next_multiple_of(8)
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
    /// `[slots, value_heads, key_dim, value_dim]` state after the last stored token. The order
    /// within a head is the backend's own.
    pub state: B::Buf<f32>,
    /// `[slots, 3, channels]` pre-convolution rows of the last three committed tokens, oldest
    /// first.
    pub conv: B::Buf<B::Act>,
    /// `[slots, DEPTH_MAX, key_width + value_width]` k and v after convolution, not normalised, of
    /// accepted rows that `state` lacks.
    pub pending_kv: B::Buf<B::Act>,
    /// `[slots, DEPTH_MAX, value_heads, 2]` their g and beta.
    pub pending_gate: B::Buf<f32>,
    /// `[slots, DEPTH_MAX, key_heads]` their `1 / |k|`.
    pub pending_scale: B::Buf<f32>,
}

impl<B: Backend> GdnState<B> {
    /// Zeroed state for `slots` slots.
    pub fn new(backend: &B, shape: GdnShape, slots: usize) -> Result<Self, OpsError> {
        let pending = slots * DEPTH_MAX;
        Ok(GdnState {
            shape,
            state: backend.alloc(slots * shape.state_len())?,
            conv: backend.alloc(slots * 3 * shape.channels())?,
            pending_kv: backend.alloc(pending * (shape.key_width() + shape.value_width()))?,
            pending_gate: backend.alloc(pending * shape.value_heads * 2)?,
            pending_scale: backend.alloc(pending * shape.key_heads)?,
        })
    }

    /// Bytes of one slot of one layer.
    pub fn slot_bytes(shape: GdnShape) -> usize {
        let kept = 2 * shape.value_heads + shape.key_heads;
        let values = shape.state_len() + DEPTH_MAX * kept;
        let acts = 3 * shape.channels() + DEPTH_MAX * (shape.key_width() + shape.value_width());
        size_of::<f32>() * values + size_of::<B::Act>() * acts
    }
}

/// What a forward keeps of each row and layer: the inputs of the scan, exactly as it used them, so
/// that a replay repeats it bit by bit once the walk is known.
pub struct GdnJournal<B: Backend> {
    /// `[rows, mixed_stride]`: the in-projection, q, k, v before convolution (the channels), then
    /// z, b and a.
    pub mixed: B::Buf<B::Act>,
    /// `[rows, channels]`: q, k, v after convolution and silu.
    pub qkv: B::Buf<B::Act>,
    /// `[rows, value_heads, 2]`: g (the log of the decay) and beta.
    pub gate: B::Buf<f32>,
    /// `[rows, key_heads, 3]`: `1 / (|q| sqrt(key_dim))`, `1 / |k|` and `q . k` of q and k after
    /// convolution, with `|x| = sqrt(sum(x^2) + 1e-6)`.
    pub scale: B::Buf<f32>,
}

impl<B: Backend> GdnJournal<B> {
    /// Zeroed journal for `rows` rows.
    pub fn new(backend: &B, shape: GdnShape, rows: usize) -> Result<Self, OpsError> {
        Ok(GdnJournal {
            mixed: backend.alloc(rows * shape.mixed_stride())?,
            qkv: backend.alloc(rows * shape.channels())?,
            gate: backend.alloc(rows * shape.value_heads * 2)?,
            scale: backend.alloc(rows * shape.key_heads * 3)?,
        })
    }

    /// Bytes of one row of one layer.
    pub fn row_bytes(shape: GdnShape) -> usize {
        size_of::<B::Act>() * (shape.mixed_stride() + shape.channels())
            + size_of::<f32>() * (2 * shape.value_heads + 3 * shape.key_heads)
    }
}

/// What becomes of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GdnMode {
    /// A tree: the state after the pending rows and row 0 is stored, the rest is decided later.
    Verify,
    /// A chunk of a prompt: the state after the last row is stored, and the convolution history
    /// becomes the last three rows of `[history; channels of mixed]`. CUDA takes 64 positions at a
    /// time, so there a prompt in pieces has the bits of the whole if they meet at multiples of 64.
    Prefill,
}

/// Per value head `h` (key head `h / (value_heads / key_heads)`) and node `i` with parent `p`, of
/// what [`crate::ConvTree`] left in the journal:
///
/// ```text
/// q = (conv q) / (|conv q| sqrt(key_dim))   k = (conv k) / |conv k|
/// S' = e^g S_p;  u = beta (v - S'^T k);  S_i = S' + k u^T;  o_i = S_i^T q
/// ```
///
/// Before row 0 the slot's pending rows are replayed. Rows are visited in
/// [`TreeTables::scan_order`] with its save and restore slots, so every node starts from the state
/// of its own parent; in [`GdnMode::Prefill`] rows are visited in order and no table is read.
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
    /// State read and written. `conv` is written in `Prefill` only.
    pub state: &'a mut GdnState<B>,
    /// `qkv`, `gate` and `scale` of every row; `mixed` in `Prefill`, for the history.
    pub journal: &'a GdnJournal<B>,
    /// `[rows, value_heads, value_dim]`.
    pub out: &'a mut B::Buf<B::Act>,
}

#[cfg(test)]
mod tests;

//! Causal depthwise convolution with silu, over ancestors instead of neighbours.

use crate::{Backend, Batch, Cpu, GdnState, Rows, TreeTables};

/// `out[r] = silu(sum_{t=0..4} weight[:, 3 - t] * x[t-th element of path(r)])` where `path(r)` is
/// `r, parent(r), ...`, continued from row 0 by the slot's history (newest first). A chain gives
/// the ordinary causal convolution. Sums run from the oldest tap to the newest.
pub struct ConvTree<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Segments.
    pub batch: &'a Batch<B>,
    /// Gives each row's four sources ([`TreeTables::conv_source`]).
    pub tree: &'a TreeTables<B>,
    /// Gives the history ([`GdnState::conv`]).
    pub state: &'a GdnState<B>,
    /// Channels.
    pub channels: usize,
    /// `[rows, channels]` before convolution.
    pub x: &'a B::Buf<f32>,
    /// `[channels, 4]`; tap 3 multiplies the row itself.
    pub weight: &'a B::Buf<f32>,
    /// `[rows, channels]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(_op: ConvTree<'_, Cpu>) {
    todo!()
}

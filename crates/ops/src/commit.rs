//! Keeps what belongs to the accepted path and nothing else.

use crate::{Backend, Batch, Cpu, GdnJournal, GdnState, KvLayer, Slots, Walk};

/// Moves the keys and values of path row j from cache index `length + path[j]` to `length + j`, in
/// every layer. Raw copies: row `path[j]` was computed at position `length + j`.
pub struct CompactKv<'a, B: Backend> {
    /// Slots of the sequences.
    pub batch: &'a Batch<B>,
    /// Lengths before the step and block tables.
    pub slots: &'a Slots<B>,
    /// Paths.
    pub walk: &'a Walk<B>,
    /// The layers.
    pub layers: &'a mut [KvLayer<B>],
}

/// In every layer: the pending rows become the journal rows of `path[1..]` (row 0 is already in
/// the state), and the convolution history the last three of `[history; conv_in of path]`.
/// The pending count itself is set by [`crate::Advance`].
pub struct GdnCommit<'a, B: Backend> {
    /// Segments.
    pub batch: &'a Batch<B>,
    /// Paths.
    pub walk: &'a Walk<B>,
    /// One journal per layer.
    pub journals: &'a [GdnJournal<B>],
    /// One state per layer.
    pub states: &'a mut [GdnState<B>],
}

pub(crate) fn compact_kv_cpu(_op: CompactKv<'_, Cpu>) {
    todo!()
}

pub(crate) fn gdn_cpu(_op: GdnCommit<'_, Cpu>) {
    todo!()
}

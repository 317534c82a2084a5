//! Keeps what belongs to the accepted path and nothing else.

use rayon::prelude::*;

use crate::limits::{DEPTH_MAX, EMIT_MAX, PAGE_TOKENS};
use crate::{Backend, Batch, Cpu, Element, GdnJournal, GdnState, KvLayer, Slots, Storage, Walk};

/// Moves the keys and values of path row j from cache index `length + path[j]` to `length + j`, in
/// every layer. Raw copies: row `path[j]` was computed at position `length + j`. `path[j] >= j`, so
/// copies in ascending order read every row before it is overwritten; a parallel copy must read
/// all rows of a sequence before it writes one.
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
/// the state): k and v of `qkv`, the gates, `1 / |k|`. The convolution history becomes the last
/// three rows of `[history; channels of mixed of path]`.
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

pub(crate) fn compact_kv_cpu(op: CompactKv<'_, Cpu>) {
    let moves = cache_moves(op.batch, op.slots, op.walk);
    if moves.is_empty() {
        return;
    }
    op.layers.par_iter_mut().for_each(|layer| {
        let width = layer.heads * layer.head_dim;
        move_rows(&mut layer.keys, width, &moves);
        move_rows(&mut layer.values, width, &moves);
    });
}

/// `(from, to)` rows of the page pool, in the order in which they must be copied. Sequences own
/// their pages alone, so their moves do not touch each other.
fn cache_moves(batch: &Batch<Cpu>, slots: &Slots<Cpu>, walk: &Walk<Cpu>) -> Vec<(usize, usize)> {
    let mut moves = Vec::new();
    for sequence in 0..batch.live[1] as usize {
        let slot = batch.sequence_slot[sequence] as usize;
        let length = slots.length[slot] as usize;
        let pages = &slots.block_table[slot * slots.pages_max..][..slots.pages_max];
        let cache_row =
            |index: usize| pages[index / PAGE_TOKENS] as usize * PAGE_TOKENS + index % PAGE_TOKENS;
        let path = &walk.path[sequence * EMIT_MAX..][..walk.path_rows[sequence] as usize];
        for (j, &row) in path.iter().enumerate() {
            if row as usize != j {
                moves.push((cache_row(length + row as usize), cache_row(length + j)));
            }
        }
    }
    moves
}

fn move_rows(storage: &mut Storage<Cpu>, width: usize, moves: &[(usize, usize)]) {
    fn copy<T: Element>(values: &mut [T], width: usize, moves: &[(usize, usize)]) {
        for &(from, to) in moves {
            values.copy_within(from * width..(from + 1) * width, to * width);
        }
    }
    match storage {
        Storage::F32(values) => copy(values, width, moves),
        Storage::F16(values) => copy(values, width, moves),
        Storage::Bf16(values) => copy(values, width, moves),
    }
}

pub(crate) fn gdn_cpu(op: GdnCommit<'_, Cpu>) {
    assert_eq!(
        op.journals.len(),
        op.states.len(),
        "one journal per GDN layer"
    );
    op.states
        .par_iter_mut()
        .zip(op.journals)
        .for_each(|(state, journal)| {
            for sequence in 0..op.batch.live[1] as usize {
                let start = op.batch.sequence_start[sequence] as usize;
                let slot = op.batch.sequence_slot[sequence] as usize;
                let rows = op.walk.path_rows[sequence] as usize;
                let path = &op.walk.path[sequence * EMIT_MAX..][..rows];
                let rows: Vec<usize> = path.iter().map(|&row| start + row as usize).collect();
                keep_pending(state, journal, slot, &rows);
                keep_history(state, journal, slot, &rows);
            }
        });
}

/// `path`: rows of the batch.
fn keep_pending(state: &mut GdnState<Cpu>, journal: &GdnJournal<Cpu>, slot: usize, path: &[usize]) {
    let shape = state.shape;
    let (channels, key_width) = (shape.channels(), shape.key_width());
    let (kv, gates, heads) = (channels - key_width, 2 * shape.value_heads, shape.key_heads);
    for (place, &row) in path.iter().skip(1).enumerate() {
        let to = slot * DEPTH_MAX + place;
        // k and v follow q.
        let from = &journal.qkv[row * channels + key_width..][..kv];
        state.pending_kv[to * kv..][..kv].copy_from_slice(from);
        let from = &journal.gate[row * gates..][..gates];
        state.pending_gate[to * gates..][..gates].copy_from_slice(from);
        let to = &mut state.pending_scale[to * heads..][..heads];
        for (to, scales) in to
            .iter_mut()
            .zip(journal.scale[row * 3 * heads..].chunks(3))
        {
            *to = scales[1];
        }
    }
}

fn keep_history(state: &mut GdnState<Cpu>, journal: &GdnJournal<Cpu>, slot: usize, path: &[usize]) {
    let (channels, stride) = (state.shape.channels(), state.shape.mixed_stride());
    let history = &mut state.conv[slot * 3 * channels..][..3 * channels];
    for column in 0..3 {
        // Entry of `[history; channels of path]`; it lies behind `column`, so ascending order
        // reads every history column before it is overwritten.
        let entry = path.len() + column;
        let to = column * channels;
        if entry < 3 {
            history.copy_within(entry * channels..(entry + 1) * channels, to);
        } else {
            let row = path[entry - 3];
            history[to..][..channels].copy_from_slice(&journal.mixed[row * stride..][..channels]);
        }
    }
}

#[cfg(test)]
mod tests;

//! The scan over all sequences and heads.

use super::recurrence::{TILE, TileRow, Token, ZERO, advance, advance_and_read};
use super::{GdnMode, GdnScan, GdnShape};
use crate::activation::{exp, sigmoid, softplus};
use crate::limits::DEPTH_MAX;
use crate::product::dot;
use crate::segment::{Segment, place, segments};
use crate::vector::{Kernel, Vector, dispatch};
use crate::{Cpu, Slots, parallel};

pub(crate) fn cpu(op: GdnScan<'_, Cpu>) {
    let shape = op.state.shape;
    let inputs = Inputs::new(&op);
    if op.mode == GdnMode::Verify {
        keep(&op.qkv[..], &inputs, shape, op.journal);
    }
    let segments = segments(op.batch, op.rows);
    let visits: Vec<Vec<Visit>> = segments.iter().map(|s| visits(&op, *s)).collect();
    let (key_dim, value_dim, heads) = (shape.key_dim, shape.value_dim, shape.value_heads);

    let mut states: Vec<_> = op
        .state
        .state
        .chunks_mut(key_dim * value_dim)
        .map(Some)
        .collect();
    let mut outs: Vec<_> = op.out.chunks_mut(value_dim).map(Some).collect();
    let mut tasks = Vec::with_capacity(segments.len() * heads);
    let pending = Pending {
        key: &op.state.pending_key,
        value: &op.state.pending_value,
        gate: &op.state.pending_gate,
        slots: op.slots,
    };
    let mut work = 0;
    for (segment, visits) in segments.iter().zip(&visits) {
        work += (visits.len() + pending.count(segment.slot)) * 3 * shape.state_len();
        for head in 0..heads {
            let state = states[segment.slot * heads + head].take();
            let out = visits.iter().map(|visit| {
                let out = outs[visit.row * heads + head].take();
                out.expect("a row is visited once")
            });
            tasks.push(HeadScan {
                shape,
                mode: op.mode,
                head,
                segment: *segment,
                visits,
                inputs: &inputs,
                qkv: op.qkv,
                pending,
                state: state.expect("a slot belongs to one sequence of a batch"),
                out: out.collect(),
            });
        }
    }
    parallel::tasks(tasks, work, Scratch::default, |scratch, task| {
        dispatch(ScratchScan { task, scratch });
    });
    if op.mode == GdnMode::Prefill {
        for segment in segments {
            roll_history(
                &mut op.state.conv,
                &op.journal.conv_in,
                shape.channels(),
                segment,
            );
        }
    }
}

/// Normalised q and k and the gates of every row.
struct Inputs {
    /// `[rows, key_width]`, scaled by `1 / sqrt(key_dim)`.
    query: Vec<f32>,
    /// `[rows, key_width]`.
    key: Vec<f32>,
    /// `[rows, value_heads, 2]` g and beta.
    gate: Vec<f32>,
}

impl Inputs {
    fn new(op: &GdnScan<'_, Cpu>) -> Self {
        let shape = op.state.shape;
        let (dim, width, heads) = (shape.key_dim, shape.key_width(), shape.value_heads);
        let rows = op.rows.count();
        let scale = 1.0 / (dim as f32).sqrt();
        let normalise = |first: usize, scale: f32| {
            let mut to = vec![0.0; rows * width];
            parallel::chunks(&mut to, dim, 4 * rows * width, |chunk, to| {
                let (row, head) = (chunk / shape.key_heads, chunk % shape.key_heads);
                let x = &op.qkv[row * shape.channels() + first + head * dim..][..dim];
                let factor = scale / (dot(x, x) + 1e-6).sqrt();
                for (to, &x) in to.iter_mut().zip(x) {
                    *to = x * factor;
                }
            });
            to
        };
        let mut gate = Vec::with_capacity(rows * heads * 2);
        for ba in op.ba[..rows * 2 * heads].chunks(2 * heads) {
            for h in 0..heads {
                let step = softplus(ba[heads + h] + op.dt_bias[h]);
                gate.extend([-exp(op.a_log[h]) * step, sigmoid(ba[h])]);
            }
        }
        Inputs {
            query: normalise(0, scale),
            key: normalise(width, 1.0),
            gate,
        }
    }
}

/// Fills the journal with what the scan is about to use.
fn keep(qkv: &[f32], inputs: &Inputs, shape: GdnShape, journal: &mut super::GdnJournal<Cpu>) {
    journal.key[..inputs.key.len()].copy_from_slice(&inputs.key);
    journal.gate[..inputs.gate.len()].copy_from_slice(&inputs.gate);
    let width = shape.value_width();
    let rows = inputs.key.len() / shape.key_width();
    for row in 0..rows {
        let value = &qkv[(row + 1) * shape.channels() - width..][..width];
        journal.value[row * width..][..width].copy_from_slice(value);
    }
}

/// One row of a scan.
struct Visit {
    /// Row of the batch.
    row: usize,
    restore: Option<usize>,
    save: Option<usize>,
}

/// The live rows of a segment in the order in which they are scanned.
fn visits(op: &GdnScan<'_, Cpu>, segment: Segment) -> Vec<Visit> {
    let slot = |slot: i32| usize::try_from(slot).ok();
    (segment.start..segment.start + segment.rows)
        .map(|at| match op.mode {
            GdnMode::Prefill => Visit {
                row: at,
                restore: None,
                save: None,
            },
            GdnMode::Verify => {
                let row = segment.start + op.tree.scan_order[at] as usize;
                Visit {
                    row,
                    restore: slot(op.tree.scan_restore[row]),
                    save: slot(op.tree.scan_save[row]),
                }
            }
        })
        .filter(|visit| place(op.batch, visit.row).is_some())
        .collect()
}

/// Accepted rows that the stored state lacks.
#[derive(Clone, Copy)]
struct Pending<'a> {
    key: &'a [f32],
    value: &'a [f32],
    gate: &'a [f32],
    slots: &'a Slots<Cpu>,
}

impl Pending<'_> {
    fn count(&self, slot: usize) -> usize {
        self.slots.pending[slot] as usize
    }
}

/// The scan of one head of one sequence.
struct HeadScan<'a> {
    shape: GdnShape,
    mode: GdnMode,
    head: usize,
    segment: Segment,
    visits: &'a [Visit],
    inputs: &'a Inputs,
    qkv: &'a [f32],
    pending: Pending<'a>,
    /// `[key_dim, value_dim]`.
    state: &'a mut [f32],
    /// `[visits][value_dim]`.
    out: Vec<&'a mut [f32]>,
}

/// A slice of columns at hand, and the slots.
#[derive(Default)]
struct Scratch {
    state: Vec<TileRow>,
    saved: Vec<TileRow>,
}

struct ScratchScan<'a, 'b> {
    task: HeadScan<'a>,
    scratch: &'b mut Scratch,
}

impl Kernel for ScratchScan<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let task = &mut self.task;
        let used = task.visits.iter().filter_map(|visit| visit.save).max();
        let key_dim = task.shape.key_dim;
        self.scratch.state.resize(key_dim, ZERO);
        self.scratch
            .saved
            .resize(used.map_or(0, |slot| slot + 1) * key_dim, ZERO);
        for first in (0..task.shape.value_dim).step_by(TILE) {
            task.slice::<V>(first, self.scratch);
        }
    }
}

impl HeadScan<'_> {
    /// Columns `first .. first + TILE` of the head, as far as it has them.
    #[inline(always)]
    fn slice<V: Vector>(&mut self, first: usize, scratch: &mut Scratch) {
        let GdnShape {
            key_dim, value_dim, ..
        } = self.shape;
        let Scratch { state, saved } = scratch;
        for (to, from) in state.iter_mut().zip(self.state.chunks(value_dim)) {
            *to = columns(from, first);
        }
        for row in 0..self.pending.count(self.segment.slot) {
            advance::<V>(state, self.pending_token(row, first));
        }
        for at in 0..self.visits.len() {
            let visit = &self.visits[at];
            if let Some(slot) = visit.restore {
                state.copy_from_slice(&saved[slot * key_dim..][..key_dim]);
            }
            let query = self.key_head(&self.inputs.query, visit.row);
            let o = advance_and_read::<V>(state, self.token(visit.row, first), query);
            put_columns(&o, first, self.out[at]);
            if let Some(slot) = visit.save {
                saved[slot * key_dim..][..key_dim].copy_from_slice(state);
            }
            let stored = match self.mode {
                GdnMode::Verify => at == 0,
                GdnMode::Prefill => at + 1 == self.visits.len(),
            };
            if stored {
                for (from, to) in state.iter().zip(self.state.chunks_mut(value_dim)) {
                    put_columns(from, first, to);
                }
            }
        }
    }

    /// This head's part of row `row` of a `[rows, key_width]` array.
    #[inline(always)]
    fn key_head<'k>(&self, rows: &'k [f32], row: usize) -> &'k [f32] {
        let group = self.shape.value_heads / self.shape.key_heads;
        let at = row * self.shape.key_width() + self.head / group * self.shape.key_dim;
        &rows[at..at + self.shape.key_dim]
    }

    #[inline(always)]
    fn token(&self, row: usize, first: usize) -> Token<'_> {
        let value_head = (row + 1) * self.shape.channels() - self.shape.value_width()
            + self.head * self.shape.value_dim;
        let value = &self.qkv[value_head..][..self.shape.value_dim];
        let gate = &self.inputs.gate[(row * self.shape.value_heads + self.head) * 2..][..2];
        Token {
            key: self.key_head(&self.inputs.key, row),
            value: columns(value, first),
            decay: exp(gate[0]),
            beta: gate[1],
        }
    }

    #[inline(always)]
    fn pending_token(&self, row: usize, first: usize) -> Token<'_> {
        let row = self.segment.slot * DEPTH_MAX + row;
        let value_head = row * self.shape.value_width() + self.head * self.shape.value_dim;
        let value = &self.pending.value[value_head..][..self.shape.value_dim];
        let gate = &self.pending.gate[(row * self.shape.value_heads + self.head) * 2..][..2];
        Token {
            key: self.key_head(self.pending.key, row),
            value: columns(value, first),
            decay: exp(gate[0]),
            beta: gate[1],
        }
    }
}

/// Columns from `first` on, with zeros behind the last.
#[inline(always)]
fn columns(row: &[f32], first: usize) -> TileRow {
    let mut tile = ZERO;
    let from = &row[first..row.len().min(first + TILE)];
    tile.as_flattened_mut()[..from.len()].copy_from_slice(from);
    tile
}

#[inline(always)]
fn put_columns(tile: &TileRow, first: usize, row: &mut [f32]) {
    let end = row.len().min(first + TILE);
    let to = &mut row[first..end];
    to.copy_from_slice(&tile.as_flattened()[..to.len()]);
}

/// The last three rows of `[history; conv_in of the segment]` become the history.
fn roll_history(conv: &mut [f32], conv_in: &[f32], channels: usize, segment: Segment) {
    let history = &mut conv[segment.slot * 3 * channels..][..3 * channels];
    let new = segment.rows.min(3);
    history.copy_within(new * channels.., 0);
    let last = (segment.start + segment.rows - new) * channels;
    history[(3 - new) * channels..].copy_from_slice(&conv_in[last..last + new * channels]);
}

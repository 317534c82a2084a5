//! The scan over all sequences and heads.

use super::recurrence::{TILE, TileRow, Token, ZERO, advance, advance_and_read};
use super::{GdnJournal, GdnMode, GdnScan, GdnShape};
use crate::activation::exp;
use crate::limits::DEPTH_MAX;
use crate::segment::{Segment, place, segments};
use crate::vector::{Kernel, Vector, dispatch};
use crate::{Cpu, parallel};

pub(crate) fn cpu(op: GdnScan<'_, Cpu>) {
    let shape = op.state.shape;
    let rows = ScanRows::of_journal(op.journal, shape, op.rows.count());
    let query = unit(
        &op.journal.qkv,
        shape.channels(),
        &op.journal.scale,
        3,
        shape,
        op.rows.count(),
    );
    let segments = segments(op.batch, op.rows);
    let visits: Vec<Vec<Visit>> = segments.iter().map(|s| visits(&op, *s)).collect();
    let (key_dim, value_dim, heads) = (shape.key_dim, shape.value_dim, shape.value_heads);
    let stored = Pending {
        shape,
        kv: &op.state.pending_kv,
        gate: &op.state.pending_gate,
        scale: &op.state.pending_scale,
    };
    let pending: Vec<_> = segments
        .iter()
        .map(|segment| {
            let count = op.slots.pending[segment.slot] as usize;
            ScanRows::of_pending(&stored, segment.slot, count)
        })
        .collect();
    let mut states: Vec<_> = op
        .state
        .state
        .chunks_mut(key_dim * value_dim)
        .map(Some)
        .collect();
    let mut outs: Vec<_> = op.out.chunks_mut(value_dim).map(Some).collect();
    let mut tasks = Vec::with_capacity(segments.len() * heads);
    let mut work = 0;
    for ((segment, visits), pending) in segments.iter().zip(&visits).zip(&pending) {
        work += (visits.len() + pending.count) * 3 * shape.state_len();
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
                visits,
                query: &query,
                rows: &rows,
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
            roll_history(&mut op.state.conv, &op.journal.mixed, shape, segment);
        }
    }
}

/// What rows bring to the scan, but for the queries.
struct ScanRows<'a> {
    /// Rows at hand.
    count: usize,
    /// `[count, key_width]` normalised keys.
    key: Vec<f32>,
    /// Row r has its values at `r * value_stride`.
    value: &'a [f32],
    value_stride: usize,
    /// `[count, value_heads, 2]` g and beta.
    gate: &'a [f32],
}

impl<'a> ScanRows<'a> {
    /// The rows of a forward.
    fn of_journal(journal: &'a GdnJournal<Cpu>, shape: GdnShape, count: usize) -> Self {
        let (channels, width) = (shape.channels(), shape.key_width());
        let keys = &journal.qkv[width..];
        ScanRows {
            count,
            key: unit(keys, channels, &journal.scale[1..], 3, shape, count),
            value: &journal.qkv[2 * width..],
            value_stride: channels,
            gate: &journal.gate,
        }
    }

    /// The accepted rows that the stored state of a slot lacks.
    fn of_pending(state: &Pending<'a>, slot: usize, count: usize) -> Self {
        let shape = state.shape;
        let first = slot * DEPTH_MAX;
        let stride = shape.key_width() + shape.value_width();
        let kv = &state.kv[first * stride..];
        let scale = &state.scale[first * shape.key_heads..];
        ScanRows {
            count,
            key: unit(kv, stride, scale, 1, shape, count),
            value: &kv[shape.key_width()..],
            value_stride: stride,
            gate: &state.gate[first * shape.value_heads * 2..],
        }
    }
}

/// The pending buffers of [`super::GdnState`], apart from the state that the scan writes.
struct Pending<'a> {
    shape: GdnShape,
    kv: &'a [f32],
    gate: &'a [f32],
    scale: &'a [f32],
}

/// `[rows, key_width]`: heads of `x` times their factors; rows of `x` are `stride` apart, factors
/// of heads `factor_stride`.
fn unit(
    x: &[f32],
    stride: usize,
    factors: &[f32],
    factor_stride: usize,
    shape: GdnShape,
    rows: usize,
) -> Vec<f32> {
    let (dim, heads) = (shape.key_dim, shape.key_heads);
    let mut out = vec![0.0; rows * shape.key_width()];
    let work = out.len();
    parallel::chunks(&mut out, dim, work, |at, out| {
        let x = &x[at / heads * stride + at % heads * dim..][..dim];
        let factor = factors[at * factor_stride];
        for (out, &x) in out.iter_mut().zip(x) {
            *out = x * factor;
        }
    });
    out
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

/// The scan of one head of one sequence.
struct HeadScan<'a> {
    shape: GdnShape,
    mode: GdnMode,
    head: usize,
    visits: &'a [Visit],
    /// `[rows, key_width]` normalised and scaled.
    query: &'a [f32],
    rows: &'a ScanRows<'a>,
    pending: &'a ScanRows<'a>,
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
        for row in 0..self.pending.count {
            advance::<V>(state, self.token(self.pending, row, first));
        }
        for at in 0..self.visits.len() {
            let visit = &self.visits[at];
            if let Some(slot) = visit.restore {
                state.copy_from_slice(&saved[slot * key_dim..][..key_dim]);
            }
            let query = self.key_head(self.query, visit.row);
            let token = self.token(self.rows, visit.row, first);
            let o = advance_and_read::<V>(state, token, query);
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
    fn token<'r>(&self, rows: &'r ScanRows<'_>, row: usize, first: usize) -> Token<'r> {
        let value_head = row * rows.value_stride + self.head * self.shape.value_dim;
        let value = &rows.value[value_head..][..self.shape.value_dim];
        let gate = &rows.gate[(row * self.shape.value_heads + self.head) * 2..][..2];
        Token {
            key: self.key_head(&rows.key, row),
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

/// The last three rows of `[history; channels of the segment's mixed rows]` become the history.
fn roll_history(conv: &mut [f32], mixed: &[f32], shape: GdnShape, segment: Segment) {
    let channels = shape.channels();
    let history = &mut conv[segment.slot * 3 * channels..][..3 * channels];
    let new = segment.rows.min(3);
    history.copy_within(new * channels.., 0);
    let last = segment.start + segment.rows - new;
    let kept = history[(3 - new) * channels..].chunks_mut(channels);
    for (row, to) in (last..).zip(kept) {
        to.copy_from_slice(&mixed[row * shape.mixed_stride()..][..channels]);
    }
}

//! Softmax attention of a few rows over the keys of one KV head.
//!
//! A row's keys are a range of cache indices and then a list of rows of a tail (its ancestors in a
//! tree, the block of a drafter). Scores, softmax and the weighted sum of values follow that order
//! and are formed per row and query head, so a row's bits depend on its own keys only.

use std::ops::Range;

use crate::activation::{exp, sigmoid};
use crate::product::{Products, RowView};
use crate::segment::{Segment, place};
use crate::vector::{Kernel, LANES, Vector, dispatch};
use crate::{Batch, Cpu, KvLayer, PAGE_TOKENS, Slots, Storage, parallel};

/// Rows that share one pass over the cache.
const ROWS: usize = 4;

/// What a row attends to, in order.
pub(crate) struct Visible {
    /// Cache indices.
    pub cached: Range<usize>,
    /// Rows of the tail.
    pub tail: Vec<usize>,
}

/// Keys and values behind the committed ones.
#[derive(Clone, Copy)]
pub(crate) enum Tail<'a> {
    /// `count` rows from cache index `first` on.
    Cached { first: usize, count: usize },
    /// `[count, kv_heads, head_dim]` beside the cache.
    Block {
        keys: &'a [f32],
        values: &'a [f32],
        count: usize,
    },
}

/// One op's inputs.
pub(crate) struct HeadAttention<'a> {
    pub batch: &'a Batch<Cpu>,
    pub slots: &'a Slots<Cpu>,
    pub cache: &'a KvLayer<Cpu>,
    /// Query heads.
    pub heads: usize,
    /// `[rows, heads, head_dim]`.
    pub query: &'a [f32],
    /// Gates the output.
    pub gate: Option<Gate<'a>>,
}

/// `[rows, row_stride]`: head h is gated by columns `(2 h + 1) * head_dim ..`.
#[derive(Clone, Copy)]
pub(crate) struct Gate<'a> {
    pub values: &'a [f32],
    pub row_stride: usize,
}

impl HeadAttention<'_> {
    /// Fills `out` `[rows, heads, head_dim]` for every live row of the segments. `tail` is asked
    /// per segment, `visible` per row of a segment.
    pub(crate) fn run<'t>(
        &self,
        segments: &[Segment],
        tail: impl Fn(&Segment) -> Tail<'t>,
        visible: impl Fn(&Segment, usize) -> Visible,
        out: &mut [f32],
    ) {
        let dim = self.cache.head_dim;
        let group = self.heads / self.cache.heads;
        let mut outs: Vec<_> = out.chunks_mut(dim).map(Some).collect();
        let mut tasks = Vec::new();
        let mut work = 0;
        for segment in segments {
            let live = (0..segment.rows)
                .filter(|i| place(self.batch, segment.start + i).is_some())
                .collect::<Vec<_>>();
            for rows in live.chunks(ROWS) {
                for kv_head in 0..self.cache.heads {
                    let mut queries = Vec::with_capacity(rows.len() * group);
                    for &i in rows {
                        for head in kv_head * group..(kv_head + 1) * group {
                            let at = (segment.start + i) * self.heads + head;
                            let out = outs[at].take().expect("a row belongs to one segment");
                            queries.push((at, out));
                        }
                    }
                    let visible: Vec<_> = rows.iter().map(|&i| visible(segment, i)).collect();
                    let keys: usize = visible.iter().map(|v| v.cached.len() + v.tail.len()).sum();
                    work += 2 * keys * group * dim;
                    tasks.push(Task {
                        op: self,
                        slot: segment.slot,
                        kv_head,
                        group,
                        visible,
                        tail: tail(segment),
                        queries,
                    });
                }
            }
        }
        parallel::tasks(tasks, work, Scratch::default, |scratch, task| {
            dispatch(ScratchTask { task, scratch });
        });
    }
}

/// Up to `ROWS` rows of one sequence under one KV head.
struct Task<'a> {
    op: &'a HeadAttention<'a>,
    slot: usize,
    kv_head: usize,
    /// Query heads per KV head.
    group: usize,
    /// Per row.
    visible: Vec<Visible>,
    tail: Tail<'a>,
    /// Per row and query head of the group: index of the head in `[rows, heads]`, and its output.
    queries: Vec<(usize, &'a mut [f32])>,
}

/// Memory that tasks of one thread share.
#[derive(Default)]
struct Scratch {
    /// `[queries, head_dim]`.
    query: Vec<f32>,
    /// `[queries, score_stride]`: cache indices from `base` on, then the tail.
    scores: Vec<f32>,
    /// `[queries, tail]`.
    tail_scores: Vec<f32>,
    /// `[keys, head_dim]` widened or gathered keys or values.
    wide: Vec<f32>,
    /// `[queries]` one over the sum of the weights.
    inverse: Vec<f32>,
}

struct ScratchTask<'a, 'b> {
    task: Task<'a>,
    scratch: &'b mut Scratch,
}

impl Kernel for ScratchTask<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let ScratchTask { mut task, scratch } = self;
        let span = task.span();
        let longest = task.visible.iter().map(|v| v.tail.len()).max();
        let stride = span.len() + longest.unwrap_or(0);
        scratch.scores.resize(task.queries.len() * stride, 0.0);
        task.score::<V>(scratch, span.clone(), stride);
        task.softmax(scratch, span.start, stride);
        task.weigh::<V>(scratch, span, stride);
    }
}

impl Task<'_> {
    /// Cache indices that some row sees, from the start of a page on.
    fn span(&self) -> Range<usize> {
        let start = self.visible.iter().map(|v| v.cached.start).min();
        let end = self.visible.iter().map(|v| v.cached.end).max();
        let start = start.unwrap_or(0) / PAGE_TOKENS * PAGE_TOKENS;
        start..end.unwrap_or(0).max(start)
    }

    /// Fills `scratch.scores` with `q . k`.
    #[inline(always)]
    fn score<V: Vector>(&self, scratch: &mut Scratch, span: Range<usize>, stride: usize) {
        let dim = self.op.cache.head_dim;
        let Scratch {
            query,
            scores,
            tail_scores,
            wide,
            ..
        } = scratch;
        query.clear();
        for (at, _) in &self.queries {
            query.extend_from_slice(&self.op.query[at * dim..][..dim]);
        }
        let x = RowView {
            values: query,
            stride: dim,
            count: self.queries.len(),
        };
        for first in span.clone().step_by(PAGE_TOKENS) {
            let count = (span.end - first).min(PAGE_TOKENS);
            let products = Products {
                x,
                w: self.page(&self.op.cache.keys, first, count, wide),
                columns: dim,
                blocks: 1,
                out: &mut scores[first - span.start..],
                out_stride: stride,
            };
            products.run::<V>();
        }
        let w = self.tail_rows(&self.op.cache.keys, true, wide);
        tail_scores.resize(self.queries.len() * w.count, 0.0);
        let products = Products {
            x,
            w,
            columns: dim,
            blocks: 1,
            out: tail_scores,
            out_stride: w.count,
        };
        products.run::<V>();
        for q in 0..self.queries.len() {
            let visible = &self.visible[q / self.group];
            let to = &mut scores[q * stride + visible.cached.end - span.start..];
            for (to, &row) in to.iter_mut().zip(&visible.tail) {
                *to = tail_scores[q * w.count + row];
            }
        }
    }

    /// Scores become weights `e^(s - max)`; their sum runs over 16 lanes by key number.
    #[inline(always)]
    fn softmax(&self, scratch: &mut Scratch, base: usize, stride: usize) {
        let scale = 1.0 / (self.op.cache.head_dim as f32).sqrt();
        scratch.inverse.clear();
        for q in 0..self.queries.len() {
            let visible = &self.visible[q / self.group];
            let keys = visible.cached.len() + visible.tail.len();
            let weights = &mut scratch.scores[q * stride + visible.cached.start - base..][..keys];
            let mut max = f32::NEG_INFINITY;
            for s in weights.iter_mut() {
                *s *= scale;
                max = if *s > max { *s } else { max };
            }
            for s in weights.iter_mut() {
                *s = exp(*s - max);
            }
            scratch.inverse.push(1.0 / lane_sum(weights));
        }
    }

    /// The weighted values, normalised and gated.
    #[inline(always)]
    fn weigh<V: Vector>(&mut self, scratch: &mut Scratch, span: Range<usize>, stride: usize) {
        let Scratch {
            scores,
            wide,
            inverse,
            ..
        } = scratch;
        let mut queries = std::mem::take(&mut self.queries);
        for (_, out) in &mut queries {
            out.fill(0.0);
        }
        for first in span.clone().step_by(PAGE_TOKENS) {
            let count = (span.end - first).min(PAGE_TOKENS);
            let page = self.page(&self.op.cache.values, first, count, wide);
            for (q, (_, out)) in queries.iter_mut().enumerate() {
                let cached = &self.visible[q / self.group].cached;
                let keys = cached.start.max(first)..cached.end.min(first + count);
                if keys.is_empty() {
                    continue;
                }
                let weights = &scores[q * stride + keys.start - span.start..][..keys.len()];
                let values = &page.values[(keys.start - first) * page.stride..];
                add_values::<V>(weights, values, page.stride, out);
            }
        }
        let tail = self.tail_rows(&self.op.cache.values, false, wide);
        for (q, (at, out)) in queries.iter_mut().enumerate() {
            let visible = &self.visible[q / self.group];
            let weights = &scores[q * stride + visible.cached.end - span.start..];
            for (weight, &row) in weights.iter().zip(&visible.tail) {
                let values = &tail.values[row * tail.stride..];
                add_values::<V>(std::slice::from_ref(weight), values, tail.stride, out);
            }
            let dim = out.len();
            for value in out.iter_mut() {
                *value *= inverse[q];
            }
            if let Some(gate) = self.op.gate {
                let (row, head) = (*at / self.op.heads, *at % self.op.heads);
                let column = (2 * head + 1) * dim;
                let gate = &gate.values[row * gate.row_stride + column..][..dim];
                for (value, &gate) in out.iter_mut().zip(gate) {
                    *value *= sigmoid(gate);
                }
            }
        }
    }

    /// `count` keys or values of one page.
    #[inline(always)]
    fn page<'v>(
        &self,
        pool: &'v Storage<Cpu>,
        first: usize,
        count: usize,
        wide: &'v mut Vec<f32>,
    ) -> RowView<'v> {
        let cache = self.op.cache;
        let dim = cache.head_dim;
        let offset = cache.offset(self.op.slots, self.slot, first) + self.kv_head * dim;
        let stride = cache.heads * dim;
        if let Storage::F32(values) = pool {
            let values = &values[offset..];
            return RowView {
                values,
                stride,
                count,
            };
        }
        wide.resize(count * dim, 0.0);
        for (row, to) in wide.chunks_mut(dim).enumerate() {
            pool.widen_to(offset + row * stride, to);
        }
        RowView {
            values: wide,
            stride: dim,
            count,
        }
    }

    /// Keys (or values) of the tail.
    #[inline(always)]
    fn tail_rows<'v>(
        &'v self,
        pool: &'v Storage<Cpu>,
        keys: bool,
        wide: &'v mut Vec<f32>,
    ) -> RowView<'v> {
        let cache = self.op.cache;
        let dim = cache.head_dim;
        match self.tail {
            Tail::Cached { first, count } => {
                wide.resize(count * dim, 0.0);
                for (row, to) in wide.chunks_mut(dim).enumerate() {
                    let offset = cache.offset(self.op.slots, self.slot, first + row);
                    pool.widen_to(offset + self.kv_head * dim, to);
                }
                RowView {
                    values: wide,
                    stride: dim,
                    count,
                }
            }
            Tail::Block {
                keys: block_keys,
                values: block_values,
                count,
            } => RowView {
                values: &(if keys { block_keys } else { block_values })[self.kv_head * dim..],
                stride: cache.heads * dim,
                count,
            },
        }
    }
}

/// Lane j sums values `j, j + 16, ...`; then a balanced tree over the lanes.
#[inline(always)]
fn lane_sum(values: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (whole, rest) = values.as_chunks::<16>();
    for chunk in whole {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value;
    }
    for half in [8, 4, 2, 1] {
        for j in 0..half {
            lanes[j] += lanes[j + half];
        }
    }
    lanes[0]
}

/// `out += sum_t weights[t] * values[t]`, in the order of t.
#[inline(always)]
fn add_values<V: Vector>(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    let dim = out.len();
    let wide = dim - dim % (8 * LANES);
    for first in (0..wide).step_by(8 * LANES) {
        add_columns::<V, 8>(weights, &values[first..], stride, &mut out[first..]);
    }
    let whole = dim - dim % LANES;
    for first in (wide..whole).step_by(LANES) {
        add_columns::<V, 1>(weights, &values[first..], stride, &mut out[first..]);
    }
    let rest = dim - whole;
    if rest > 0 {
        let mut sum = [0.0; LANES];
        sum[..rest].copy_from_slice(&out[whole..]);
        for (t, weight) in weights.iter().enumerate() {
            let mut value = [0.0; LANES];
            value[..rest].copy_from_slice(&values[t * stride + whole..][..rest]);
            let new = V::load(&sum).mul_add(V::splat(*weight), V::load(&value));
            new.store(&mut sum);
        }
        out[whole..].copy_from_slice(&sum[..rest]);
    }
}

/// N vectors of columns, held in registers while the keys pass.
#[inline(always)]
fn add_columns<V: Vector, const N: usize>(
    weights: &[f32],
    values: &[f32],
    stride: usize,
    out: &mut [f32],
) {
    let out = &mut out.as_chunks_mut::<LANES>().0[..N];
    let mut sums = [V::splat(0.0); N];
    for n in 0..N {
        sums[n] = V::load(&out[n]);
    }
    for (t, &weight) in weights.iter().enumerate() {
        let row = &values[t * stride..][..N * LANES];
        let row = row.as_chunks::<LANES>().0;
        let weight = V::splat(weight);
        for n in 0..N {
            sums[n] = sums[n].mul_add(weight, V::load(&row[n]));
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        sum.store(out);
    }
}

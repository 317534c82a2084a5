//! Sequences with contexts, as the attention tests of trees, chunks and blocks use them.

use half::bf16;

use super::{CudaBuf, narrow, put, put_batch, put_slots, wide};
use crate::testing::{chain, floats, paged_slots, take_rows, tree_batch};
use crate::{Batch, Cpu, Cuda, KvLayer, PAGE_TOKENS, ScratchNeeds, Slots, Storage};

/// Heads of a layer.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) dim: usize,
}

impl Shape {
    /// Values of the keys of a token.
    pub(super) fn width(self) -> usize {
        self.kv_heads * self.dim
    }

    /// Values of the queries of a row.
    pub(super) fn query_width(self) -> usize {
        self.heads * self.dim
    }
}

/// A context and the rows behind it; all values are those of some bf16.
#[derive(Clone)]
pub(super) struct Sequence {
    pub(super) parents: Vec<i32>,
    pub(super) context: usize,
    /// `[context + rows, width]`.
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    /// `[rows, heads, dim]`.
    pub(super) query: Vec<f32>,
    /// `[rows, heads, 2 * dim]`.
    pub(super) gate: Vec<f32>,
}

impl Sequence {
    pub(super) fn new(seed: usize, shape: Shape, context: usize, parents: Vec<i32>) -> Self {
        let (rows, cells) = (parents.len(), (context + parents.len()) * shape.width());
        let values = |part: usize, len: usize, scale: f32| {
            let values = floats((10 * seed + part) as u64, len);
            wide(&narrow(
                &values.iter().map(|v| scale * v).collect::<Vec<_>>(),
            ))
        };
        Sequence {
            parents,
            context,
            keys: values(0, cells, 1.0),
            values: values(1, cells, 1.0),
            // Scores of several units, so that the softmax is far from a mean.
            query: values(2, rows * shape.query_width(), 6.0),
            gate: values(3, 2 * rows * shape.query_width(), 3.0),
        }
    }

    /// The rows of `path` as a chain of which the first `committed` belong to the context.
    pub(super) fn along(&self, shape: Shape, path: &[usize], committed: usize) -> Sequence {
        let rows = &path[committed..];
        let cached: Vec<usize> = (0..self.context)
            .chain(path.iter().map(|row| self.context + row))
            .collect();
        Sequence {
            parents: chain(rows.len()),
            context: self.context + committed,
            keys: take_rows(&self.keys, shape.width(), &cached),
            values: take_rows(&self.values, shape.width(), &cached),
            query: take_rows(&self.query, shape.query_width(), rows),
            gate: take_rows(&self.gate, 2 * shape.query_width(), rows),
        }
    }
}

/// Tables and buffers of some sequences; what no row may read is NaN.
pub(super) struct Inputs {
    pub(super) batch: Batch<Cpu>,
    pub(super) slots: Slots<Cpu>,
    pub(super) cache: KvLayer<Cpu>,
    pub(super) query: Vec<f32>,
    /// Rows of `gate_stride` values.
    pub(super) gate: Vec<f32>,
    pub(super) gate_stride: usize,
}

impl Inputs {
    /// `tail`: the cache holds the rows too.
    pub(super) fn new(shape: Shape, sequences: &[Sequence], tail: bool) -> Self {
        let lengths: Vec<usize> = sequences.iter().map(|s| s.context).collect();
        let longest = sequences.iter().map(|s| s.keys.len() / shape.width()).max();
        let pages = longest.unwrap_or(0).div_ceil(PAGE_TOKENS);
        let slots = paged_slots(&lengths, pages);
        let cells = sequences.len() * pages * PAGE_TOKENS * shape.width();
        let (mut keys, mut values) = (vec![f32::NAN; cells], vec![f32::NAN; cells]);
        for (slot, sequence) in sequences.iter().enumerate() {
            let cached = match tail {
                true => sequence.keys.len() / shape.width(),
                false => sequence.context,
            };
            for t in 0..cached {
                let page = slots.block_table[slot * pages + t / PAGE_TOKENS] as usize;
                let at = (page * PAGE_TOKENS + t % PAGE_TOKENS) * shape.width();
                let from = t * shape.width()..(t + 1) * shape.width();
                keys[at..at + shape.width()].copy_from_slice(&sequence.keys[from.clone()]);
                values[at..at + shape.width()].copy_from_slice(&sequence.values[from]);
            }
        }
        let trees: Vec<&[i32]> = sequences.iter().map(|s| &s.parents[..]).collect();
        let batch = tree_batch(&trees);
        let padding = batch.rows_max - trees.iter().map(|tree| tree.len()).sum::<usize>();
        let mut query: Vec<f32> = sequences.iter().flat_map(|s| s.query.clone()).collect();
        query.resize(query.len() + padding * shape.query_width(), f32::NAN);
        // The gate of a head is the second half of its columns; other columns follow the heads.
        let gate_stride = 2 * shape.query_width() + 8;
        let mut gate = Vec::new();
        for row in sequences
            .iter()
            .flat_map(|s| s.gate.chunks(2 * shape.query_width()))
        {
            gate.extend_from_slice(row);
            gate.resize(gate.len() + 8, f32::NAN);
        }
        gate.resize(batch.rows_max * gate_stride, f32::NAN);
        Inputs {
            batch,
            slots,
            cache: KvLayer {
                keys: Storage::Bf16(narrow(&keys).into()),
                values: Storage::Bf16(narrow(&values).into()),
                heads: shape.kv_heads,
                head_dim: shape.dim,
            },
            query,
            gate,
            gate_stride,
        }
    }

    pub(super) fn on(&self, cuda: &Cuda) -> DeviceInputs {
        let pool = |storage: &Storage<Cpu>| match storage {
            Storage::Bf16(values) => Storage::Bf16(put(cuda, values)),
            other => panic!("{:?}", other.dtype()),
        };
        DeviceInputs {
            batch: put_batch(cuda, &self.batch),
            slots: put_slots(cuda, &self.slots),
            cache: KvLayer {
                keys: pool(&self.cache.keys),
                values: pool(&self.cache.values),
                heads: self.cache.heads,
                head_dim: self.cache.head_dim,
            },
            query: put(cuda, &narrow(&self.query)),
            gate: put(cuda, &narrow(&self.gate)),
        }
    }
}

/// The same on the device.
pub(super) struct DeviceInputs {
    pub(super) batch: Batch<Cuda>,
    pub(super) slots: Slots<Cuda>,
    pub(super) cache: KvLayer<Cuda>,
    pub(super) query: CudaBuf<bf16>,
    pub(super) gate: CudaBuf<bf16>,
}

/// Reserves scratch for `rows` rows of contexts up to `context_max`.
pub(super) fn reserve(cuda: &Cuda, shape: Shape, rows: usize, context_max: usize) {
    let needs = ScratchNeeds {
        rows,
        prefill_rows: 0,
        sequences: 1,
        hidden: 0,
        heads: shape.heads,
        head_dim: shape.dim,
        value_heads: 0,
        draft_heads: shape.heads,
        draft_head_dim: shape.dim,
        vocab_rows: 0,
        context_max,
    };
    let bytes = crate::cuda::splits::scratch_bytes(cuda, &needs);
    cuda.reserve_bytes(bytes).unwrap();
}

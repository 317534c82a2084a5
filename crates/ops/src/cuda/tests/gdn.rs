//! A GDN layer on either backend. The checks are written for any backend and also run on the CPU,
//! against itself, so that a mistake of a check shows without a GPU.

use super::{
    Side, cases, get, gpu, only_small, put, put_batch, put_tree, round_floats, tree_tables_of,
};
use crate::cuda::{gdn_chunk, gdn_scan};
use crate::limits::DEPTH_MAX;
use crate::testing::{floats, tree_batch};
use crate::{
    Backend, Batch, ConvTree, Cuda, GdnJournal, GdnMode, GdnScan, GdnShape, GdnState, ScratchNeeds,
    Slots, TreeTables,
};

mod commit;
mod conv_tree;
mod gated_norm;
mod scan;

/// The GPU with room for the scan's slots and the chunks of a prompt.
fn scanning_gpu() -> Option<Cuda> {
    let cuda = gpu()?;
    let needs = ScratchNeeds {
        prefill_rows: 256,
        sequences: 8,
        value_heads: LARGE.value_heads,
        ..ScratchNeeds::default()
    };
    let bytes = gdn_scan::scratch_bytes(&cuda, &needs);
    let bytes = bytes.max(gdn_chunk::scratch_bytes(&cuda, &needs));
    cuda.reserve_bytes(bytes).unwrap();
    Some(cuda)
}

const fn shape(key_heads: usize, value_heads: usize) -> GdnShape {
    GdnShape {
        key_heads,
        value_heads,
        key_dim: 128,
        value_dim: 128,
    }
}

/// Of the bundled target, groups of one and of eight, and of the 27B target.
const SHAPES: [GdnShape; 4] = [shape(1, 3), shape(2, 2), shape(1, 8), shape(16, 48)];
const TINY: GdnShape = SHAPES[0];
const LARGE: GdnShape = SHAPES[3];

/// A layer with a batch of its own, ready for its ops. Sequence i is in slot i.
struct Layer<B: Backend> {
    backend: B,
    shape: GdnShape,
    batch: Batch<B>,
    tree: TreeTables<B>,
    slots: Slots<B>,
    state: GdnState<B>,
    journal: GdnJournal<B>,
    out: B::Buf<B::Act>,
}

impl<B: Side> Layer<B> {
    /// Every slot has the same random state, history and `pending` pending rows; outputs are NaN.
    fn new(backend: &B, shape: GdnShape, trees: &[&[i32]], pending: usize) -> Self
    where
        B: Clone,
    {
        let host = tree_batch(trees);
        let count = trees.len();
        let rows = host.rows_max;
        let mut state = GdnState::new(backend, shape, count).unwrap();
        let repeated = |seed, len: usize| B::narrow(&round_floats(seed, len).repeat(count));
        let kept = DEPTH_MAX * (shape.key_width() + shape.value_width());
        state.conv = put(backend, &repeated(51, 3 * shape.channels()));
        state.pending_kv = put(backend, &repeated(52, kept));
        let gates = floats(53, DEPTH_MAX * shape.value_heads * 2);
        let gates: Vec<f32> = (gates.iter().enumerate())
            .map(|(i, v)| if i % 2 == 0 { -v.abs() } else { v.abs() })
            .collect();
        state.pending_gate = put(backend, &gates.repeat(count));
        let lengths: Vec<f32> = floats(54, DEPTH_MAX * shape.key_heads)
            .iter()
            .map(|v| 0.15 + 0.01 * v)
            .collect();
        state.pending_scale = put(backend, &lengths.repeat(count));
        let mut slots = Slots::new(backend, count, 1, 8, 8).unwrap();
        slots.pending = put(backend, &vec![pending as u32; count]);
        let nan = |len| B::narrow(&vec![f32::NAN; len]);
        let mut journal = GdnJournal::new(backend, shape, rows).unwrap();
        journal.mixed = put(backend, &nan(rows * shape.mixed_stride()));
        journal.qkv = put(backend, &nan(rows * shape.channels()));
        journal.gate = put(backend, &vec![f32::NAN; rows * 2 * shape.value_heads]);
        journal.scale = put(backend, &vec![f32::NAN; rows * 3 * shape.key_heads]);
        let mut layer = Layer {
            backend: backend.clone(),
            shape,
            batch: put_batch(backend, &host),
            tree: put_tree(backend, &tree_tables_of(&host)),
            slots,
            state,
            journal,
            out: put(backend, &nan(rows * shape.value_width())),
        };
        layer.set_state(&floats(50, shape.state_len()).repeat(count));
        layer
    }

    /// `[slots, value_heads, key_dim, value_dim]`.
    fn set_state(&mut self, state: &[f32]) {
        self.state.state = put(&self.backend, &self.turned(state));
    }

    fn state(&self) -> Vec<f32> {
        self.turned(&get(&self.backend, &self.state.state))
    }

    /// From the order of the CPU to that of the backend, or back: a square turns into itself.
    fn turned(&self, state: &[f32]) -> Vec<f32> {
        let dim = self.shape.key_dim;
        if !B::BY_COLUMN {
            return state.to_vec();
        }
        let heads = state.chunks(dim * dim);
        heads
            .flat_map(|head| (0..dim * dim).map(|at| head[at % dim * dim + at / dim]))
            .collect()
    }

    /// What the scan reads of each row.
    fn set_journal(&mut self, kept: &Kept) {
        self.journal.qkv = put(&self.backend, &B::narrow(&kept.qkv));
        self.journal.gate = put(&self.backend, &kept.gate);
        self.journal.scale = put(&self.backend, &kept.scale);
    }

    fn convolve(&mut self, weight: &[f32], a_log: &[f32], dt_bias: &[f32]) {
        let backend = &self.backend;
        let op = ConvTree {
            rows: self.batch.rows(self.batch.rows_max),
            batch: &self.batch,
            tree: &self.tree,
            state: &self.state,
            weight: &put(backend, weight),
            a_log: &put(backend, a_log),
            dt_bias: &put(backend, dt_bias),
            journal: &mut self.journal,
        };
        backend.conv_tree(op).unwrap();
    }

    /// `[rows_max, value_width]`.
    fn scan(&mut self, mode: GdnMode) -> Vec<f32> {
        let op = GdnScan {
            rows: self.batch.rows(self.batch.rows_max),
            batch: &self.batch,
            tree: &self.tree,
            slots: &self.slots,
            mode,
            state: &mut self.state,
            journal: &mut self.journal,
            out: &mut self.out,
        };
        self.backend.gdn_scan(op).unwrap();
        B::wide(&get(&self.backend, &self.out))
    }

    fn conv(&self) -> Vec<f32> {
        B::wide(&get(&self.backend, &self.state.conv))
    }
}

/// Output of the last of the rows of `kept`, and the layer behind it, a scan for each row: what a
/// node of a tree is compared with to the bit.
fn row_by_row<B: Side + Clone>(
    backend: &B,
    shape: GdnShape,
    pending: usize,
    kept: &Kept,
) -> (Vec<f32>, Layer<B>) {
    let scan = |layer: &mut Layer<B>, row| {
        let spare = layer.batch.rows_max - 1;
        layer.set_journal(&kept.take(shape, &[row], spare));
        layer.scan(GdnMode::Verify)[..shape.value_width()].to_vec()
    };
    let mut layer = Layer::new(backend, shape, &[&[-1]], pending);
    let mut out = scan(&mut layer, 0);
    for row in 1..kept.gate.len() / (2 * shape.value_heads) {
        let state = layer.state();
        layer = Layer::new(backend, shape, &[&[-1]], 0);
        layer.set_state(&state);
        out = scan(&mut layer, row);
    }
    (out, layer)
}

/// The scan's inputs of some rows, as values that bf16 holds where it stores them.
#[derive(Clone, Default)]
struct Kept {
    qkv: Vec<f32>,
    gate: Vec<f32>,
    scale: Vec<f32>,
}

impl Kept {
    /// Random rows.
    fn new(shape: GdnShape, rows: usize, seed: u64) -> Self {
        let qkv = round_floats(seed, rows * shape.channels());
        let gate = floats(seed + 1, rows * shape.value_heads * 2);
        let gate = (gate.iter().enumerate())
            .map(|(i, v)| if i % 2 == 0 { -v.abs() } else { v.abs() })
            .collect();
        let mut scale = Vec::new();
        for qkv in qkv.chunks(shape.channels()) {
            for head in 0..shape.key_heads {
                let part = |first: usize| &qkv[first + head * shape.key_dim..][..shape.key_dim];
                scale.extend(scales(part(0), part(shape.key_width())).map(|v| v as f32));
            }
        }
        Kept { qkv, gate, scale }
    }

    /// Rows `rows` of these, then `spare` rows that nothing may read.
    fn take(&self, shape: GdnShape, rows: &[usize], spare: usize) -> Self {
        let part = |values: &[f32], width: usize| {
            let mut taken = crate::testing::take_rows(values, width, rows);
            taken.resize((rows.len() + spare) * width, f32::NAN);
            taken
        };
        Kept {
            qkv: part(&self.qkv, shape.channels()),
            gate: part(&self.gate, 2 * shape.value_heads),
            scale: part(&self.scale, 3 * shape.key_heads),
        }
    }
}

/// `1 / (|q| sqrt(key_dim))`, `1 / |k|` and `q . k`.
fn scales(q: &[f32], k: &[f32]) -> [f64; 3] {
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter()
            .zip(y)
            .map(|(&x, &y)| f64::from(x) * f64::from(y))
            .sum()
    };
    let length = |x: &[f32]| (dot(x, x) + 1e-6).sqrt();
    [
        1.0 / (length(q) * (q.len() as f64).sqrt()),
        1.0 / length(k),
        dot(q, k),
    ]
}

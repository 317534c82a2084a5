//! GDN layers: convolution, scan, gated norm, commit.

use half::bf16;
use ops::{
    Backend, ConvTree, Cuda, FillTarget, GatedNorm, GdnCommit, GdnJournal, GdnMode, GdnScan,
    GdnShape, GdnState, OpsError, Walk,
};

use crate::bench::{Bench, CHUNK_ROWS, Case};
use crate::memory::{Buf, fill, normal_f32, put, turns};
use crate::sequences::{Sequences, Setting, chain, tree};

const SHAPE: GdnShape = GdnShape {
    key_heads: 16,
    value_heads: 48,
    key_dim: 128,
    value_dim: 128,
};
/// GDN layers of the model.
const LAYERS: usize = 48;
/// Accepted rows that the state lacks, and rows of a path that is committed.
const PENDING: usize = 7;

/// Sequences and rows of each.
const TREES: [(usize, usize); 9] = [
    (1, 1),
    (1, 8),
    (1, 16),
    (1, 32),
    (1, 64),
    (4, 16),
    (16, 1),
    (16, 16),
    (16, 32),
];

pub fn run(bench: &Bench) -> Result<(), OpsError> {
    bench.head();
    for (count, rows) in TREES {
        let mut setting = Setting::new(tree(rows), 512);
        setting.pending = PENDING;
        let what = format!("{count} x {rows} rows");
        Layers::new(&bench.cuda, count, &setting, turns(state_bytes(count)))?.measure(
            bench,
            &what,
            GdnMode::Verify,
        )?;
    }
    let setting = Setting::new(chain(CHUNK_ROWS), 512);
    let what = format!("chunk of {CHUNK_ROWS} rows");
    Layers::new(&bench.cuda, 1, &setting, 4)?.measure(bench, &what, GdnMode::Prefill)?;
    for count in [1, 16] {
        commit(bench, count)?;
    }
    Ok(())
}

fn state_bytes(count: usize) -> usize {
    count * SHAPE.state_len() * size_of::<f32>()
}

/// Layers to take in turn.
struct Layers {
    sequences: Sequences,
    states: Vec<GdnState<Cuda>>,
    journals: Vec<GdnJournal<Cuda>>,
    conv_weight: Buf<f32>,
    /// `a_log`, `dt_bias`.
    per_head: [Buf<f32>; 2],
    norm_weight: Buf<f32>,
    scanned: Buf<bf16>,
    out: Buf<bf16>,
}

impl Layers {
    fn new(cuda: &Cuda, count: usize, setting: &Setting, turns: usize) -> Result<Self, OpsError> {
        let sequences = Sequences::new(cuda, count, setting)?;
        let rows = sequences.all_rows();
        let state = |_| {
            let mut state = GdnState::new(cuda, SHAPE, count)?;
            fill(cuda, FillTarget::F32(&mut state.state), 0.05)?;
            Ok(state)
        };
        let journal = |_| {
            let mut journal = GdnJournal::new(cuda, SHAPE, rows)?;
            fill(cuda, FillTarget::Bf16(&mut journal.mixed), 1.0)?;
            Ok(journal)
        };
        Ok(Layers {
            states: (0..turns).map(state).collect::<Result<_, OpsError>>()?,
            journals: (0..turns).map(journal).collect::<Result<_, OpsError>>()?,
            conv_weight: normal_f32(cuda, 4 * SHAPE.channels())?,
            per_head: [
                cuda.alloc(SHAPE.value_heads)?,
                cuda.alloc(SHAPE.value_heads)?,
            ],
            norm_weight: normal_f32(cuda, SHAPE.value_dim)?,
            scanned: cuda.alloc(rows * SHAPE.value_width())?,
            out: cuda.alloc(rows * SHAPE.value_width())?,
            sequences,
        })
    }

    fn conv(&mut self, cuda: &Cuda, turn: usize) -> Result<(), OpsError> {
        cuda.conv_tree(ConvTree {
            rows: self.sequences.batch.rows(self.sequences.all_rows()),
            batch: &self.sequences.batch,
            tree: &self.sequences.tree,
            state: &self.states[turn],
            weight: &self.conv_weight,
            a_log: &self.per_head[0],
            dt_bias: &self.per_head[1],
            journal: &mut self.journals[turn],
        })
    }

    fn scan(&mut self, cuda: &Cuda, turn: usize, mode: GdnMode) -> Result<(), OpsError> {
        cuda.gdn_scan(GdnScan {
            rows: self.sequences.batch.rows(self.sequences.all_rows()),
            batch: &self.sequences.batch,
            tree: &self.sequences.tree,
            slots: &self.sequences.slots,
            mode,
            state: &mut self.states[turn],
            journal: &self.journals[turn],
            out: &mut self.scanned,
        })
    }

    fn norm(&mut self, cuda: &Cuda, turn: usize) -> Result<(), OpsError> {
        cuda.gated_norm(GatedNorm {
            rows: self.sequences.batch.rows(self.sequences.all_rows()),
            shape: SHAPE,
            eps: 1e-6,
            o: &self.scanned,
            mixed: &self.journals[turn].mixed,
            weight: &self.norm_weight,
            out: &mut self.out,
        })
    }

    fn measure(&mut self, bench: &Bench, what: &str, mode: GdnMode) -> Result<(), OpsError> {
        let cuda = &bench.cuda;
        let (rows, turns) = (self.sequences.all_rows(), self.states.len());
        let states = state_bytes(self.sequences.count);
        for turn in 0..turns {
            self.conv(cuda, turn)?;
        }
        let case = |op: &str, bytes: usize| {
            let mut case = Case::new(format!("{op}, {what}"), bytes, turns);
            if mode == GdnMode::Prefill {
                case.launches = 8;
            }
            case
        };
        // bf16: channels in and out; f32: four taps of every channel.
        let conv = rows * 2 * 2 * SHAPE.channels() + 4 * 4 * SHAPE.channels();
        bench.case(case("conv", conv), &mut |turn| self.conv(cuda, turn))?;
        let scan = 2 * states + rows * 2 * (SHAPE.channels() + SHAPE.value_width());
        bench.case(case("scan", scan), &mut |turn| self.scan(cuda, turn, mode))?;
        let norm = rows * 2 * 3 * SHAPE.value_width();
        bench.case(case("gated norm", norm), &mut |turn| self.norm(cuda, turn))
    }
}

/// All layers at once, as a step does.
fn commit(bench: &Bench, count: usize) -> Result<(), OpsError> {
    let name = format!("commit, {LAYERS} layers, {count} x {PENDING} rows");
    if !bench.wants(&name) {
        return Ok(());
    }
    let cuda = &bench.cuda;
    let setting = Setting::new(tree(16), 512);
    let mut layers = Layers::new(cuda, count, &setting, LAYERS)?;
    let mut walk = Walk::new(cuda, count)?;
    walk.path_rows = put(cuda, &vec![PENDING as u32; count])?;
    let path: Vec<u32> = (0..cuda.len(&walk.path)).map(|i| (i % 16) as u32).collect();
    walk.path = put(cuda, &path)?;
    // k, v, gates and scales of the path, and three columns of history, read and written.
    let kept = 2 * (SHAPE.key_width() + SHAPE.value_width())
        + 4 * (2 * SHAPE.value_heads + SHAPE.key_heads);
    let bytes = 2 * LAYERS * count * (PENDING * kept + 3 * 2 * SHAPE.channels());
    bench.case(Case::new(name, bytes, 1), &mut |_| {
        cuda.gdn_commit(GdnCommit {
            batch: &layers.sequences.batch,
            walk: &walk,
            journals: &layers.journals,
            states: &mut layers.states,
        })
    })
}

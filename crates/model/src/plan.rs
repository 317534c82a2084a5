//! The memory plan: what is allocated at start, before the first request.

use ops::{
    Backend, EMIT_MAX, GdnJournal, GdnShape, GdnState, KvLayer, LOGIT_BIAS_MAX, PAGE_TOKENS,
    STOP_IDS_MAX, SamplingRow, ScratchNeeds, TREE_ROWS_MAX,
};

use crate::runner::{ROW_SCAN_VOCAB, bucket, result_bytes, snapshot_bytes};
use crate::workspace::{LOGITS_SLICE_ROWS, Widths, WorkspaceRows};
use crate::{DrafterConfig, LayerKind, ModelConfig, RunnerConfig};

const TARGET_WEIGHTS: &str = "target weights";
const DRAFTER_WEIGHTS: &str = "drafter weights";

/// One line of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLine {
    /// What it is for.
    pub part: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// All device memory of a runner. Nothing grows afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The parts.
    pub lines: Vec<PlanLine>,
    /// KV pages in the pool.
    pub kv_pages: usize,
    /// State slots.
    pub slots: usize,
    /// Bytes of host memory that are taken at start: snapshots of recurrent state.
    pub host_bytes: u64,
}

/// Rows of the largest forward of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunnerRows {
    pub(crate) prefill: usize,
    pub(crate) verify: usize,
    /// Block rows of the drafter, anchors included.
    pub(crate) blocks: usize,
    /// Rows picked out of a forward for the head.
    pub(crate) selected: usize,
    pub(crate) logits: usize,
}

impl RunnerRows {
    pub(crate) fn of(drafter: Option<&DrafterConfig>, config: &RunnerConfig) -> Self {
        let sequences = config.sequences_max;
        let verify = config.verify_rows_max();
        let blocks = drafter.map_or(0, |sizes| sequences * sizes.block_size);
        let selected = LOGITS_SLICE_ROWS.max(sequences);
        RunnerRows {
            prefill: config.prefill_rows_max,
            verify,
            blocks,
            selected,
            logits: verify.max(blocks).max(selected),
        }
    }

    pub(crate) fn workspace(self) -> WorkspaceRows {
        let forward = self.prefill.max(self.verify).max(self.blocks);
        WorkspaceRows {
            forward,
            logits: self.logits,
        }
    }
}

impl MemoryPlan {
    /// What a runner of these sizes allocates on the device.
    pub fn of<B: Backend>(
        backend: &B,
        target: &ModelConfig,
        drafter: Option<&DrafterConfig>,
        config: &RunnerConfig,
    ) -> Self {
        let rows = RunnerRows::of(drafter, config);
        let widths = Widths::of(target, drafter);
        let pool = |layers: usize, heads: usize, head_dim: usize| {
            layers * KvLayer::<B>::bytes(config.kv_dtype, config.kv_pages, heads, head_dim)
        };
        let mut lines = Vec::new();
        let mut line = |part, bytes: usize| {
            lines.push(PlanLine {
                part,
                bytes: bytes as u64,
            })
        };
        line(TARGET_WEIGHTS, target_weight_bytes(target, config));
        if let Some(sizes) = drafter {
            line(DRAFTER_WEIGHTS, drafter_weight_bytes(sizes, config));
        }
        let attention = target.attention_layers();
        line(
            "target KV pages",
            pool(attention, target.kv_heads, target.head_dim),
        );
        if let Some(sizes) = drafter {
            line(
                "drafter KV pages",
                pool(sizes.layers.len(), sizes.kv_heads, sizes.head_dim),
            );
        }
        let slot = GdnState::<B>::slot_bytes(target.gdn);
        line(
            "recurrent state",
            target.gdn_layers() * config.sequences_max * slot,
        );
        let snapshot = target.gdn_layers() * snapshot_bytes::<B>(target.gdn);
        if config.snapshots > 0 {
            let beside = row_scan_bytes::<B>(target.gdn);
            line("state snapshots", config.snapshots * snapshot + beside);
        }
        line(
            "verify journal",
            target.gdn_layers() * rows.verify * GdnJournal::<B>::row_bytes(target.gdn),
        );
        line(
            "workspace",
            workspace_bytes::<B>(target, drafter, &widths, rows),
        );
        let scratch = backend.scratch_bytes(&scratch_needs(target, drafter, config));
        if scratch > 0 {
            line("scratch of ops", scratch as usize);
        }
        line("tables and results", table_bytes(target, config, rows));
        MemoryPlan {
            lines,
            kv_pages: config.kv_pages,
            slots: config.sequences_max,
            host_bytes: (config.host_snapshots * snapshot) as u64,
        }
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> u64 {
        let parts = [TARGET_WEIGHTS, DRAFTER_WEIGHTS];
        let weights = self.lines.iter().filter(|line| parts.contains(&line.part));
        weights.map(|line| line.bytes).sum()
    }

    /// Sum of all parts in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.bytes).sum()
    }
}

/// Matrices in the storage type, vectors in f32.
fn weight_bytes(matrices: usize, vectors: usize, config: &RunnerConfig) -> usize {
    matrices * config.weight_dtype.bytes() + vectors * size_of::<f32>()
}

pub(crate) fn target_weight_bytes(target: &ModelConfig, config: &RunnerConfig) -> usize {
    let (hidden, gdn) = (target.hidden_size, target.gdn);
    let tables = if target.tied_head { 1 } else { 2 };
    let mut matrices = tables * target.vocab_size * hidden;
    let mut vectors = hidden + target.rotary_dim / 2;
    for kind in &target.layers {
        matrices += 3 * target.intermediate_size * hidden;
        vectors += 2 * hidden;
        match kind {
            LayerKind::FullAttention => {
                let heads = 3 * target.attention_heads + 2 * target.kv_heads;
                matrices += heads * target.head_dim * hidden;
                vectors += 2 * target.head_dim;
            }
            LayerKind::LinearAttention => {
                let outputs = gdn.channels() + 2 * gdn.value_width() + 2 * gdn.value_heads;
                matrices += outputs * hidden;
                vectors += 4 * gdn.channels() + 2 * gdn.value_heads + gdn.value_dim;
            }
        }
    }
    weight_bytes(matrices, vectors, config)
}

pub(crate) fn drafter_weight_bytes(sizes: &DrafterConfig, config: &RunnerConfig) -> usize {
    let hidden = sizes.hidden_size;
    let heads = 2 * sizes.attention_heads + 2 * sizes.kv_heads;
    let layer = (heads * sizes.head_dim + 3 * sizes.intermediate_size) * hidden;
    let matrices =
        (sizes.taps.len() * hidden + sizes.context_width()) * hidden + sizes.layers.len() * layer;
    let vectors =
        2 * hidden + sizes.head_dim / 2 + sizes.layers.len() * (2 * hidden + 2 * sizes.head_dim);
    weight_bytes(matrices, vectors, config)
}

fn workspace_bytes<B: Backend>(
    target: &ModelConfig,
    drafter: Option<&DrafterConfig>,
    widths: &Widths,
    rows: RunnerRows,
) -> usize {
    let workspace = rows.workspace();
    let block_kv = drafter.map_or(0, |sizes| 2 * rows.blocks * sizes.kv_heads * sizes.head_dim);
    let acts = workspace.forward * widths.row_acts() + rows.selected * widths.hidden + block_kv;
    let floats = workspace.forward * widths.hidden + workspace.logits * widths.vocab;
    size_of::<B::Act>() * acts
        + size_of::<f32>() * floats
        + rows.prefill * GdnJournal::<B>::row_bytes(target.gdn)
}

/// Tables of one slot.
fn slot_bytes(pages: usize, vocab_rows: usize) -> usize {
    4 * (4 + pages + STOP_IDS_MAX + 2 * LOGIT_BIAS_MAX)
        + size_of::<SamplingRow>()
        + 4 * (vocab_rows.div_ceil(32) + vocab_rows)
}

fn batch_bytes(rows: usize, sequences: usize) -> usize {
    4 * (2 + 4 * rows + 3 * sequences)
}

/// What brings the state of a snapshot on: one slot, one row.
fn row_scan_bytes<B: Backend>(shape: GdnShape) -> usize {
    GdnState::<B>::slot_bytes(shape)
        + GdnJournal::<B>::row_bytes(shape)
        + size_of::<B::Act>() * shape.value_width()
        + slot_bytes(1, ROW_SCAN_VOCAB)
        + batch_bytes(1, 1)
        + 4 * 11
}

fn table_bytes(target: &ModelConfig, config: &RunnerConfig, rows: RunnerRows) -> usize {
    let sequences = config.sequences_max;
    let slot = slot_bytes(config.pages_per_sequence(), target.vocab_size);
    // Per row of a forward: batch 4 words, tree 2 + 2 + 4 + 3; per sequence: batch 3, walk 35.
    let batch = |rows: usize| batch_bytes(rows, sequences);
    let list = |rows: usize| 4 * (2 + 3 * rows);
    let forward =
        |rows: usize| batch(rows) + 4 * 11 * rows + list(rows) + 4 * sequences * (3 + 2 * EMIT_MAX);
    sequences * slot
        + forward(rows.prefill)
        + forward(rows.verify)
        + forward(sequences)
        + batch(rows.blocks)
        + 4 * 4 * sequences
        + 4 * 3 * rows.blocks * config.topk
        + list(rows.selected)
        + result_bytes(rows.verify.max(sequences), sequences, target.vocab_size)
}

/// Sizes of the ops that a runner will enqueue.
pub(crate) fn scratch_needs(
    target: &ModelConfig,
    drafter: Option<&DrafterConfig>,
    config: &RunnerConfig,
) -> ScratchNeeds {
    let rows = RunnerRows::of(drafter, config);
    ScratchNeeds {
        rows: rows.verify.max(rows.blocks).max(rows.selected),
        prefill_rows: rows.prefill,
        sequences: config.sequences_max,
        hidden: target.hidden_size,
        heads: target.attention_heads,
        head_dim: target.head_dim,
        value_heads: target.gdn.value_heads,
        draft_heads: drafter.map_or(0, |sizes| sizes.attention_heads),
        draft_head_dim: drafter.map_or(0, |sizes| sizes.head_dim),
        vocab_rows: target.vocab_size,
        context_max: config.context_max,
    }
}

impl RunnerConfig {
    /// Pages that hold `tokens` tokens and the rows of a verify behind them, which are written
    /// before it is known which of them stay.
    pub fn pages_for(&self, tokens: usize) -> usize {
        (tokens + self.tree_rows_max).div_ceil(PAGE_TOKENS)
    }

    /// Pages of a sequence that fills the context.
    pub fn pages_per_sequence(&self) -> usize {
        self.pages_for(self.context_max)
    }

    /// Rows of the largest step, and of the largest replay.
    pub fn verify_rows_max(&self) -> usize {
        let largest = *ops::ROW_BUCKETS.last().expect("there are buckets");
        bucket(self.step_rows_max.min(largest))
    }

    /// Tokens of one sequence in a replay.
    pub fn replay_rows_max(&self) -> usize {
        self.verify_rows_max().min(EMIT_MAX)
    }

    /// Panics on sizes that no runner can have: the engine validates options before.
    pub(crate) fn assert_valid(&self) {
        assert!(
            (1..=TREE_ROWS_MAX).contains(&self.tree_rows_max),
            "1 to 64 rows per sequence"
        );
        assert!(
            (1..=ops::TOPK_MAX).contains(&self.topk),
            "1 to 15 candidates per depth"
        );
        assert!(
            self.step_rows_max >= self.sequences_max,
            "a row for every sequence of a step"
        );
        assert!(self.sequences_max >= 1 && self.context_max >= 2 && self.prefill_rows_max >= 1);
        assert!(self.kv_pages >= 1 && self.vocab_used >= 1);
    }
}

//! Attention with one warp per row and group of query heads.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, KvTable, SlotTable};
use crate::{Attention, BlockMask, DraftAttention, OpsError, PAGE_TOKENS, ScratchNeeds};

const WARPS: usize = 4;
/// Tokens of the splits in front, their number, and the tokens of those behind.
const SHORT: usize = 64;
const SHORT_SPLITS: usize = 32;
const LONG: usize = 1024;

/// `RowAttentionParams` of kernels/row_attention.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct RowAttentionParams {
    batch: BatchTable,
    slots: SlotTable,
    cache: KvTable,
    query: DevicePtr,
    gate: DevicePtr,
    block_keys: DevicePtr,
    block_values: DevicePtr,
    out: DevicePtr,
    partial: DevicePtr,
    gate_row_stride: u32,
    heads: u32,
    causal: u32,
    before: u32,
    after: u32,
    splits: u32,
    scale: f32,
}

/// A tree of at most `TREE_ROWS_MAX` rows per sequence.
pub(super) fn tree_attention(cuda: &Cuda, op: Attention<'_, Cuda>) -> Result<(), OpsError> {
    target(cuda, op, true)
}

/// A chunk: every row's parent is the row before it.
pub(super) fn prefill_attention(cuda: &Cuda, op: Attention<'_, Cuda>) -> Result<(), OpsError> {
    target(cuda, op, false)
}

/// # Panics
/// If heads are not of 256 values.
fn target(cuda: &Cuda, op: Attention<'_, Cuda>, tree: bool) -> Result<(), OpsError> {
    let (rows, dim) = (op.rows.capacity, op.cache.head_dim);
    assert!(dim == 256, "heads of {dim} values; CUDA takes 256");
    let width = rows * op.heads * dim;
    let params = RowAttentionParams {
        batch: BatchTable::of(op.batch),
        slots: SlotTable::of(op.slots),
        cache: KvTable::of(op.cache),
        query: op.query.range(0, width),
        gate: op.gate.range(0, rows * op.gate_row_stride),
        block_keys: DevicePtr::NULL,
        block_values: DevicePtr::NULL,
        out: op.out.range(0, width),
        gate_row_stride: op.gate_row_stride as u32,
        heads: op.heads as u32,
        causal: 0,
        before: 0,
        after: 0,
        partial: DevicePtr::NULL,
        splits: 0,
        scale: 1.0 / (dim as f32).sqrt(),
    };
    let shared_by = op.heads / op.cache.heads;
    match tree {
        true => {
            let splits = splits(op.slots.pages_max * PAGE_TOKENS);
            let heads = heads_of(shared_by, &TREE);
            launch(cuda, heads, Some((MERGE_TREE, splits)), rows, dim, params)
        }
        false => launch(cuda, heads_of(shared_by, &CHUNK), None, rows, dim, params),
    }
}

/// # Panics
/// If heads are not of 128 values.
pub(super) fn draft_attention(cuda: &Cuda, op: DraftAttention<'_, Cuda>) -> Result<(), OpsError> {
    let (rows, dim, cache) = (op.rows.capacity, op.cache.head_dim, op.cache);
    assert!(dim == 128, "drafter heads of {dim} values; CUDA takes 128");
    let (causal, before, after) = match op.mask {
        BlockMask::Full => (0, u32::MAX, u32::MAX),
        BlockMask::CausalWindow(window) => (1, window as u32, u32::MAX),
        BlockMask::Window(window) => (0, window as u32, window as u32),
        BlockMask::Causal => (1, u32::MAX, u32::MAX),
    };
    let width = rows * op.heads * dim;
    let params = RowAttentionParams {
        batch: BatchTable::of(op.batch),
        slots: SlotTable::of(op.slots),
        cache: KvTable::of(cache),
        query: op.query.range(0, width),
        gate: DevicePtr::NULL,
        block_keys: op.block_keys.range(0, rows * cache.heads * dim),
        block_values: op.block_values.range(0, rows * cache.heads * dim),
        out: op.out.range(0, width),
        gate_row_stride: 0,
        heads: op.heads as u32,
        causal,
        before,
        after,
        partial: DevicePtr::NULL,
        splits: 0,
        scale: 1.0 / (dim as f32).sqrt(),
    };
    let heads = heads_of(op.heads / cache.heads, &BLOCK);
    let splits = splits(op.slots.pages_max * PAGE_TOKENS);
    launch(cuda, heads, Some((MERGE_BLOCK, splits)), rows, dim, params)
}

const fn entry(name: &'static str) -> Entry {
    Entry {
        module: "row_attention",
        name,
    }
}

/// Kernels by the query heads that a warp takes, most first.
type ByHeads = [(usize, Entry)];
const TREE: [(usize, Entry); 4] = [
    (6, entry("row_attention_tree_6")),
    (4, entry("row_attention_tree_4")),
    (2, entry("row_attention_tree_2")),
    (1, entry("row_attention_tree_1")),
];
const CHUNK: [(usize, Entry); 4] = [
    (6, entry("row_attention_chunk_6")),
    (4, entry("row_attention_chunk_4")),
    (2, entry("row_attention_chunk_2")),
    (1, entry("row_attention_chunk_1")),
];
const BLOCK: [(usize, Entry); 3] = [
    (4, entry("row_attention_block_4")),
    (2, entry("row_attention_block_2")),
    (1, entry("row_attention_block_1")),
];
const MERGE_TREE: Entry = entry("row_attention_merge_tree");
const MERGE_BLOCK: Entry = entry("row_attention_merge_block");

/// The kernel whose warps take the most of the `shared_by` query heads of a KV head. How many they
/// are does not enter the bits.
fn heads_of(shared_by: usize, kernels: &ByHeads) -> (usize, Entry) {
    *kernels
        .iter()
        .find(|(heads, _)| shared_by.is_multiple_of(*heads))
        .expect("every number is a multiple of 1")
}

/// Splits of a context of `tokens`.
fn splits(tokens: usize) -> usize {
    let short = SHORT * SHORT_SPLITS;
    match tokens <= short {
        true => tokens.div_ceil(SHORT),
        false => SHORT_SPLITS + (tokens - short).div_ceil(LONG),
    }
}

/// Bytes of the parts of `rows` rows.
fn partial_bytes(rows: usize, heads: usize, dim: usize, splits: usize) -> usize {
    rows * heads * splits * (dim + 2) * size_of::<f32>()
}

/// Bytes of scratch.
pub(super) fn scratch_bytes(_: &Cuda, needs: &ScratchNeeds) -> usize {
    let pages = (needs.context_max + needs.rows).div_ceil(PAGE_TOKENS);
    let splits = splits(pages * PAGE_TOKENS);
    let target = partial_bytes(needs.rows, needs.heads, needs.head_dim, splits);
    let draft = partial_bytes(needs.rows, needs.draft_heads, needs.draft_head_dim, splits);
    target.max(draft)
}

fn launch(
    cuda: &Cuda,
    (heads, kernel): (usize, Entry),
    merge: Option<(Entry, usize)>,
    rows: usize,
    dim: usize,
    mut params: RowAttentionParams,
) -> Result<(), OpsError> {
    let blocks = |units: usize| units.div_ceil(WARPS) as u32;
    let all = params.heads as usize;
    let mut grid = Grid {
        blocks: [blocks(all / heads), rows as u32, 1],
        threads: 32 * WARPS as u32,
        shared: 0,
    };
    if let Some((_, splits)) = merge {
        params.partial = cuda.scratch(partial_bytes(rows, all, dim, splits));
        params.splits = splits as u32;
        grid.blocks[2] = splits as u32;
    }
    // SAFETY: the struct mirrors the kernel's; lengths were checked by the callers, the scratch
    // holds one part per row, head and split.
    unsafe { cuda.run(&kernel, grid, params) }?;
    let Some((merge, _)) = merge else {
        return Ok(());
    };
    grid.blocks = [blocks(all), rows as u32, 1];
    // SAFETY: as above.
    unsafe { cuda.run(&merge, grid, params) }
}

//! Attention with one warp per row and query head.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, KvTable, SlotTable};
use crate::{Attention, BlockMask, DraftAttention, OpsError};

const WARPS: usize = 4;

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
    gate_row_stride: u32,
    heads: u32,
    causal: u32,
    before: u32,
    after: u32,
    scale: f32,
}

/// A tree of at most `TREE_ROWS_MAX` rows per sequence.
pub(super) fn tree_attention(cuda: &Cuda, op: Attention<'_, Cuda>) -> Result<(), OpsError> {
    target(cuda, op, "row_attention_tree_256")
}

/// A chunk: every row's parent is the row before it.
pub(super) fn prefill_attention(cuda: &Cuda, op: Attention<'_, Cuda>) -> Result<(), OpsError> {
    target(cuda, op, "row_attention_chunk_256")
}

/// # Panics
/// If heads are not of 256 values.
fn target(cuda: &Cuda, op: Attention<'_, Cuda>, name: &'static str) -> Result<(), OpsError> {
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
        scale: 1.0 / (dim as f32).sqrt(),
    };
    launch(cuda, name, rows, params)
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
        scale: 1.0 / (dim as f32).sqrt(),
    };
    launch(cuda, "row_attention_block_128", rows, params)
}

fn launch(
    cuda: &Cuda,
    name: &'static str,
    rows: usize,
    params: RowAttentionParams,
) -> Result<(), OpsError> {
    let grid = Grid {
        blocks: [
            (params.heads as usize).div_ceil(WARPS) as u32,
            rows as u32,
            1,
        ],
        threads: 32 * WARPS as u32,
        shared: 0,
    };
    let entry = Entry {
        module: "row_attention",
        name,
    };
    // SAFETY: the struct mirrors the kernel's; lengths were checked by the callers.
    unsafe { cuda.run(&entry, grid, params) }
}

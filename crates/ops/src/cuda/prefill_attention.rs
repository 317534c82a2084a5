//! Launch of `kernels/prefill_attention.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, KvTable, SlotTable};
use super::tree_attention::{RING_SLOTS, SLOT_BYTES, check_heads, exchange_bytes};
use crate::{Attention, OpsError};

const KERNEL: Entry = Entry {
    module: "prefill_attention",
    name: "prefill_attention",
};
/// Rows and threads of a block.
const BLOCK_ROWS: usize = 96;
const THREADS: u32 = 256;
/// Ring, `sizeof(PrefillShared)`.
const SHARED_BYTES: usize = RING_SLOTS * SLOT_BYTES + exchange_bytes(BLOCK_ROWS) + 544;

/// `PrefillAttentionParams` of kernels/prefill_attention.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct PrefillAttentionParams {
    batch: BatchTable,
    slots: SlotTable,
    kv: KvTable,
    query: DevicePtr,
    gate: DevicePtr,
    out: DevicePtr,
    heads: u32,
    gate_stride: u32,
    ring_slots: u32,
}

/// # Panics
/// If heads are not of 256 values or more than eight query heads share a KV head.
pub(super) fn prefill_attention(cuda: &Cuda, op: Attention<'_, Cuda>) -> Result<(), OpsError> {
    let (rows, dim, kv_heads) = (op.rows.capacity, op.cache.head_dim, op.cache.heads);
    check_heads(op.heads, kv_heads, dim);
    let params = PrefillAttentionParams {
        batch: BatchTable::of(op.batch),
        slots: SlotTable::of(op.slots),
        kv: KvTable::of(op.cache),
        query: op.query.range(0, rows * op.heads * dim),
        gate: op.gate.range(0, rows * op.gate_row_stride),
        out: op.out.range(0, rows * op.heads * dim),
        heads: op.heads as u32,
        gate_stride: op.gate_row_stride as u32,
        ring_slots: RING_SLOTS as u32,
    };
    let tokens = BLOCK_ROWS / (op.heads / kv_heads);
    // Every sequence may end in the middle of a block.
    let chunks = rows.div_ceil(tokens) + op.batch.sequences_max.min(rows);
    let grid = Grid {
        blocks: [kv_heads as u32, chunks as u32, 1],
        threads: THREADS,
        shared: SHARED_BYTES as u32,
    };
    // SAFETY: mirrors the struct in kernels/prefill_attention.cu; buffers hold `rows` rows.
    unsafe { cuda.run(&KERNEL, grid, params) }
}

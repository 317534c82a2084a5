//! Launch of `kernels/draft_attention.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::Entry;
use super::splits::{PartialSize, Partials, Pieces};
use super::tables::{BatchTable, KvTable, SlotTable};
use super::tree_attention::exchange_bytes;
use crate::{BlockMask, DraftAttention, EMIT_MAX, OpsError};

/// Values per head.
const DIM: usize = 128;
/// Slots of the ring of a block, 32 rows of a head each.
const RING_SLOTS: usize = 10;
const SLOT_BYTES: usize = 32 * DIM * 2;

const fn entry(name: &'static str) -> Entry {
    Entry {
        module: "draft_attention",
        name,
    }
}

/// Rows that a block takes, its threads and its kernel.
const KERNELS: [(usize, u32, Entry); 2] = [
    (32, 128, entry("draft_attention_32")),
    (64, 256, entry("draft_attention_64")),
];
const MERGE: Entry = entry("draft_attention_merge");

/// `DraftAttentionParams` of kernels/draft_attention.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct DraftAttentionParams {
    batch: BatchTable,
    slots: SlotTable,
    kv: KvTable,
    query: DevicePtr,
    block_keys: DevicePtr,
    block_values: DevicePtr,
    out: DevicePtr,
    partials: Partials,
    window: u32,
    causal: u32,
    ring_slots: u32,
}

/// Dynamic shared memory of a block: ring, `sizeof(DraftShared)`, numbers of the units.
fn shared_bytes(rows: usize, sequences: usize) -> usize {
    RING_SLOTS * SLOT_BYTES + exchange_bytes(rows) + 192 + 4 * (sequences + 1)
}

/// # Panics
/// If heads are not of 128 values or more than eight query heads share a KV head.
pub(super) fn draft_attention(cuda: &Cuda, op: DraftAttention<'_, Cuda>) -> Result<(), OpsError> {
    let (rows, dim, kv_heads) = (op.rows.capacity, op.cache.head_dim, op.cache.heads);
    assert!(
        dim == DIM,
        "drafter heads of {dim} values; CUDA takes {DIM}"
    );
    assert!(
        op.heads.is_multiple_of(kv_heads) && op.heads / kv_heads <= 8,
        "{} query heads on {kv_heads} KV heads; CUDA takes 1 to 8 per KV head",
        op.heads
    );
    let size = PartialSize {
        rows,
        heads: op.heads,
        head_dim: dim,
        pages: op.slots.pages_max,
    };
    let (window, causal) = match op.mask {
        BlockMask::Full => (0, 0),
        BlockMask::CausalWindow(window) => (window, 1),
        BlockMask::Window(window) => (window, 0),
        BlockMask::Causal => (0, 1),
    };
    let params = DraftAttentionParams {
        batch: BatchTable::of(op.batch),
        slots: SlotTable::of(op.slots),
        kv: KvTable::of(op.cache),
        query: op.query.range(0, rows * op.heads * dim),
        block_keys: op.block_keys.range(0, rows * kv_heads * dim),
        block_values: op.block_values.range(0, rows * kv_heads * dim),
        out: op.out.range(0, rows * op.heads * dim),
        partials: Partials::new(cuda, &size),
        window: window as u32,
        causal,
        ring_slots: RING_SLOTS as u32,
    };
    // A block of 16 rows under one KV head, as far as the largest kernel goes.
    let needed = rows.min(EMIT_MAX) * op.heads / kv_heads;
    let (block_rows, threads, kernel) = KERNELS[usize::from(needed > KERNELS[0].0)];
    let pieces = Pieces {
        kernel,
        threads,
        shared_bytes: shared_bytes(block_rows, op.batch.sequences_max),
        merge: MERGE,
    };
    // SAFETY: mirrors the struct in kernels/draft_attention.cu; buffers hold `rows` rows, the
    // scratch one part per piece, row and head.
    unsafe { pieces.run(cuda, &size, params) }
}

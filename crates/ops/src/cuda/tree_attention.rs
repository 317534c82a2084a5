//! Launch of `kernels/tree_attention.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::Entry;
use super::splits::{PartialSize, Partials, Pieces};
use super::tables::{BatchTable, KvTable, SlotTable};
use crate::{Attention, OpsError, TREE_ROWS_MAX};

/// Values per head.
pub(super) const DIM: usize = 256;
/// Slots of the ring of a block: 32 rows of a head each; with the rest they fill the 99 KB that
/// every GPU has for a block.
pub(super) const RING_SLOTS: usize = 5;
pub(super) const SLOT_BYTES: usize = 32 * DIM * 2;

const fn entry(name: &'static str) -> Entry {
    Entry {
        module: "tree_attention",
        name,
    }
}

/// Rows that a block takes, its threads and its kernel.
const KERNELS: [(usize, u32, Entry); 4] = [
    (8, 64, entry("tree_attention_8")),
    (24, 64, entry("tree_attention_24")),
    (48, 128, entry("tree_attention_48")),
    (96, 256, entry("tree_attention_96")),
];
const MERGE: Entry = entry("tree_attention_merge");

/// `TreeAttentionParams` of kernels/tree_attention.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct TreeAttentionParams {
    batch: BatchTable,
    slots: SlotTable,
    kv: KvTable,
    ancestors: DevicePtr,
    query: DevicePtr,
    gate: DevicePtr,
    out: DevicePtr,
    partials: Partials,
    gate_stride: u32,
    ring_slots: u32,
}

/// `sizeof(Exchange)` of kernels/attention.cuh.
pub(super) const fn exchange_bytes(rows: usize) -> usize {
    rows * (64 * 2 + 6 * 4)
}

/// Dynamic shared memory of a block: ring, `sizeof(TreeShared)`, numbers of the units.
fn shared_bytes(rows: usize, sequences: usize) -> usize {
    RING_SLOTS * SLOT_BYTES + exchange_bytes(rows) + 712 + 4 * (sequences + 1)
}

/// # Panics
/// If heads are not of 256 values or more than eight query heads share a KV head.
pub(super) fn tree_attention(cuda: &Cuda, op: Attention<'_, Cuda>) -> Result<(), OpsError> {
    let (rows, dim, kv_heads) = (op.rows.capacity, op.cache.head_dim, op.cache.heads);
    check_heads(op.heads, kv_heads, dim);
    let size = PartialSize {
        rows,
        heads: op.heads,
        head_dim: dim,
        pages: op.slots.pages_max,
    };
    let params = TreeAttentionParams {
        batch: BatchTable::of(op.batch),
        slots: SlotTable::of(op.slots),
        kv: KvTable::of(op.cache),
        ancestors: op.tree.ancestors.range(0, rows),
        query: op.query.range(0, rows * op.heads * dim),
        gate: op.gate.range(0, rows * op.gate_row_stride),
        out: op.out.range(0, rows * op.heads * dim),
        partials: Partials::new(cuda, &size),
        gate_stride: op.gate_row_stride as u32,
        ring_slots: RING_SLOTS as u32,
    };
    // Sequences of a step have equal trees as a rule; a block takes any number of rows in turns.
    let nodes = rows.div_ceil(op.batch.sequences_max.max(1));
    let needed = nodes.min(TREE_ROWS_MAX) * op.heads / kv_heads;
    let (block_rows, threads, kernel) = KERNELS
        .into_iter()
        .find(|(rows, ..)| needed <= *rows)
        .unwrap_or(KERNELS[3]);
    let pieces = Pieces {
        kernel,
        threads,
        shared_bytes: shared_bytes(block_rows, op.batch.sequences_max),
        merge: MERGE,
    };
    // SAFETY: mirrors the struct in kernels/tree_attention.cu; buffers hold `rows` rows, the scratch
    // one part per piece, row and head.
    unsafe { pieces.run(cuda, &size, params) }
}

pub(super) fn check_heads(heads: usize, kv_heads: usize, dim: usize) {
    assert!(dim == DIM, "heads of {dim} values; CUDA takes {DIM}");
    assert!(
        heads.is_multiple_of(kv_heads) && heads / kv_heads <= 8,
        "{heads} query heads on {kv_heads} KV heads; CUDA takes 1 to 8 per KV head"
    );
}

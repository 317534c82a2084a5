//! Launch of `kernels/gdn_scan.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::gdn_sizes::GdnSizes;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, TreeTable};
use crate::limits::SCAN_SLOTS_MAX;
use crate::{GdnMode, GdnScan, OpsError, ScratchNeeds};

const TREE: Entry = Entry {
    module: "gdn_scan",
    name: "gdn_scan_tree",
};

/// Columns of v that a block takes at a time, of 128.
const COLUMNS: usize = 64;
const THREADS: u32 = 128;
/// `sizeof(Shared)`.
const SHARED_BYTES: u32 = 65_808;
/// Blocks on a multiprocessor at most.
const RESIDENT_MAX: u32 = 3;
/// Bytes of the states that a block keeps in global memory: all slots but one.
const DEEP_BYTES: usize = (SCAN_SLOTS_MAX - 1) * COLUMNS * 128 * size_of::<f32>();

#[derive(Clone, Copy)]
#[repr(C)]
struct GdnScanParams {
    batch: BatchTable,
    tree: TreeTable,
    pending: DevicePtr,
    sizes: GdnSizes,
    state: DevicePtr,
    pending_kv: DevicePtr,
    pending_gate: DevicePtr,
    pending_scale: DevicePtr,
    qkv: DevicePtr,
    gate: DevicePtr,
    scale: DevicePtr,
    out: DevicePtr,
    deep: DevicePtr,
}

/// Blocks that scan at once. More would stand in line, each with a slot area of its own.
fn blocks_max(cuda: &Cuda) -> usize {
    (cuda.multiprocessors() * RESIDENT_MAX) as usize
}

pub(super) fn scratch_bytes(cuda: &Cuda, _needs: &ScratchNeeds) -> usize {
    blocks_max(cuda) * DEEP_BYTES
}

pub(super) fn gdn_scan(cuda: &Cuda, op: GdnScan<'_, Cuda>) -> Result<(), OpsError> {
    if op.mode == GdnMode::Prefill {
        return super::gdn_chunk::gdn_chunk(cuda, op);
    }
    let shape = op.state.shape;
    let rows = op.rows.capacity;
    assert!(
        op.out.len() >= rows * shape.value_width()
            && op.journal.qkv.len() >= rows * shape.channels(),
        "{rows} rows into {} values",
        op.out.len()
    );
    let (state, journal) = (op.state, op.journal);
    let sequences = op.batch.sequences_max.min(rows);
    let items = sequences * shape.value_heads * (shape.value_dim / COLUMNS);
    let blocks = items.min(blocks_max(cuda));
    let params = GdnScanParams {
        batch: BatchTable::of(op.batch),
        tree: TreeTable::of(op.tree),
        pending: op.slots.pending.ptr(),
        sizes: GdnSizes::of(shape),
        state: state.state.ptr(),
        pending_kv: state.pending_kv.ptr(),
        pending_gate: state.pending_gate.ptr(),
        pending_scale: state.pending_scale.ptr(),
        qkv: journal.qkv.ptr(),
        gate: journal.gate.ptr(),
        scale: journal.scale.ptr(),
        out: op.out.ptr(),
        deep: cuda.scratch(blocks * DEEP_BYTES),
    };
    let grid = Grid {
        blocks: [blocks as u32, 1, 1],
        threads: THREADS,
        shared: SHARED_BYTES,
    };
    // SAFETY: mirrors the struct in kernels/gdn_scan.cu; slots and rows of the batch lie within the
    // buffers, and a slot belongs to one sequence of a batch.
    unsafe { cuda.run(&TREE, grid, params) }
}

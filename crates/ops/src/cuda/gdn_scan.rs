//! Launch of `kernels/gdn_scan.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::gdn_sizes::GdnSizes;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, TreeTable};
use crate::limits::SCAN_SLOTS_MAX;
use crate::{GdnMode, GdnScan, OpsError, ScratchNeeds};

const fn entry(name: &'static str) -> Entry {
    Entry {
        module: "gdn_scan",
        name,
    }
}

/// Columns of a head that a block takes at a time.
const COLUMNS: usize = 64;
/// Bytes of one saved state: `COLUMNS` columns of 128 rows.
const SLOT_BYTES: usize = COLUMNS * 128 * size_of::<f32>();
/// `sizeof(Shared)` of kernels/gdn_scan.cuh.
const SHARED_BYTES: u32 = 75_024;
/// Sequences from which lanes take four columns instead of two: fewer threads per state, more
/// states on a multiprocessor.
const WIDE_SEQUENCES: usize = 4;

/// `GdnScanParams` of kernels/gdn_scan.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct GdnScanParams {
    batch: BatchTable,
    tree: TreeTable,
    pending: DevicePtr,
    sizes: GdnSizes,
    early: u32,
    state: DevicePtr,
    conv: DevicePtr,
    pending_kv: DevicePtr,
    pending_gate: DevicePtr,
    pending_scale: DevicePtr,
    mixed: DevicePtr,
    qkv: DevicePtr,
    gate: DevicePtr,
    scale: DevicePtr,
    out: DevicePtr,
    deep: DevicePtr,
}

pub(super) fn gdn_scan(cuda: &Cuda, op: GdnScan<'_, Cuda>) -> Result<(), OpsError> {
    let shape = op.state.shape;
    let rows = op.rows.capacity;
    assert!(
        op.out.len() >= rows * shape.value_width(),
        "{rows} rows of {} values in a buffer of {}",
        shape.value_width(),
        op.out.len()
    );
    let sequences = op.batch.sequences_max.min(rows);
    let items = sequences * shape.value_heads * shape.value_dim.div_ceil(COLUMNS);
    let (kernel, threads) = match op.mode {
        GdnMode::Prefill => (entry("gdn_scan_chunk"), 256),
        GdnMode::Verify if sequences >= WIDE_SEQUENCES => (entry("gdn_scan_tree_wide"), 128),
        GdnMode::Verify => (entry("gdn_scan_tree"), 256),
    };
    let blocks = items.min(blocks_max(cuda));
    let params = GdnScanParams {
        batch: BatchTable::of(op.batch),
        tree: TreeTable::of(op.tree),
        pending: op.slots.pending.ptr(),
        sizes: GdnSizes::of(shape),
        early: u32::from(op.mode == GdnMode::Verify),
        state: op.state.state.ptr(),
        conv: op.state.conv.ptr(),
        pending_kv: op.state.pending_kv.ptr(),
        pending_gate: op.state.pending_gate.ptr(),
        pending_scale: op.state.pending_scale.ptr(),
        mixed: op.journal.mixed.ptr(),
        qkv: op.journal.qkv.ptr(),
        gate: op.journal.gate.ptr(),
        scale: op.journal.scale.ptr(),
        out: op.out.ptr(),
        deep: cuda.scratch(blocks * (SCAN_SLOTS_MAX - 1) * SLOT_BYTES),
    };
    let grid = Grid {
        blocks: [blocks as u32, 1, 1],
        threads,
        shared: SHARED_BYTES,
    };
    // SAFETY: mirrors the struct in kernels/gdn_scan.cu; the tables and buffers hold `rows` rows and
    // the scratch one set of slots per block.
    unsafe { cuda.run(&kernel, grid, params) }
}

/// Blocks that can be at work at once: three on a multiprocessor at most.
fn blocks_max(cuda: &Cuda) -> usize {
    3 * cuda.multiprocessors() as usize
}

/// Bytes of scratch.
pub(super) fn scratch_bytes(cuda: &Cuda, _: &ScratchNeeds) -> usize {
    blocks_max(cuda) * (SCAN_SLOTS_MAX - 1) * SLOT_BYTES
}

//! Launch of `kernels/gdn_scan.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::gdn_sizes::GdnSizes;
use super::kernel::{Entry, Grid};
use super::linear::plan::Limits;
use super::tables::{BatchTable, TreeTable};
use crate::limits::SCAN_SLOTS_MAX;
use crate::{GdnMode, GdnScan, OpsError, ScratchNeeds};

const GDN_SCAN: Entry = Entry {
    module: "gdn_scan",
    name: "gdn_scan",
};

/// Columns of v that a group of warps takes at a time, of 128.
const COLUMNS: usize = 64;
/// Threads and `sizeof(Shared)` of a group.
const GROUP_THREADS: u32 = 128;
const GROUP_BYTES: u32 = 64_528;
/// Groups of a block at most.
const GROUPS_MAX: u32 = 3;
/// Shared memory of every block that the system keeps for itself.
const SYSTEM_BYTES: u32 = 1 << 10;
/// Bytes of the states that a group keeps in global memory: all slots but one.
const DEEP_BYTES: usize = (SCAN_SLOTS_MAX - 1) * COLUMNS * 128 * size_of::<f32>();

#[derive(Clone, Copy)]
#[repr(C)]
struct GdnScanParams {
    batch: BatchTable,
    tree: TreeTable,
    pending: DevicePtr,
    sizes: GdnSizes,
    is_tree: u32,
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

/// One block on each multiprocessor at most, with as many groups as the work and the memory allow.
fn grid(items: usize, limits: &Limits) -> Grid {
    let room = (limits.shared_bytes - SYSTEM_BYTES) / GROUP_BYTES;
    let wanted = items.div_ceil(limits.multiprocessors as usize) as u32;
    let groups = wanted.clamp(1, room.clamp(1, GROUPS_MAX));
    Grid {
        blocks: [items.min(limits.multiprocessors as usize) as u32, 1, 1],
        threads: groups * GROUP_THREADS,
        // More than half of a multiprocessor's: two blocks never share one.
        shared: (groups * GROUP_BYTES).max(limits.shared_bytes / 2),
    }
}

pub(super) fn scratch_bytes(cuda: &Cuda, _needs: &ScratchNeeds) -> usize {
    (cuda.multiprocessors() * GROUPS_MAX) as usize * DEEP_BYTES
}

pub(super) fn gdn_scan(cuda: &Cuda, op: GdnScan<'_, Cuda>) -> Result<(), OpsError> {
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
    let grid = grid(items, &Limits::of(cuda)?);
    let groups = (grid.blocks[0] * (grid.threads / GROUP_THREADS)) as usize;
    let params = GdnScanParams {
        batch: BatchTable::of(op.batch),
        tree: TreeTable::of(op.tree),
        pending: op.slots.pending.ptr(),
        sizes: GdnSizes::of(shape),
        is_tree: u32::from(op.mode == GdnMode::Verify),
        state: state.state.ptr(),
        conv: state.conv.ptr(),
        pending_kv: state.pending_kv.ptr(),
        pending_gate: state.pending_gate.ptr(),
        pending_scale: state.pending_scale.ptr(),
        mixed: journal.mixed.ptr(),
        qkv: journal.qkv.ptr(),
        gate: journal.gate.ptr(),
        scale: journal.scale.ptr(),
        out: op.out.ptr(),
        deep: cuda.scratch(groups * DEEP_BYTES),
    };
    // SAFETY: mirrors the struct in kernels/gdn_scan.cu; slots and rows of the batch lie within the
    // buffers, and a slot belongs to one sequence of a batch.
    unsafe { cuda.run(&GDN_SCAN, grid, params) }
}

//! Launch of `kernels/gdn_scan.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::gdn_sizes::GdnSizes;
use super::kernel::{Entry, Grid};
use super::linear::plan::Limits;
use super::tables::{BatchTable, TreeTable};
use crate::limits::SCAN_SLOTS_MAX;
use crate::{GdnMode, GdnScan, GdnShape, OpsError, ScratchNeeds};

/// How a kernel cuts the work: blocks that take so many columns of a value head at a time.
struct Cut {
    entry: Entry,
    /// Columns of v, of 128.
    columns: usize,
    /// `sizeof(Shared)`.
    shared_bytes: u32,
    /// Blocks on a multiprocessor at most.
    resident_max: u32,
    /// What an item takes where all places are filled (measured, in parts of any unit).
    cost: usize,
}

const TREE: Cut = Cut {
    entry: Entry {
        module: "gdn_scan",
        name: "gdn_scan_tree",
    },
    columns: 64,
    shared_bytes: 62_768,
    resident_max: 3,
    cost: 4,
};
const WIDE: Cut = Cut {
    entry: Entry {
        module: "gdn_scan",
        name: "gdn_scan_tree_wide",
    },
    columns: 128,
    shared_bytes: 99_632,
    resident_max: 2,
    cost: 5,
};
const THREADS: u32 = 128;
/// Shared memory of every block that the system keeps for itself.
const SYSTEM_BYTES: u32 = 1 << 10;

impl Cut {
    fn items(&self, sequences: usize, shape: &GdnShape) -> usize {
        sequences * shape.value_heads * (shape.value_dim / self.columns)
    }

    /// Blocks that a multiprocessor has room for.
    fn room(&self, limits: &Limits) -> u32 {
        let room = limits.shared_bytes / (self.shared_bytes + SYSTEM_BYTES);
        room.clamp(1, self.resident_max)
    }

    /// Blocks that scan at once. More would stand in line, each with a slot area of its own.
    fn places(&self, limits: &Limits) -> usize {
        (limits.multiprocessors * self.room(limits)) as usize
    }

    /// Time of a scan: places work off items in rounds.
    fn time(&self, sequences: usize, shape: &GdnShape, limits: &Limits) -> usize {
        let rounds = self.items(sequences, shape).div_ceil(self.places(limits));
        rounds * self.cost
    }

    /// Dynamic shared memory of a block: so much that a multiprocessor has room for as many blocks
    /// as each gets when they are dealt evenly, and for no more. Blocks that start early go wherever
    /// the kernel in front leaves first, else (seen: 96 blocks on 33 to 81 of 132 multiprocessors).
    fn dynamic_bytes(&self, items: usize, limits: &Limits) -> u32 {
        let each = items.div_ceil(limits.multiprocessors as usize) as u32;
        let one_more = each.clamp(1, self.room(limits)) + 1;
        let share = (limits.shared_bytes / one_more).next_multiple_of(128) + 128;
        self.shared_bytes.max(share - SYSTEM_BYTES)
    }

    /// Bytes of the states that a block keeps in global memory: all slots but one.
    fn deep_bytes(&self) -> usize {
        (SCAN_SLOTS_MAX - 1) * self.columns * 128 * size_of::<f32>()
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GdnScanParams {
    batch: BatchTable,
    tree: TreeTable,
    pending: DevicePtr,
    sizes: GdnSizes,
    zero: u32,
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

pub(super) fn scratch_bytes(cuda: &Cuda, _needs: &ScratchNeeds) -> usize {
    let blocks = |cut: &Cut| (cuda.multiprocessors() * cut.resident_max) as usize;
    let bytes = |cut: &Cut| blocks(cut) * cut.deep_bytes();
    bytes(&TREE).max(bytes(&WIDE))
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
    let limits = Limits::of(cuda)?;
    let time = |cut: &Cut| cut.time(sequences, &shape, &limits);
    let cut = match time(&WIDE) < time(&TREE) {
        true => &WIDE,
        false => &TREE,
    };
    let items = cut.items(sequences, &shape);
    let blocks = items.min(cut.places(&limits));
    let params = GdnScanParams {
        batch: BatchTable::of(op.batch),
        tree: TreeTable::of(op.tree),
        pending: op.slots.pending.ptr(),
        sizes: GdnSizes::of(shape),
        zero: 0,
        state: state.state.ptr(),
        pending_kv: state.pending_kv.ptr(),
        pending_gate: state.pending_gate.ptr(),
        pending_scale: state.pending_scale.ptr(),
        qkv: journal.qkv.ptr(),
        gate: journal.gate.ptr(),
        scale: journal.scale.ptr(),
        out: op.out.ptr(),
        deep: cuda.scratch(blocks * cut.deep_bytes()),
    };
    let grid = Grid {
        blocks: [blocks as u32, 1, 1],
        threads: THREADS,
        shared: cut.dynamic_bytes(items, &limits),
    };
    // SAFETY: mirrors the struct in kernels/gdn_scan.cu; slots and rows of the batch lie within the
    // buffers, and a slot belongs to one sequence of a batch.
    unsafe { cuda.run(&cut.entry, grid, params) }
}

//! The walk along the target's choices.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, SlotTable, TreeTable, WalkTable};
use crate::{AcceptWalk, OpsError};

const ACCEPT_WALK: Entry = Entry {
    module: "accept_walk",
    name: "accept_walk",
};

/// `AcceptWalkParams` of kernels/accept_walk.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct AcceptWalkParams {
    batch: BatchTable,
    tree: TreeTable,
    slots: SlotTable,
    choice: DevicePtr,
    walk: WalkTable,
    first: u32,
}

pub(super) fn accept_walk(cuda: &Cuda, op: AcceptWalk<'_, Cuda>) -> Result<(), OpsError> {
    let sequences = op.batch.sequences_max.min(op.walk.sequences_max);
    let params = AcceptWalkParams {
        batch: BatchTable::of(op.batch),
        tree: TreeTable::of(op.tree),
        slots: SlotTable::of(op.slots),
        choice: op.choice.ptr(),
        walk: WalkTable::of(op.walk),
        first: u32::from(op.first),
    };
    let grid = Grid {
        blocks: [sequences as u32, 1, 1],
        threads: 64,
        shared: 0,
    };
    // SAFETY: the struct mirrors the kernel's; every row of a segment has a choice and, where a
    // tree is walked, entries in its tables.
    unsafe { cuda.run(&ACCEPT_WALK, grid, params) }
}

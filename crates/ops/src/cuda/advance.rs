//! Sequences move on.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, SlotTable, WalkTable};
use crate::{Advance, OpsError};

const ADVANCE: Entry = Entry {
    module: "accept_walk",
    name: "advance",
};

/// `AdvanceParams` of kernels/accept_walk.cu, with its `Context` spelt out.
#[derive(Clone, Copy)]
#[repr(C)]
struct AdvanceParams {
    batch: BatchTable,
    walk: WalkTable,
    slots: SlotTable,
    context_live: DevicePtr,
    context_source: DevicePtr,
    context_slot: DevicePtr,
    context_position: DevicePtr,
    first: u32,
}

pub(super) fn advance(cuda: &Cuda, op: Advance<'_, Cuda>) -> Result<(), OpsError> {
    let sequences = op.batch.sequences_max.min(op.walk.sequences_max);
    let params = AdvanceParams {
        batch: BatchTable::of(op.batch),
        walk: WalkTable::of(op.walk),
        slots: SlotTable::of(op.slots),
        context_live: op.context.live.ptr(),
        context_source: op.context.source.ptr(),
        context_slot: op.context.slot.ptr(),
        context_position: op.context.position.ptr(),
        first: u32::from(op.first),
    };
    let grid = Grid {
        blocks: [sequences as u32, 1, 1],
        threads: 32,
        shared: 0,
    };
    // SAFETY: the struct mirrors the kernel's; the context list holds every row of the batch that
    // can be on a path.
    unsafe { cuda.run(&ADVANCE, grid, params) }
}

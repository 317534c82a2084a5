//! Choices made by a given law: `kernels/simulate_acceptance.cu`.

use super::buf::DevicePtr;
use super::device::Cuda;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, SlotTable, TreeTable};
use crate::limits::DEPTH_MAX;
use crate::{OpsError, SimulateAcceptance};

/// `struct SimulateAcceptanceParams`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SimulateAcceptanceParams {
    batch: BatchTable,
    tree: TreeTable,
    slots: SlotTable,
    law: DevicePtr,
    choice: DevicePtr,
    seed_low: u32,
    seed_high: u32,
}

const ENTRY: Entry = Entry {
    module: "simulate_acceptance",
    name: "simulate_acceptance",
};
/// Threads of a block, one per row.
const THREADS: usize = 64;

pub(super) fn simulate_acceptance(
    cuda: &Cuda,
    op: SimulateAcceptance<'_, Cuda>,
) -> Result<(), OpsError> {
    let rows = op.batch.rows_max.min(op.choice.len());
    let params = SimulateAcceptanceParams {
        batch: BatchTable::of(op.batch),
        tree: TreeTable::of(op.tree),
        slots: SlotTable::of(op.slots),
        law: op.law.range(0, 2 * DEPTH_MAX),
        choice: op.choice.ptr(),
        seed_low: op.seed as u32,
        seed_high: (op.seed >> 32) as u32,
    };
    let grid = Grid {
        blocks: [rows.div_ceil(THREADS) as u32, 1, 1],
        threads: THREADS as u32,
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/simulate_acceptance.cu; live rows are at most the rows
    // of the tables and of `choice`.
    unsafe { cuda.run(&ENTRY, grid, params) }
}

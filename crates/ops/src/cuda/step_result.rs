//! What the host reads back.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, WalkTable};
use crate::{OpsError, Prediction, RESULT_WORDS, StepResult};

const STEP_RESULT: Entry = Entry {
    module: "accept_walk",
    name: "step_result",
};

/// `StepResultParams` of kernels/accept_walk.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct StepResultParams {
    batch: BatchTable,
    walk: WalkTable,
    padding: DevicePtr,
    prediction: DevicePtr,
    finite: DevicePtr,
    out: DevicePtr,
}

pub(super) fn step_result(cuda: &Cuda, op: StepResult<'_, Cuda>) -> Result<(), OpsError> {
    let sequences = op.batch.sequences_max.min(op.walk.sequences_max);
    let params = StepResultParams {
        batch: BatchTable::of(op.batch),
        walk: WalkTable::of(op.walk),
        padding: op.padding.ptr(),
        prediction: op.prediction.range(0, sequences * Prediction::LEN),
        finite: op.finite.ptr(),
        out: op.out.range(0, sequences * RESULT_WORDS),
    };
    let grid = Grid {
        blocks: [sequences as u32, 1, 1],
        threads: 32,
        shared: 0,
    };
    // SAFETY: the struct mirrors the kernel's; every row of a segment has its flags.
    unsafe { cuda.run(&STEP_RESULT, grid, params) }
}

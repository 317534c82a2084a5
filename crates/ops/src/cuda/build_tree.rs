//! The draft tree.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, SlotTable};
use crate::{BuildTree, DEPTH_MAX, OpsError, Prediction, TOPK_MAX};

const BUILD_TREE: Entry = Entry {
    module: "draft_tree",
    name: "build_tree",
};

/// `BuildTreeParams` of kernels/draft_tree.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct BuildTreeParams {
    ids: DevicePtr,
    logprobs: DevicePtr,
    block: DevicePtr,
    chain: DevicePtr,
    slots: SlotTable,
    batch: BatchTable,
    padding: DevicePtr,
    prediction: DevicePtr,
    block_size: u32,
    k: u32,
}

/// # Panics
/// If there are more depths or candidates than a tree can use.
pub(super) fn build_tree(cuda: &Cuda, op: BuildTree<'_, Cuda>) -> Result<(), OpsError> {
    let sequences = op.batch.sequences_max;
    assert!(
        op.block_size <= DEPTH_MAX + 1 && op.k <= TOPK_MAX,
        "blocks of {} rows with {} candidates each; at most {} and {TOPK_MAX}",
        op.block_size,
        op.k,
        DEPTH_MAX + 1
    );
    let params = BuildTreeParams {
        ids: op.ids.ptr(),
        logprobs: op.logprobs.ptr(),
        block: op.plan.block.range(0, sequences),
        chain: op.plan.chain.range(0, sequences),
        slots: SlotTable::of(op.slots),
        batch: BatchTable::of(op.batch),
        padding: op.padding.range(0, op.batch.rows_max),
        prediction: op.prediction.range(0, sequences * Prediction::LEN),
        block_size: op.block_size as u32,
        k: op.k as u32,
    };
    let grid = Grid {
        blocks: [sequences as u32, 1, 1],
        threads: 128,
        shared: 0,
    };
    // SAFETY: the struct mirrors the kernel's; segments of at most `TREE_ROWS_MAX` rows lie within
    // the batch, and plans name blocks whose candidates exist.
    unsafe { cuda.run(&BUILD_TREE, grid, params) }
}

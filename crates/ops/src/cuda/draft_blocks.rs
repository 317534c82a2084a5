//! The drafter's input.

use super::Cuda;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, SlotTable};
use crate::{DraftBlocks, OpsError};

const DRAFT_BLOCKS: Entry = Entry {
    module: "draft_tree",
    name: "draft_blocks",
};

/// `DraftBlocksParams` of kernels/draft_tree.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct DraftBlocksParams {
    slots: SlotTable,
    batch: BatchTable,
    mask_token: u32,
    block_size: u32,
}

pub(super) fn draft_blocks(cuda: &Cuda, op: DraftBlocks<'_, Cuda>) -> Result<(), OpsError> {
    let params = DraftBlocksParams {
        slots: SlotTable::of(op.slots),
        batch: BatchTable::of(op.batch),
        mask_token: op.mask_token,
        block_size: op.block_size as u32,
    };
    let grid = Grid {
        blocks: [op.batch.sequences_max as u32, 1, 1],
        threads: 32,
        shared: 0,
    };
    // SAFETY: the struct mirrors the kernel's; segments lie within the batch.
    unsafe { cuda.run(&DRAFT_BLOCKS, grid, params) }
}

//! The draft tree.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, SlotTable};
use crate::{BuildTree, DEPTH_MAX, OpsError, Prediction, ScratchNeeds, TOPK_MAX};

const fn entry(name: &'static str) -> Entry {
    Entry {
        module: "draft_tree",
        name,
    }
}

const BUILD_TREE: Entry = entry("build_tree");
/// One block per sequence, one block, one block per sequence.
const SHARED: [Entry; 3] = [
    entry("find_shared"),
    entry("deal_rows"),
    entry("write_shared"),
];
const THREADS: u32 = 128;
/// Sequences that rows are dealt to at most: one thread each.
const SEQUENCES_MAX: usize = 512;
/// `sizeof(Found)`.
const FOUND_BYTES: usize = 512;

/// `BuildTreeParams` of kernels/draft_tree.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct BuildTreeParams {
    ids: DevicePtr,
    logprobs: DevicePtr,
    block: DevicePtr,
    chain: DevicePtr,
    rows: DevicePtr,
    rows_max: DevicePtr,
    slots: SlotTable,
    batch: BatchTable,
    live_rows: DevicePtr,
    found: DevicePtr,
    padding: DevicePtr,
    prediction: DevicePtr,
    block_size: u32,
    k: u32,
}

/// Bytes of scratch of a step that shares its rows.
pub(super) fn scratch_bytes(_: &Cuda, needs: &ScratchNeeds) -> usize {
    needs.sequences * FOUND_BYTES
}

/// # Panics
/// If there are more depths or candidates than a tree can use, or more sequences than can share.
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
        rows: op.plan.rows.range(0, sequences),
        rows_max: op.plan.rows_max.range(0, sequences),
        slots: SlotTable::of(op.slots),
        batch: BatchTable::of(op.batch),
        live_rows: op.batch.live.range(0, 1),
        found: match op.shared {
            true => cuda.scratch(sequences * FOUND_BYTES),
            false => DevicePtr::NULL,
        },
        padding: op.padding.range(0, op.batch.rows_max),
        prediction: op.prediction.range(0, sequences * Prediction::LEN),
        block_size: op.block_size as u32,
        k: op.k as u32,
    };
    let each = Grid {
        blocks: [sequences as u32, 1, 1],
        threads: THREADS,
        shared: 0,
    };
    if !op.shared {
        // SAFETY: the struct mirrors the kernel's; segments of at most `TREE_ROWS_MAX` rows lie
        // within the batch, and plans name blocks whose candidates exist.
        return unsafe { cuda.run(&BUILD_TREE, each, params) };
    }
    assert!(
        sequences <= SEQUENCES_MAX,
        "{sequences} sequences share rows; at most {SEQUENCES_MAX}"
    );
    let one = Grid {
        blocks: [1, 1, 1],
        threads: sequences.next_multiple_of(32) as u32,
        shared: 0,
    };
    for (entry, grid) in SHARED.iter().zip([each, one, each]) {
        // SAFETY: as above, where segments together have as many rows as the plan gives; scratch
        // holds what is found for each sequence.
        unsafe { cuda.run(entry, grid, params)? };
    }
    Ok(())
}

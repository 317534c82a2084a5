//! Launch of `kernels/conv_tree.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::gdn_sizes::GdnSizes;
use super::kernel::{Entry, Grid};
use super::tables::BatchTable;
use crate::{ConvTree, OpsError};

const CONV_TREE: Entry = Entry {
    module: "conv_tree",
    name: "conv_tree",
};

/// Channels of v, and heads of gates, that one warp takes.
const WARP_CHANNELS: usize = 256;
const WARP_GATES: usize = 32;
/// Warps of a block.
const WARPS: usize = 4;

#[derive(Clone, Copy)]
#[repr(C)]
struct ConvTreeParams {
    batch: BatchTable,
    conv_source: DevicePtr,
    sizes: GdnSizes,
    rows: u32,
    block_rows: u32,
    conv: DevicePtr,
    weight: DevicePtr,
    a_log: DevicePtr,
    dt_bias: DevicePtr,
    mixed: DevicePtr,
    qkv: DevicePtr,
    gate: DevicePtr,
    scale: DevicePtr,
}

/// Rows of a block (measured): as few as keep the weights, which every block reads anew, from
/// outweighing the rows.
fn block_rows(rows: usize) -> usize {
    (rows / 64).clamp(1, 4)
}

pub(super) fn conv_tree(cuda: &Cuda, op: ConvTree<'_, Cuda>) -> Result<(), OpsError> {
    let shape = op.state.shape;
    let rows = op.rows.capacity;
    let block_rows = block_rows(rows);
    let journal = op.journal;
    assert!(
        journal.qkv.len() >= rows * shape.channels() && op.weight.len() >= 4 * shape.channels(),
        "{rows} rows in a journal of {} values",
        journal.qkv.len()
    );
    let params = ConvTreeParams {
        batch: BatchTable::of(op.batch),
        conv_source: op.tree.conv_source.ptr(),
        sizes: GdnSizes::of(shape),
        rows: rows as u32,
        block_rows: block_rows as u32,
        conv: op.state.conv.ptr(),
        weight: op.weight.ptr(),
        a_log: op.a_log.ptr(),
        dt_bias: op.dt_bias.ptr(),
        mixed: journal.mixed.ptr(),
        qkv: journal.qkv.ptr(),
        gate: journal.gate.ptr(),
        scale: journal.scale.ptr(),
    };
    let warps = shape.key_heads
        + shape.value_width().div_ceil(WARP_CHANNELS)
        + shape.value_heads.div_ceil(WARP_GATES);
    let grid = Grid {
        blocks: [
            warps.div_ceil(WARPS) as u32,
            rows.div_ceil(block_rows) as u32,
            1,
        ],
        threads: 32 * WARPS as u32,
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/conv_tree.cu. Rows stay below `rows` and the live
    // count, which the buffers hold.
    unsafe { cuda.run(&CONV_TREE, grid, params) }
}

//! Launch of `kernels/gated_norm.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::gdn_sizes::GdnSizes;
use super::kernel::{Entry, Grid};
use crate::{GatedNorm, OpsError};

const GATED_NORM: Entry = Entry {
    module: "gated_norm",
    name: "gated_norm",
};

/// Threads of a block, and those that share a head.
const THREADS: usize = 128;
const HEAD_THREADS: usize = 16;

#[derive(Clone, Copy)]
#[repr(C)]
struct GatedNormParams {
    live: DevicePtr,
    sizes: GdnSizes,
    rows: u32,
    eps: f32,
    o: DevicePtr,
    mixed: DevicePtr,
    weight: DevicePtr,
    out: DevicePtr,
}

pub(super) fn gated_norm(cuda: &Cuda, op: GatedNorm<'_, Cuda>) -> Result<(), OpsError> {
    let rows = op.rows.capacity;
    assert!(
        op.out.len() >= rows * op.shape.value_width() && op.o.len() >= op.out.len().min(rows),
        "{rows} rows into {} values",
        op.out.len()
    );
    let params = GatedNormParams {
        live: op.rows.live.ptr(),
        sizes: GdnSizes::of(op.shape),
        rows: rows as u32,
        eps: op.eps,
        o: op.o.ptr(),
        mixed: op.mixed.ptr(),
        weight: op.weight.ptr(),
        out: op.out.ptr(),
    };
    let blocks = (rows * op.shape.value_heads * HEAD_THREADS).div_ceil(THREADS);
    let grid = Grid {
        blocks: [blocks as u32, 1, 1],
        threads: THREADS as u32,
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/gated_norm.cu; the buffers hold `rows` rows.
    unsafe { cuda.run(&GATED_NORM, grid, params) }
}

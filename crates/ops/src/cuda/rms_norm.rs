//! Root-mean-square norm.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use crate::{OpsError, RmsNorm};

const RMS_NORM: Entry = Entry {
    module: "rows",
    name: "rms_norm",
};
const NORM_THREADS: usize = 256;
/// Values a block holds: eight vectors of four per thread.
pub(super) const DIM_MAX: usize = NORM_THREADS * 8 * 4;

/// `RmsNormParams` of kernels/rows.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct RmsNormParams {
    live: DevicePtr,
    x: DevicePtr,
    weight: DevicePtr,
    out: DevicePtr,
    vectors: u32,
    dim: f32,
    eps: f32,
}

/// # Panics
/// If rows are no multiple of 4 values or longer than [`DIM_MAX`].
pub(super) fn rms_norm(cuda: &Cuda, op: RmsNorm<'_, Cuda>) -> Result<(), OpsError> {
    let (rows, dim) = (op.rows.capacity, op.dim);
    assert!(
        dim % 4 == 0 && dim <= DIM_MAX,
        "norm over {dim} values; CUDA takes multiples of 4 up to {DIM_MAX}"
    );
    let params = RmsNormParams {
        live: op.rows.live.ptr(),
        x: op.x.range(0, rows * dim),
        weight: op.weight.range(0, dim),
        out: op.out.range(0, rows * dim),
        vectors: (dim / 4) as u32,
        dim: dim as f32,
        eps: op.eps,
    };
    let grid = Grid {
        blocks: [rows as u32, 1, 1],
        threads: NORM_THREADS as u32,
        shared: 0,
    };
    // SAFETY: the struct mirrors the kernel's; all buffers have `rows` rows of `dim` values.
    unsafe { cuda.run(&RMS_NORM, grid, params) }
}

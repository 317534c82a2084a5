//! Products of prompts and of more than 512 rows on GPUs other than Hopper: cuBLASLt.
//!
//! A row's bits do not depend on the number of rows, but they may differ from those of
//! `kernels/linear.cu`, although slices of K and unrounded gates and ups are kept: the library's
//! kernels have their own order of summation (`tests/linear/many_rows.rs` prints where the GPU at
//! hand agrees). It knows nothing of live rows: all rows are computed, which is what a prompt has.

use cudarc::driver::result;

use super::plan::Store;
use super::{Product, SCRATCH_ALIGNMENT, slice_end};
use crate::OpsError;
use crate::cuda::blas::{Blas, Gemm, WORKSPACE_BYTES};
use crate::cuda::buf::DevicePtr;
use crate::cuda::device::{Cuda, device_error};
use crate::cuda::kernel::{Entry, Grid};

/// More rows than a step of any size has.
pub(super) const ROWS_MIN: usize = 513;

const SWIGLU: Entry = Entry {
    module: "swiglu",
    name: "swiglu",
};
const SWIGLU_THREADS: usize = 256;
/// Values that a thread of it makes.
const SWIGLU_VALUES: usize = 8;

/// `struct SwigluParams`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SwigluParams {
    gate_up: DevicePtr,
    out: DevicePtr,
    rows: u32,
    vectors: u32,
    out_row: u64,
}

/// Enqueues a product.
pub(super) fn enqueue(
    cuda: &Cuda,
    product: &Product<'_>,
    weight: DevicePtr,
) -> Result<(), OpsError> {
    let blas = cuda.blas()?.expect("the route needs the library");
    let (rows, outputs, columns) = (
        product.rows.capacity,
        product.weight.rows,
        product.weight.columns,
    );
    let used = product.scratch_used.next_multiple_of(SCRATCH_ALIGNMENT);
    let scratch = cuda.scratch(used + WORKSPACE_BYTES);
    let whole = Gemm {
        rows,
        outputs,
        columns,
        stride: columns,
        out_row: product.out_row,
        wide: product.store != Store::Bf16,
        add: product.store == Store::Add,
        x: product.x.range(0, rows * columns),
        weight,
        out: product.out,
        workspace: DevicePtr(scratch.0 + used as u64),
    };
    match product.store {
        Store::Swiglu => gated(cuda, &blas, product, &whole),
        Store::Bf16 | Store::F32 | Store::Add => sliced(cuda, &blas, product, &whole),
    }
}

/// Each slice of K to its own plane.
fn sliced(cuda: &Cuda, blas: &Blas, product: &Product<'_>, whole: &Gemm) -> Result<(), OpsError> {
    let plane = whole.rows * whole.out_row * if whole.wide { 4 } else { 2 };
    for slice in 0..product.slices {
        let begin = slice_end(whole.columns, slice, product.slices);
        let end = slice_end(whole.columns, slice + 1, product.slices);
        let out = offset(whole.out, slice * plane);
        if begin == end {
            // SAFETY: a plane of `out`, which has as many as there are slices.
            unsafe { result::memset_d8_async(out.0, 0, plane, cuda.device.stream.cu_stream()) }
                .map_err(|error| device_error(&error))?;
            continue;
        }
        let gemm = Gemm {
            columns: end - begin,
            x: offset(whole.x, 2 * begin),
            weight: offset(whole.weight, 2 * begin),
            out,
            ..*whole
        };
        // SAFETY: columns begin..end of rows that were checked; a plane of `out`.
        unsafe { blas.run(cuda, &gemm) }?;
    }
    Ok(())
}

/// Gates and ups as f32 in the op's scratch, as many rows at a time as it takes, then their
/// activation; unrounded in between, as in the fused kernels.
fn gated(cuda: &Cuda, blas: &Blas, product: &Product<'_>, whole: &Gemm) -> Result<(), OpsError> {
    let (room, room_bytes) = product.room;
    let (outputs, vectors) = (whole.outputs, whole.outputs / 2 / SWIGLU_VALUES);
    let rows_max = room_bytes / (outputs * size_of::<f32>());
    assert!(rows_max > 0, "no room for a row of gates and ups");
    for first in (0..whole.rows).step_by(rows_max) {
        let rows = rows_max.min(whole.rows - first);
        let gemm = Gemm {
            rows,
            out_row: outputs,
            x: offset(whole.x, 2 * first * whole.columns),
            out: room,
            ..*whole
        };
        // SAFETY: rows first..first + rows of x; the room takes that many rows of f32.
        unsafe { blas.run(cuda, &gemm) }?;
        let params = SwigluParams {
            gate_up: room,
            out: offset(whole.out, 2 * first * whole.out_row),
            rows: rows as u32,
            vectors: vectors as u32,
            out_row: whole.out_row as u64,
        };
        let grid = Grid {
            blocks: [(rows * vectors).div_ceil(SWIGLU_THREADS) as u32, 1, 1],
            threads: SWIGLU_THREADS as u32,
            shared: 0,
        };
        // SAFETY: mirrors the struct in kernels/swiglu.cu; `rows` rows of both.
        unsafe { cuda.run(&SWIGLU, grid, params) }?;
    }
    Ok(())
}

fn offset(start: DevicePtr, bytes: usize) -> DevicePtr {
    DevicePtr(start.0 + bytes as u64)
}

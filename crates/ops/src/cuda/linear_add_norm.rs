//! A product into the residual stream and the norm behind it: slices of K to scratch, then one
//! block per row that adds them up.

use super::buf::DevicePtr;
use super::device::Cuda;
use super::kernel::{Entry, Grid};
use super::linear::plan::{Limits, Store};
use super::linear::{self, Product};
use crate::{LinearAddNorm, OpsError, ScratchNeeds};

/// Parts of K that are summed by themselves: the outputs alone are too few to occupy a GPU. Also in
/// kernels/add_norm.cu.
const SLICES: usize = 4;

/// Values of a vector load.
const VECTOR: usize = 4;

const ADD_NORM: Entry = Entry {
    module: "add_norm",
    name: "add_norm",
};
/// As in kernels/add_norm.cu.
const THREADS: u32 = 320;

/// `struct AddNormParams`.
#[derive(Clone, Copy)]
#[repr(C)]
struct AddNormParams {
    partials: DevicePtr,
    residual: DevicePtr,
    norm_weight: DevicePtr,
    normed: DevicePtr,
    live: DevicePtr,
    slice: u64,
    dim: u32,
    eps: f32,
}

/// Bytes of the slices of the largest forward.
pub(super) fn scratch_bytes(cuda: &Cuda, needs: &ScratchNeeds) -> usize {
    partial_bytes(needs.rows.max(needs.prefill_rows), needs.hidden) + linear::scratch_bytes(cuda)
}

fn partial_bytes(rows: usize, outputs: usize) -> usize {
    SLICES * rows * outputs * size_of::<f32>()
}

pub(super) fn linear_add_norm(cuda: &Cuda, op: LinearAddNorm<'_, Cuda>) -> Result<(), OpsError> {
    enqueue(cuda, op, &Limits::of(cuda)?)
}

/// The op, divided for a GPU of these limits.
pub(super) fn enqueue(
    cuda: &Cuda,
    op: LinearAddNorm<'_, Cuda>,
    limits: &Limits,
) -> Result<(), OpsError> {
    let (rows, outputs) = (op.rows.capacity, op.weight.rows);
    if !outputs.is_multiple_of(VECTOR) {
        return Err(OpsError::Device(format!(
            "a residual stream on CUDA needs a multiple of {VECTOR} values, this one has {outputs}"
        )));
    }
    if rows * outputs == 0 {
        return Ok(());
    }
    let scratch_used = partial_bytes(rows, outputs);
    let partials = cuda.scratch(scratch_used);
    let product = Product {
        rows: op.rows,
        x: op.x,
        weight: op.weight,
        slices: SLICES,
        store: Store::F32,
        out: partials,
        out_row: outputs,
        scratch_used,
        room: (DevicePtr::NULL, 0),
    };
    product.enqueue(cuda, limits)?;
    let params = AddNormParams {
        partials,
        residual: op.residual.range(0, rows * outputs),
        norm_weight: op.norm_weight.range(0, outputs),
        normed: op.normed.range(0, rows * outputs),
        live: op.rows.live.ptr(),
        slice: (rows * outputs) as u64,
        dim: outputs as u32,
        eps: op.eps,
    };
    let grid = Grid {
        blocks: [rows as u32, 1, 1],
        threads: THREADS,
        shared: (outputs * size_of::<f32>()) as u32,
    };
    // SAFETY: mirrors the struct in kernels/add_norm.cu; every buffer was checked, the scratch
    // holds `SLICES` slices.
    unsafe { cuda.run(&ADD_NORM, grid, params) }
}

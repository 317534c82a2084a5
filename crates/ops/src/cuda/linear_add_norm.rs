//! A product into the residual stream and the norm behind it. In a step: slices of K to scratch,
//! then one block per row that adds them up. Prompts have outputs enough to occupy a GPU without
//! slices: the product is added where it is made.

use super::buf::DevicePtr;
use super::device::Cuda;
use super::kernel::{Entry, Grid};
use super::linear::plan::{Limits, Store};
use super::linear::{self, Product, Route};
use crate::{LinearAddNorm, OpsError, RmsNorm, ScratchNeeds};

/// Parts of K that are summed by themselves: the outputs alone are too few to occupy a GPU. Also in
/// kernels/add_norm.cu.
const SLICES: usize = 4;

/// Values of a vector load.
const VECTOR: usize = 4;

/// As in kernels/add_norm.cu.
const THREADS: u32 = 640;

/// Vectors per thread of a kernel, and its name.
const ADD_NORM: [(usize, &str); 2] = [(1, "add_norm_1"), (2, "add_norm_2")];

/// Values of the longest residual stream.
pub(super) const DIM_MAX: usize = ADD_NORM[ADD_NORM.len() - 1].0 * VECTOR * THREADS as usize;

/// The kernel for rows of `dim` values.
fn add_norm(dim: usize) -> Result<Entry, OpsError> {
    let held = |vectors: usize| vectors * VECTOR * THREADS as usize;
    let fits = ADD_NORM.iter().find(|&&(vectors, _)| dim <= held(vectors));
    match fits {
        Some(&(_, name)) if dim.is_multiple_of(VECTOR) => Ok(Entry {
            module: "add_norm",
            name,
        }),
        _ => Err(OpsError::Device(format!(
            "a residual stream on CUDA has a multiple of {VECTOR} values and at most {DIM_MAX}, this \
             one has {dim}"
        ))),
    }
}

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

impl Cuda {
    /// The product of the op without the norm, whose slices stay in the scratch: for measurements.
    #[doc(hidden)]
    pub fn linear_slices(&self, op: &LinearAddNorm<'_, Cuda>) -> Result<(), OpsError> {
        product(self, op, &Limits::of(self)?).map(|_| ())
    }
}

/// The slices of the product, in the scratch.
fn product(
    cuda: &Cuda,
    op: &LinearAddNorm<'_, Cuda>,
    limits: &Limits,
) -> Result<DevicePtr, OpsError> {
    let (rows, outputs) = (op.rows.capacity, op.weight.rows);
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
    Ok(partials)
}

/// The op, divided for a GPU of these limits.
pub(super) fn enqueue(
    cuda: &Cuda,
    op: LinearAddNorm<'_, Cuda>,
    limits: &Limits,
) -> Result<(), OpsError> {
    let (rows, outputs) = (op.rows.capacity, op.weight.rows);
    let entry = add_norm(outputs)?;
    if rows * outputs == 0 {
        return Ok(());
    }
    if op.rows.prompt && Route::of(cuda, &op.rows, op.weight.columns, limits)? != Route::Blocks {
        return added(cuda, op, limits);
    }
    let partials = product(cuda, &op, limits)?;
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
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/add_norm.cu; every buffer was checked, the scratch
    // holds `SLICES` slices.
    unsafe { cuda.run(&entry, grid, params) }
}

fn added(cuda: &Cuda, op: LinearAddNorm<'_, Cuda>, limits: &Limits) -> Result<(), OpsError> {
    let (rows, outputs) = (op.rows.capacity, op.weight.rows);
    let product = Product {
        rows: op.rows,
        x: op.x,
        weight: op.weight,
        slices: 1,
        store: Store::Add,
        out: op.residual.range(0, rows * outputs),
        out_row: outputs,
        scratch_used: 0,
        room: (DevicePtr::NULL, 0),
    };
    product.enqueue(cuda, limits)?;
    super::rms_norm::rms_norm(
        cuda,
        RmsNorm {
            rows: op.rows,
            dim: outputs,
            eps: op.eps,
            x: op.residual,
            weight: op.norm_weight,
            out: op.normed,
        },
    )
}

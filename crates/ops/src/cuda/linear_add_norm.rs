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
/// kernels/add_norm.cuh.
const SLICES: usize = 4;

/// Values of a vector load.
const VECTOR: usize = 4;

/// A kernel of `kernels/add_norm.cuh`.
struct AddNorm {
    /// Blocks of a row.
    blocks: u32,
    threads: u32,
    /// Vectors of a thread.
    vectors: usize,
    entry: Entry,
}

impl AddNorm {
    const fn new(blocks: u32, threads: u32, vectors: usize, entry: Entry) -> Self {
        AddNorm {
            blocks,
            threads,
            vectors,
            entry,
        }
    }

    /// Values of the longest row.
    const fn dim_max(&self) -> usize {
        self.blocks as usize * self.threads as usize * self.vectors * VECTOR
    }

    /// The kernel for rows of `dim` values.
    fn of(dim: usize, limits: &Limits) -> Result<&'static Self, OpsError> {
        let kernels = match limits.warpgroups {
            true => &HOPPER[..],
            false => &ANY[..],
        };
        let fitting = kernels.iter().find(|kernel| dim <= kernel.dim_max());
        match fitting {
            Some(kernel) if dim.is_multiple_of(VECTOR) => Ok(kernel),
            _ => Err(OpsError::Device(format!(
                "a residual stream on CUDA has a multiple of {VECTOR} values and at most \
                 {DIM_MAX}, this one has {dim}"
            ))),
        }
    }
}

const fn entry(module: &'static str, name: &'static str) -> Entry {
    Entry { module, name }
}

/// One block a row.
const ANY: [AddNorm; 2] = [
    AddNorm::new(1, 640, 1, entry("add_norm", "add_norm_1")),
    AddNorm::new(1, 640, 2, entry("add_norm", "add_norm_2")),
];

/// A cluster of blocks a row.
const HOPPER: [AddNorm; 1] = [AddNorm::new(
    4,
    320,
    1,
    entry("sm90_add_norm", "add_norm_cluster"),
)];

/// Values of the longest residual stream.
pub(super) const DIM_MAX: usize = ANY[ANY.len() - 1].dim_max();
const _: () = assert!(HOPPER[0].dim_max() == DIM_MAX);

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
    let kernel = AddNorm::of(outputs, limits)?;
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
        blocks: [kernel.blocks * rows as u32, 1, 1],
        threads: kernel.threads,
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/add_norm.cuh; every buffer was checked, the scratch
    // holds `SLICES` slices.
    unsafe { cuda.run(&kernel.entry, grid, params) }
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

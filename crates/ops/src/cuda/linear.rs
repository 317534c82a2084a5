//! Products with weights of the device: what is common to their ops, and the plain one.

use half::bf16;

use self::plan::{Division, Kernel, Limits, Shape, Store, plan};
use super::buf::{CudaBuf, DevicePtr};
use super::device::Cuda;
use crate::{Linear, LinearOut, OpsError, Rows, Storage, Tensor};

mod large;
pub(super) mod plan;
mod wide;
mod wide_plan;

/// `struct LinearParams`.
#[derive(Clone, Copy)]
#[repr(C)]
struct LinearParams {
    weight: DevicePtr,
    x: DevicePtr,
    out: DevicePtr,
    live: DevicePtr,
    out_slice: u64,
    out_row: u32,
    rows: u32,
    outputs: u32,
    columns: u32,
    division: Division,
}

/// A product with its buffers.
pub(super) struct Product<'a> {
    pub(super) rows: Rows<'a, Cuda>,
    /// `[rows, weight.columns]`.
    pub(super) x: &'a CudaBuf<bf16>,
    pub(super) weight: &'a Tensor<Cuda>,
    pub(super) slices: usize,
    pub(super) store: Store,
    /// `[slices, rows, out_row]`; the caller vouches for its size.
    pub(super) out: DevicePtr,
    /// Values per row of `out`.
    pub(super) out_row: usize,
    /// Bytes of scratch that the caller uses itself; what lies behind is the product's.
    pub(super) scratch_used: usize,
    /// Memory that [`Store::Swiglu`] may use, and its bytes: at least `[rows, weight.rows]` of bf16
    /// and one such row of f32.
    pub(super) room: (DevicePtr, usize),
}

impl Product<'_> {
    /// Enqueues the product, divided for a GPU of these limits.
    pub(super) fn enqueue(&self, cuda: &Cuda, limits: &Limits) -> Result<(), OpsError> {
        let (rows, outputs, columns) = (self.rows.capacity, self.weight.rows, self.weight.columns);
        if rows * outputs == 0 {
            return Ok(());
        }
        let Storage::Bf16(weight) = &self.weight.storage else {
            return Err(OpsError::Device(format!(
                "products on CUDA need bf16 weights, this one is {:?}",
                self.weight.storage.dtype()
            )));
        };
        if !columns.is_multiple_of(COLUMNS_STEP) {
            return Err(OpsError::Device(format!(
                "products on CUDA need a multiple of {COLUMNS_STEP} inputs, this weight has \
                 {columns}"
            )));
        }
        let weight = weight.range(0, outputs * columns);
        match Route::of(cuda, &self.rows, columns, limits)? {
            Route::Warpgroups => return wide::enqueue(cuda, self, weight, limits),
            Route::Library => return large::enqueue(cuda, self, weight),
            Route::Blocks => {}
        }
        let shape = Shape {
            outputs,
            slices: self.slices,
            store: self.store,
        };
        let Kernel {
            entry,
            grid,
            division,
        } = plan(rows, &shape, limits);
        let params = LinearParams {
            weight,
            x: self.x.range(0, rows * columns),
            out: self.out,
            live: self.rows.live.ptr(),
            out_slice: (rows * self.out_row) as u64,
            out_row: self.out_row as u32,
            rows: rows as u32,
            outputs: outputs as u32,
            columns: columns as u32,
            division,
        };
        // SAFETY: mirrors the struct in kernels/linear_params.cuh; weight and x were checked, `out`
        // holds `[slices, rows, out_row]` values as the caller says.
        unsafe { cuda.run(&entry, grid, params) }
    }
}

/// Which kernels multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// `kernels/sm90_linear.cu`.
    Warpgroups,
    /// cuBLASLt.
    Library,
    /// `kernels/linear.cu`.
    Blocks,
}

impl Route {
    /// Of rows by a weight of `columns` inputs. Prompts have one route on a GPU, whatever the
    /// number of rows: the library's bits are its own.
    pub(super) fn of(
        cuda: &Cuda,
        rows: &Rows<'_, Cuda>,
        columns: usize,
        limits: &Limits,
    ) -> Result<Self, OpsError> {
        if wide::serves(rows, columns, limits) {
            return Ok(Route::Warpgroups);
        }
        let many = rows.prompt || rows.capacity >= large::ROWS_MIN;
        Ok(match many && cuda.blas()?.is_some() {
            true => Route::Library,
            false => Route::Blocks,
        })
    }
}

/// K of one matrix instruction.
const COLUMNS_STEP: usize = 16;

/// Columns that a slice of K consists of, as in `kernels/linear_params.cuh`.
const SLICE_STEP: usize = 128;

/// Where slice `slice - 1` of `slices` slices of K ends and `slice` begins. It depends on K and
/// their number only, and so do a product's bits.
fn slice_end(columns: usize, slice: usize, slices: usize) -> usize {
    let steps = columns.div_ceil(SLICE_STEP);
    columns.min(SLICE_STEP * (steps * slice / slices))
}

/// Bytes that a product needs behind [`Product::scratch_used`].
pub(super) fn scratch_bytes(cuda: &Cuda) -> usize {
    let carry = match Limits::warpgroups(cuda) {
        true => wide_plan::carry_bytes(cuda.multiprocessors()),
        false => 0,
    };
    carry.max(super::blas::WORKSPACE_BYTES) + SCRATCH_ALIGNMENT
}

/// Of the part of the scratch that is the product's, in bytes.
const SCRATCH_ALIGNMENT: usize = 256;

pub(super) fn linear(cuda: &Cuda, op: Linear<'_, Cuda>) -> Result<(), OpsError> {
    let (rows, outputs) = (op.rows.capacity, op.weight.rows);
    assert!(
        outputs <= op.out_stride,
        "{outputs} outputs in rows of {}",
        op.out_stride
    );
    let values = rows * op.out_stride;
    let (store, out) = match &op.out {
        LinearOut::Act(out) => (Store::Bf16, out.range(0, values)),
        LinearOut::F32(out) => (Store::F32, out.range(0, values)),
    };
    let product = Product {
        rows: op.rows,
        x: op.x,
        weight: op.weight,
        slices: 1,
        store,
        out,
        out_row: op.out_stride,
        scratch_used: 0,
        room: (DevicePtr::NULL, 0),
    };
    product.enqueue(cuda, &Limits::of(cuda)?)
}

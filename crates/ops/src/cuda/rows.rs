//! Copies of rows.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use crate::{CopyColumns, GatherRows, OpsError};

const GATHER_ROWS: Entry = Entry {
    module: "rows",
    name: "gather_rows",
};
const COPY_COLUMNS: Entry = Entry {
    module: "rows",
    name: "copy_columns",
};
/// Threads of a block, each of which copies one vector.
const COPY_THREADS: usize = 128;

/// Groups of eight values of a row: 16 bytes of bf16.
#[derive(Clone, Copy)]
pub(super) struct Vectors(usize);

impl Vectors {
    /// # Panics
    /// If eight does not divide `dim`.
    pub(super) fn of_eight(dim: usize) -> Self {
        assert!(
            dim % 8 == 0,
            "rows of {dim} values; CUDA takes multiples of 8"
        );
        Vectors(dim / 8)
    }

    pub(super) fn count(self) -> u32 {
        self.0 as u32
    }
}

/// One block per row and `COPY_THREADS` vectors.
pub(super) fn copy_grid(rows: usize, vectors: Vectors) -> Grid {
    Grid {
        blocks: [rows as u32, vectors.0.div_ceil(COPY_THREADS) as u32, 1],
        threads: COPY_THREADS as u32,
        shared: 0,
    }
}

/// `GatherRowsParams` of kernels/rows.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct GatherRowsParams {
    live: DevicePtr,
    source: DevicePtr,
    x: DevicePtr,
    out: DevicePtr,
    vectors: u32,
}

/// # Panics
/// If rows are no multiple of 8 values.
pub(super) fn gather_rows(cuda: &Cuda, op: GatherRows<'_, Cuda>) -> Result<(), OpsError> {
    let rows = op.rows.capacity;
    let vectors = Vectors::of_eight(op.dim);
    let params = GatherRowsParams {
        live: op.rows.live.ptr(),
        source: op.source.range(0, rows),
        x: op.x.ptr(),
        out: op.out.range(0, rows * op.dim),
        vectors: vectors.count(),
    };
    // SAFETY: the struct mirrors the kernel's; `source` and the output have `rows` rows, and the
    // lists of an engine name rows of `x`.
    unsafe { cuda.run(&GATHER_ROWS, copy_grid(rows, vectors), params) }
}

/// `CopyColumnsParams` of kernels/rows.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct CopyColumnsParams {
    live: DevicePtr,
    x: DevicePtr,
    out: DevicePtr,
    vectors: u32,
    offset: u32,
    out_vectors: u32,
}

/// # Panics
/// If the columns do not fit, or one of the sizes is no multiple of 8 values.
pub(super) fn copy_columns(cuda: &Cuda, op: CopyColumns<'_, Cuda>) -> Result<(), OpsError> {
    let rows = op.rows.capacity;
    assert!(
        op.offset + op.dim <= op.out_dim,
        "columns {}..{} of rows of {}",
        op.offset,
        op.offset + op.dim,
        op.out_dim
    );
    let vectors = Vectors::of_eight(op.dim);
    let params = CopyColumnsParams {
        live: op.rows.live.ptr(),
        x: op.x.range(0, rows * op.dim),
        out: op.out.range(0, rows * op.out_dim),
        vectors: vectors.count(),
        offset: Vectors::of_eight(op.offset).count(),
        out_vectors: Vectors::of_eight(op.out_dim).count(),
    };
    // SAFETY: the struct mirrors the kernel's; both buffers have `rows` rows, and the columns fit.
    unsafe { cuda.run(&COPY_COLUMNS, copy_grid(rows, vectors), params) }
}

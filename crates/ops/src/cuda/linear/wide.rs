//! Products of more than 16 rows on Hopper: launches of `kernels/sm90_linear.cu`.

use std::mem::MaybeUninit;

use cudarc::driver::sys;

use super::plan::{Limits, Store};
use super::wide_plan::{Division, WideKernel, carry_bytes, wide_plan};
use super::{Product, SCRATCH_ALIGNMENT};
use crate::cuda::buf::DevicePtr;
use crate::cuda::device::{Cuda, device_error};
use crate::{OpsError, Rows};

/// Fewer rows are served better by `kernels/linear.cu`, whose blocks share multiprocessors and load
/// weights while the kernel in front still runs.
const ROWS_MIN: usize = 17;

/// The copy engine wants rows that start at multiples of 16 bytes.
const COLUMNS_STEP: usize = 8;

/// Columns of a copied tile: 128 bytes, the longest row that its swizzle knows.
const TILE_COLUMNS: usize = 64;

/// `struct WideParams`.
#[derive(Clone, Copy)]
#[repr(C)]
struct WideParams {
    weight: sys::CUtensorMap,
    x: sys::CUtensorMap,
    target: sys::CUtensorMap,
    live: DevicePtr,
    out: DevicePtr,
    carry: DevicePtr,
    out_slice: u64,
    out_row: u32,
    outputs: u32,
    division: Division,
    output: u32,
    bulk: u32,
}

/// Whether these kernels take a product.
pub(super) fn serves(rows: &Rows<'_, Cuda>, columns: usize, limits: &Limits) -> bool {
    let enough = rows.prompt || rows.capacity >= ROWS_MIN;
    limits.warpgroups && enough && columns.is_multiple_of(COLUMNS_STEP)
}

/// Enqueues a product that is served.
pub(super) fn enqueue(
    cuda: &Cuda,
    product: &Product<'_>,
    weight: DevicePtr,
    limits: &Limits,
) -> Result<(), OpsError> {
    let (rows, outputs, columns) = (
        product.rows.capacity,
        product.weight.rows,
        product.weight.columns,
    );
    let WideKernel {
        entry,
        grid,
        division,
        weight_rows,
        x_rows,
        part_rows,
    } = wide_plan(rows, outputs, columns, product.slices, limits);
    // Where the accumulators go that blocks hand over.
    let used = product.scratch_used.next_multiple_of(SCRATCH_ALIGNMENT);
    let carry = match division.is_split() {
        true => cuda.scratch(used + carry_bytes(limits.multiprocessors)).0 + used as u64,
        false => 0,
    };
    let x = product.x.range(0, rows * columns);
    let target = target(product, part_rows)?;
    let params = WideParams {
        weight: tiles(weight, outputs, columns, weight_rows)?,
        x: tiles(x, rows, columns, x_rows)?,
        bulk: target.is_some().into(),
        target: target.unwrap_or(sys::CUtensorMap { opaque: [0; 16] }),
        live: product.rows.live.ptr(),
        out: product.out,
        carry: DevicePtr(carry),
        out_slice: (rows * product.out_row) as u64,
        out_row: product.out_row as u32,
        outputs: outputs as u32,
        division,
        output: match product.store {
            Store::Bf16 => 0,
            Store::F32 => 1,
            Store::Swiglu => 2,
            Store::Add => 3,
        },
    };
    // SAFETY: mirrors the struct in kernels/wide_params.cuh; weight and x were checked by the
    // caller, `out` holds `[slices, rows, out_row]` values as it says, and the scratch was asked for.
    unsafe { cuda.run(&entry, grid, params) }
}

/// The descriptor of `[rows, columns]` bf16 values that are copied by `tile_rows` rows, swizzled;
/// what lies outside reads as zero.
fn tiles(
    values: DevicePtr,
    rows: usize,
    columns: usize,
    tile_rows: usize,
) -> Result<sys::CUtensorMap, OpsError> {
    Tiles {
        values,
        dtype: sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        extents: [columns, rows, 1],
        row_bytes: columns * size_of::<half::bf16>(),
        tile: [TILE_COLUMNS, tile_rows],
        swizzle: sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
    }
    .encode(2)
}

/// The descriptor of what a product writes, where the copy engine can: rows start and end at
/// multiples of its step.
fn target(
    product: &Product<'_>,
    part_rows: Option<[usize; 2]>,
) -> Result<Option<sys::CUtensorMap>, OpsError> {
    use sys::CUtensorMapDataType as Type;
    use sys::CUtensorMapSwizzle as Swizzle;
    let Some([f32_rows, bf16_rows]) = part_rows else {
        return Ok(None);
    };
    let bf16 = Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    let wide = Swizzle::CU_TENSOR_MAP_SWIZZLE_128B;
    let outputs = product.weight.rows;
    let (dtype, bytes, outputs, tile, swizzle) = match product.store {
        Store::Bf16 => (bf16, 2, outputs, [64, bf16_rows], wide),
        Store::F32 => {
            let f32 = Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
            (f32, 4, outputs, [32, f32_rows], wide)
        }
        Store::Swiglu => {
            let narrow = Swizzle::CU_TENSOR_MAP_SWIZZLE_64B;
            (bf16, 2, outputs / 2, [32, bf16_rows], narrow)
        }
        Store::Add => return Ok(None),
    };
    let row_bytes = product.out_row * bytes;
    let steps = [row_bytes, outputs * bytes, product.out.0 as usize];
    if !steps.iter().all(|step| step.is_multiple_of(COPY_STEP)) {
        return Ok(None);
    }
    let tiles = Tiles {
        values: product.out,
        dtype,
        extents: [outputs, product.rows.capacity, product.slices],
        row_bytes,
        tile,
        swizzle,
    };
    tiles.encode(3).map(Some)
}

/// Bytes that the copy engine stores at a time.
const COPY_STEP: usize = 16;

/// Values `[planes, rows, columns]` that are copied by tiles.
struct Tiles {
    values: DevicePtr,
    dtype: sys::CUtensorMapDataType,
    /// Columns, rows, planes.
    extents: [usize; 3],
    row_bytes: usize,
    /// Columns and rows of a tile.
    tile: [usize; 2],
    swizzle: sys::CUtensorMapSwizzle,
}

impl Tiles {
    /// The descriptor in so many dimensions, two or three.
    fn encode(&self, dimensions: u32) -> Result<sys::CUtensorMap, OpsError> {
        let mut map = MaybeUninit::<sys::CUtensorMap>::uninit();
        let [columns, rows, planes] = self.extents.map(|extent| extent as u64);
        let row = self.row_bytes as u64;
        let tile = self.tile.map(|extent| extent as u32);
        // SAFETY: writes the descriptor; reads as many extents, tile sizes and steps as there are
        // dimensions, and one stride less.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                map.as_mut_ptr(),
                self.dtype,
                dimensions,
                self.values.0 as *mut _,
                [columns, rows, planes].as_ptr(),
                [row, row * rows].as_ptr(),
                [tile[0], tile[1], 1].as_ptr(),
                [1, 1, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                self.swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(|error| {
            OpsError::Device(format!(
                "tiles of {:?} of {:?} values: {}",
                self.tile,
                self.extents,
                device_error(&error)
            ))
        })?;
        // SAFETY: the call above succeeded.
        Ok(unsafe { map.assume_init() })
    }
}

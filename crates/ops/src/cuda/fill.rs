//! Stand-in weights.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use crate::fill::name_hash;
use crate::{Fill, FillLaw, FillTarget, OpsError};

const FILL_F32: Entry = Entry {
    module: "fill",
    name: "fill_f32",
};
const FILL_BF16: Entry = Entry {
    module: "fill",
    name: "fill_bf16",
};
const FILL_THREADS: usize = 256;
/// Values per thread.
const FILL_VALUES: usize = 8;

/// `FillParams` of kernels/fill.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct FillParams {
    out: DevicePtr,
    len: u64,
    seed: u64,
    name: u64,
    law: u32,
    a: f32,
    b: f32,
}

/// # Panics
/// If the values are f16.
pub(super) fn fill(cuda: &Cuda, op: Fill<'_, Cuda>) -> Result<(), OpsError> {
    let (entry, out, len) = match op.values {
        FillTarget::F32(values) => (&FILL_F32, values.ptr(), values.len()),
        FillTarget::Bf16(values) => (&FILL_BF16, values.ptr(), values.len()),
        FillTarget::F16(_) => panic!("CUDA has no f16 weights"),
    };
    let (law, a, b) = match op.law {
        FillLaw::Constant(value) => (0, value, 0.0),
        FillLaw::Normal { mean, deviation } => (1, mean, deviation),
        FillLaw::LogUniform { low, high } => (2, low, high),
    };
    let params = FillParams {
        out,
        len: len as u64,
        seed: op.seed,
        name: name_hash(op.name),
        law,
        a,
        b,
    };
    let blocks = len.div_ceil(FILL_THREADS * FILL_VALUES);
    let grid = Grid {
        blocks: [
            u32::try_from(blocks).expect("a buffer of less than 2^43 values"),
            1,
            1,
        ],
        threads: FILL_THREADS as u32,
        shared: 0,
    };
    // SAFETY: the struct mirrors the kernel's (words of a u64 are low first there and here); `out`
    // has `len` values.
    unsafe { cuda.run(entry, grid, params) }
}

//! Weights and caches: a matrix or a pool stored as f32, f16 or bf16.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::{Backend, Cpu, OpsError};

/// How numbers are stored. Arithmetic is f32 on the CPU whatever the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit IEEE.
    F32,
    /// 16-bit IEEE.
    F16,
    /// 16-bit brain float.
    Bf16,
}

impl Dtype {
    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// Values in one of the storage types.
pub enum Storage<B: Backend> {
    /// 32-bit IEEE values.
    F32(B::Buf<f32>),
    /// 16-bit IEEE values.
    F16(B::Buf<f16>),
    /// 16-bit brain-float values.
    Bf16(B::Buf<bf16>),
}

impl<B: Backend> Storage<B> {
    /// A zeroed pool of `len` values.
    pub fn zeros(backend: &B, dtype: Dtype, len: usize) -> Result<Self, OpsError> {
        Ok(match dtype {
            Dtype::F32 => Storage::F32(backend.alloc(len)?),
            Dtype::F16 => Storage::F16(backend.alloc(len)?),
            Dtype::Bf16 => Storage::Bf16(backend.alloc(len)?),
        })
    }

    /// The storage type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Storage::F32(_) => Dtype::F32,
            Storage::F16(_) => Dtype::F16,
            Storage::Bf16(_) => Dtype::Bf16,
        }
    }
}

impl Storage<Cpu> {
    /// Widens `out.len()` values from `offset` on; exact.
    pub(crate) fn widen_to(&self, offset: usize, out: &mut [f32]) {
        let range = offset..offset + out.len();
        match self {
            Storage::F32(values) => out.copy_from_slice(&values[range]),
            Storage::F16(values) => values[range].convert_to_f32_slice(out),
            Storage::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = f32::from_bits(u32::from(value.to_bits()) << 16);
                }
            }
        }
    }

    /// Stores `values` from `offset` on, rounded to the nearest number of the type.
    pub(crate) fn narrow_from(&mut self, offset: usize, values: &[f32]) {
        let range = offset..offset + values.len();
        match self {
            Storage::F32(to) => to[range].copy_from_slice(values),
            Storage::F16(to) => to[range].convert_from_f32_slice(values),
            Storage::Bf16(to) => to[range].convert_from_f32_slice(values),
        }
    }
}

/// A weight matrix `[rows, columns]`, row-major: `rows` outputs, `columns` inputs.
pub struct Tensor<B: Backend> {
    /// The values.
    pub storage: Storage<B>,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
}

impl<B: Backend> Tensor<B> {
    /// Converts `values` to `dtype` and puts them on the device.
    ///
    /// # Panics
    /// If `values.len() != rows * columns`.
    pub fn from_f32(
        backend: &B,
        dtype: Dtype,
        rows: usize,
        columns: usize,
        values: &[f32],
    ) -> Result<Self, OpsError> {
        assert_eq!(
            values.len(),
            rows * columns,
            "a matrix has rows * columns values"
        );
        let storage = match dtype {
            Dtype::F32 => Storage::F32(upload(backend, values)?),
            Dtype::F16 => {
                let narrow: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
                Storage::F16(upload(backend, &narrow)?)
            }
            Dtype::Bf16 => {
                let narrow: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
                Storage::Bf16(upload(backend, &narrow)?)
            }
        };
        Ok(Tensor {
            storage,
            rows,
            columns,
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.rows * self.columns * self.storage.dtype().bytes()
    }
}

fn upload<B: Backend, T: crate::Element>(backend: &B, values: &[T]) -> Result<B::Buf<T>, OpsError> {
    let mut buf = backend.alloc(values.len())?;
    backend.upload(values, &mut buf, 0)?;
    Ok(buf)
}

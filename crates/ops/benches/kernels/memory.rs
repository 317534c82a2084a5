//! Buffers with random values.

use half::bf16;
use ops::{
    Backend, Cuda, Dtype, Element, Fill, FillLaw, FillTarget, KvLayer, OpsError, Storage, Tensor,
};

pub type Buf<T> = <Cuda as Backend>::Buf<T>;

/// Memory that launches go through in turn: well above the second-level cache of any GPU.
const ROTATION_BYTES: usize = 256 << 20;

/// Buffers of `bytes` bytes to take in turn.
pub fn turns(bytes: usize) -> usize {
    ROTATION_BYTES.div_ceil(bytes).clamp(1, 64)
}

/// `values` on the device.
pub fn put<T: Element>(cuda: &Cuda, values: &[T]) -> Result<Buf<T>, OpsError> {
    let mut buf = cuda.alloc(values.len())?;
    cuda.upload(values, &mut buf, 0)?;
    Ok(buf)
}

/// Normal values with the given standard deviation.
pub fn fill(cuda: &Cuda, values: FillTarget<'_, Cuda>, deviation: f32) -> Result<(), OpsError> {
    cuda.fill(Fill {
        values,
        law: FillLaw::Normal {
            mean: 0.0,
            deviation,
        },
        seed: 1,
        name: "kernels",
    })
}

/// `len` standard normal activations.
pub fn normal(cuda: &Cuda, len: usize) -> Result<Buf<bf16>, OpsError> {
    let mut buf = cuda.alloc(len)?;
    fill(cuda, FillTarget::Bf16(&mut buf), 1.0)?;
    Ok(buf)
}

/// `len` standard normal values.
pub fn normal_f32(cuda: &Cuda, len: usize) -> Result<Buf<f32>, OpsError> {
    let mut buf = cuda.alloc(len)?;
    fill(cuda, FillTarget::F32(&mut buf), 1.0)?;
    Ok(buf)
}

/// A weight that keeps a product as large as its input.
pub fn weight(cuda: &Cuda, rows: usize, columns: usize) -> Result<Tensor<Cuda>, OpsError> {
    let mut storage = Storage::zeros(cuda, Dtype::Bf16, rows * columns)?;
    fill(cuda, (&mut storage).into(), (columns as f32).powf(-0.5))?;
    Ok(Tensor {
        storage,
        rows,
        columns,
    })
}

/// `count` pools of `pages` pages.
pub fn caches(
    cuda: &Cuda,
    count: usize,
    pages: usize,
    heads: usize,
    head_dim: usize,
) -> Result<Vec<KvLayer<Cuda>>, OpsError> {
    let cache = |_| {
        let mut cache = KvLayer::new(cuda, Dtype::Bf16, pages, heads, head_dim)?;
        fill(cuda, (&mut cache.keys).into(), 1.0)?;
        fill(cuda, (&mut cache.values).into(), 1.0)?;
        Ok(cache)
    };
    (0..count).map(cache).collect()
}

//! Sizes of a GDN layer as kernels take them.

use crate::GdnShape;

/// Values per head of q, k and v on CUDA.
const HEAD_DIM: usize = 128;

/// `struct GdnSizes` of `kernels/gdn.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GdnSizes {
    key_heads: u32,
    value_heads: u32,
    mixed_stride: u32,
}

impl GdnSizes {
    /// # Panics
    /// If a head is not 128 x 128 or the heads do not group: checked when a model is loaded.
    pub(super) fn of(shape: GdnShape) -> Self {
        assert!(
            shape.key_dim == HEAD_DIM
                && shape.value_dim == HEAD_DIM
                && shape.value_heads.is_multiple_of(shape.key_heads),
            "CUDA takes GDN heads of {HEAD_DIM} x {HEAD_DIM} in whole groups, not {shape:?}"
        );
        GdnSizes {
            key_heads: shape.key_heads as u32,
            value_heads: shape.value_heads as u32,
            mixed_stride: shape.mixed_stride() as u32,
        }
    }
}

//! Sizes of a model that a device may not have kernels for.

use crate::{Dtype, GdnShape};

/// What a device is asked about before a model is loaded to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSizes {
    /// Rows of embedding and head.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the target's MLP.
    pub intermediate: usize,
    /// Layers of full attention.
    pub attention_layers: usize,
    /// Their heads.
    pub attention: HeadSizes,
    /// GDN layers.
    pub gdn_layers: usize,
    /// Their heads.
    pub gdn: GdnShape,
    /// The drafter's MLP and heads.
    pub drafter: Option<(usize, HeadSizes)>,
    /// Storage of weights and of keys and values.
    pub dtype: Dtype,
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSizes {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub dim: usize,
    /// Rotated ones of them.
    pub rotary: usize,
}

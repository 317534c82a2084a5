//! `config.json` of the target and of the drafter.

mod drafter;
mod fields;
mod target;

use ops::{Dtype, HeadSizes, ModelSizes};

use crate::{CheckpointSource, ModelError};

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Softmax attention over the whole context.
    FullAttention,
    /// Gated DeltaNet.
    LinearAttention,
}

/// The target's sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// `model_type` as written.
    pub model_type: String,
    /// `architectures` as written.
    pub architectures: Vec<String>,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// What each layer is.
    pub layers: Vec<LayerKind>,
    /// Query heads.
    pub attention_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Values per attention head.
    pub head_dim: usize,
    /// Rotated values per head.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Sizes of the GDN layers.
    pub gdn: ops::GdnShape,
    /// Rows of embedding and head.
    pub vocab_size: usize,
    /// Longest context.
    pub context_max: usize,
    /// Epsilon of all norms.
    pub norm_eps: f32,
    /// The head is the embedding table.
    pub tied_head: bool,
}

/// The drafter's sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct DrafterConfig {
    /// Width of the residual stream; the target's.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// What each layer's block rows may see.
    pub layers: Vec<ops::BlockMask>,
    /// Query heads.
    pub attention_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Rows of a block, anchor included.
    pub block_size: usize,
    /// Id of the mask token.
    pub mask_token: u32,
    /// Target layers whose outputs are the features.
    pub taps: Vec<usize>,
    /// Layers of the target it was trained for.
    pub target_layers: usize,
    /// Rows of the target's embedding it was trained for.
    pub vocab_size: usize,
    /// Epsilon of all norms.
    pub norm_eps: f32,
}

impl ModelConfig {
    /// Reads the target's `config.json`, wrapper or text-only.
    pub fn read(source: &CheckpointSource) -> Result<Self, ModelError> {
        target::read(&fields::Fields::read(source, "config.json")?)
    }

    /// Queries with their gates, keys and values of one row of an attention layer.
    pub(crate) fn mixed_width(&self) -> usize {
        (2 * self.attention_heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Full-attention layers.
    pub fn attention_layers(&self) -> usize {
        self.layers
            .iter()
            .filter(|kind| **kind == LayerKind::FullAttention)
            .count()
    }

    /// What a device is asked about before this is loaded to it.
    pub fn sizes(&self, drafter: Option<&DrafterConfig>, dtype: Dtype) -> ModelSizes {
        let drafter = drafter.map(|sizes| {
            let heads = HeadSizes {
                heads: sizes.attention_heads,
                kv_heads: sizes.kv_heads,
                dim: sizes.head_dim,
                rotary: sizes.head_dim,
            };
            (sizes.intermediate_size, heads)
        });
        ModelSizes {
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            attention_layers: self.attention_layers(),
            attention: HeadSizes {
                heads: self.attention_heads,
                kv_heads: self.kv_heads,
                dim: self.head_dim,
                rotary: self.rotary_dim,
            },
            gdn_layers: self.gdn_layers(),
            gdn: self.gdn,
            drafter,
            dtype,
        }
    }

    /// GDN layers.
    pub fn gdn_layers(&self) -> usize {
        self.layers.len() - self.attention_layers()
    }
}

impl DrafterConfig {
    /// Reads the drafter's `config.json` and checks that it fits the target.
    pub fn read(source: &CheckpointSource, target: &ModelConfig) -> Result<Self, ModelError> {
        let config = drafter::read(&fields::Fields::read(source, "config.json")?)?;
        config.fits(target)?;
        Ok(config)
    }

    /// Queries, keys and values of one row of a layer.
    pub(crate) fn mixed_width(&self) -> usize {
        (self.attention_heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Keys and values of one row of all layers.
    pub(crate) fn context_width(&self) -> usize {
        self.layers.len() * 2 * self.kv_heads * self.head_dim
    }

    /// Drafted tokens per block: every row but the anchor.
    pub fn depths(&self) -> usize {
        self.block_size - 1
    }
}

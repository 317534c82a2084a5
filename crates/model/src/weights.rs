//! Weights of target and drafter on the device, fused where one product serves several tensors.

use ops::{Backend, Tensor};

use crate::loader::{Loader, Part, Vector};
use crate::{DrafterConfig, LayerKind, ModelConfig, ModelError};

/// Gate, up and down projections.
pub(crate) struct Mlp<B: Backend> {
    /// `[2 * intermediate, hidden]`, interleaved by eights.
    pub(crate) gate_up: Tensor<B>,
    /// `[hidden, intermediate]`.
    pub(crate) down: Tensor<B>,
}

/// A full-attention mixer.
pub(crate) struct AttentionWeights<B: Backend> {
    /// `[query_rows + 2 * kv_heads * head_dim, hidden]`: queries, keys, values. A query head is
    /// query, then gate, in the target, and query alone in the drafter.
    pub(crate) mixed: Tensor<B>,
    /// `[hidden, heads * head_dim]`.
    pub(crate) output: Tensor<B>,
    /// `[head_dim]` norm factors.
    pub(crate) query_norm: B::Buf<f32>,
    pub(crate) key_norm: B::Buf<f32>,
}

/// A GDN mixer.
pub(crate) struct GdnWeights<B: Backend> {
    /// `[channels + value_width + 2 * value_heads, hidden]`: q, k, v, z, b, a.
    pub(crate) mixed: Tensor<B>,
    /// `[channels, 4]`.
    pub(crate) conv: B::Buf<f32>,
    /// `[value_heads]`.
    pub(crate) a_log: B::Buf<f32>,
    pub(crate) dt_bias: B::Buf<f32>,
    /// `[value_dim]` plain factor.
    pub(crate) norm: B::Buf<f32>,
    /// `[hidden, value_width]`.
    pub(crate) output: Tensor<B>,
}

/// What mixes tokens in a target layer.
pub(crate) enum Mixer<B: Backend> {
    Attention(AttentionWeights<B>),
    Gdn(GdnWeights<B>),
}

/// One layer of the target.
pub(crate) struct TargetLayer<B: Backend> {
    pub(crate) input_norm: B::Buf<f32>,
    pub(crate) mixer: Mixer<B>,
    pub(crate) post_norm: B::Buf<f32>,
    pub(crate) mlp: Mlp<B>,
}

/// The target's weights.
pub(crate) struct TargetWeights<B: Backend> {
    /// `[vocab, hidden]`.
    pub(crate) embedding: Tensor<B>,
    pub(crate) layers: Vec<TargetLayer<B>>,
    pub(crate) norm: B::Buf<f32>,
    /// `[vocab, hidden]`; `None` = the embedding table serves as head.
    pub(crate) head: Option<Tensor<B>>,
    /// `[rotary_dim / 2]`.
    pub(crate) frequency: B::Buf<f32>,
}

impl<B: Backend> TargetWeights<B> {
    /// The output projection.
    pub(crate) fn head(&self) -> &Tensor<B> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Takes every tensor of the target. Its norms store the factor less one.
    pub(crate) fn load(from: &mut Loader<'_, B>, config: &ModelConfig) -> Result<Self, ModelError> {
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let table = |name: &str| (format!("{name}.weight"), vocab, hidden);
        let (name, rows, columns) = table("model.embed_tokens");
        let embedding = from.matrix(name, rows, columns)?;
        let (name, rows, columns) = table("lm_head");
        // A tied checkpoint may still carry a copy of the table, for which the plan has no room.
        let head = match config.tied_head {
            true => from.leave(name, rows, columns).map(|()| None)?,
            false => Some(from.matrix(name, rows, columns)?),
        };
        Ok(TargetWeights {
            embedding,
            head,
            layers: (0..config.layers.len())
                .map(|index| target_layer(from, config, index))
                .collect::<Result<_, _>>()?,
            norm: norm(from, "model.norm", hidden, 1.0)?,
            frequency: from.upload(&frequencies(config.rope_theta, config.rotary_dim))?,
        })
    }
}

fn norm<B: Backend>(
    from: &mut Loader<'_, B>,
    name: &str,
    len: usize,
    add: f32,
) -> Result<B::Buf<f32>, ModelError> {
    from.vector(format!("{name}.weight"), &[len], Vector::Norm(add))
}

fn target_layer<B: Backend>(
    from: &mut Loader<'_, B>,
    config: &ModelConfig,
    index: usize,
) -> Result<TargetLayer<B>, ModelError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.hidden_size;
    let mixer = match config.layers[index] {
        LayerKind::FullAttention => {
            let sizes = AttentionSizes {
                hidden,
                // Query and gate of a head lie behind each other.
                query_rows: config.attention_heads * 2 * config.head_dim,
                heads: config.attention_heads,
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
                norm_add: 1.0,
            };
            let (weights, _) = attention(from, &format!("{prefix}.self_attn"), &sizes)?;
            Mixer::Attention(weights)
        }
        LayerKind::LinearAttention => {
            Mixer::Gdn(gdn(from, config, &format!("{prefix}.linear_attn"))?)
        }
    };
    Ok(TargetLayer {
        input_norm: norm(from, &format!("{prefix}.input_layernorm"), hidden, 1.0)?,
        mixer,
        post_norm: norm(
            from,
            &format!("{prefix}.post_attention_layernorm"),
            hidden,
            1.0,
        )?,
        mlp: mlp(from, &prefix, hidden, config.intermediate_size)?,
    })
}

struct AttentionSizes {
    hidden: usize,
    query_rows: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// 1 where norms store the factor less one, 0 where they store the factor.
    norm_add: f32,
}

/// The mixer, and its key and value projections by themselves.
fn attention<B: Backend>(
    from: &mut Loader<'_, B>,
    prefix: &str,
    sizes: &AttentionSizes,
) -> Result<(AttentionWeights<B>, [Part; 2]), ModelError> {
    let (hidden, head_dim) = (sizes.hidden, sizes.head_dim);
    let kv_rows = sizes.kv_heads * head_dim;
    let name = |name: &str| format!("{prefix}.{name}.weight");
    let query = from.take(name("q_proj"), sizes.query_rows, hidden)?;
    let key = from.take(name("k_proj"), kv_rows, hidden)?;
    let value = from.take(name("v_proj"), kv_rows, hidden)?;
    let kv = [key.again(), value.again()];
    let weights = AttentionWeights {
        mixed: from.stacked(&[query, key, value])?,
        output: from.matrix(name("o_proj"), hidden, sizes.heads * head_dim)?,
        query_norm: norm(from, &format!("{prefix}.q_norm"), head_dim, sizes.norm_add)?,
        key_norm: norm(from, &format!("{prefix}.k_norm"), head_dim, sizes.norm_add)?,
    };
    Ok((weights, kv))
}

fn gdn<B: Backend>(
    from: &mut Loader<'_, B>,
    config: &ModelConfig,
    prefix: &str,
) -> Result<GdnWeights<B>, ModelError> {
    let (hidden, shape) = (config.hidden_size, config.gdn);
    let (channels, width, heads) = (shape.channels(), shape.value_width(), shape.value_heads);
    let name = |name: &str| format!("{prefix}.{name}");
    let mixed = [
        ("in_proj_qkv.weight", channels),
        ("in_proj_z.weight", width),
        ("in_proj_b.weight", heads),
        ("in_proj_a.weight", heads),
    ]
    .into_iter()
    .map(|(part, rows)| from.take(name(part), rows, hidden))
    .collect::<Result<Vec<_>, _>>()?;
    Ok(GdnWeights {
        mixed: from.stacked(&mixed)?,
        conv: from.vector(
            name("conv1d.weight"),
            &[channels, 1, 4],
            Vector::Convolution,
        )?,
        a_log: from.vector(name("A_log"), &[heads], Vector::DecayLog)?,
        dt_bias: from.vector(name("dt_bias"), &[heads], Vector::DecayBias)?,
        norm: norm(from, &name("norm"), shape.value_dim, 0.0)?,
        output: from.matrix(name("out_proj.weight"), hidden, width)?,
    })
}

fn mlp<B: Backend>(
    from: &mut Loader<'_, B>,
    prefix: &str,
    hidden: usize,
    intermediate: usize,
) -> Result<Mlp<B>, ModelError> {
    let name = |name: &str| format!("{prefix}.mlp.{name}.weight");
    let gate = from.take(name("gate_proj"), intermediate, hidden)?;
    let up = from.take(name("up_proj"), intermediate, hidden)?;
    Ok(Mlp {
        gate_up: from.gate_up(gate, up)?,
        down: from.matrix(name("down_proj"), hidden, intermediate)?,
    })
}

/// One layer of the drafter.
pub(crate) struct DrafterLayer<B: Backend> {
    pub(crate) input_norm: B::Buf<f32>,
    pub(crate) attention: AttentionWeights<B>,
    pub(crate) post_norm: B::Buf<f32>,
    pub(crate) mlp: Mlp<B>,
}

/// The drafter's weights; embedding and head are the target's.
pub(crate) struct DrafterWeights<B: Backend> {
    /// `[hidden, taps * hidden]`.
    pub(crate) features: Tensor<B>,
    pub(crate) features_norm: B::Buf<f32>,
    /// `[layers * 2 * kv_heads * head_dim, hidden]`: keys and values of layer 0, of layer 1, ...
    /// A second copy of rows of the layers' `mixed`: the context of all layers is one product of
    /// the same features.
    pub(crate) context_kv: Tensor<B>,
    pub(crate) layers: Vec<DrafterLayer<B>>,
    pub(crate) norm: B::Buf<f32>,
    /// `[head_dim / 2]`.
    pub(crate) frequency: B::Buf<f32>,
}

impl<B: Backend> DrafterWeights<B> {
    /// Takes every tensor of the drafter. Its norms store the factor itself.
    pub(crate) fn load(
        from: &mut Loader<'_, B>,
        config: &DrafterConfig,
    ) -> Result<Self, ModelError> {
        let hidden = config.hidden_size;
        let sizes = AttentionSizes {
            hidden,
            query_rows: config.attention_heads * config.head_dim,
            heads: config.attention_heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            norm_add: 0.0,
        };
        let (mut layers, mut context_kv) = (Vec::new(), Vec::new());
        for index in 0..config.layers.len() {
            let prefix = format!("layers.{index}");
            let (attention, kv) = attention(from, &format!("{prefix}.self_attn"), &sizes)?;
            context_kv.extend(kv);
            let mut norm = |name: &str| norm(from, &format!("{prefix}.{name}"), hidden, 0.0);
            layers.push(DrafterLayer {
                input_norm: norm("input_layernorm")?,
                attention,
                post_norm: norm("post_attention_layernorm")?,
                mlp: mlp(from, &prefix, hidden, config.intermediate_size)?,
            });
        }
        Ok(DrafterWeights {
            features: from.matrix("fc.weight".to_owned(), hidden, config.taps.len() * hidden)?,
            features_norm: norm(from, "hidden_norm", hidden, 0.0)?,
            context_kv: from.stacked(&context_kv)?,
            layers,
            norm: norm(from, "norm", hidden, 0.0)?,
            frequency: from.upload(&frequencies(config.rope_theta, config.head_dim))?,
        })
    }
}

/// `theta^(-2 j / rotary)` for `j = 0 .. rotary / 2`, rounded to f32 once.
fn frequencies(theta: f64, rotary: usize) -> Vec<f32> {
    (0..rotary / 2)
        .map(|j| theta.powf(-2.0 * j as f64 / rotary as f64) as f32)
        .collect()
}

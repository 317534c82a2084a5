//! Weights of target and drafter on the device, fused where one product serves several tensors.

use candle_core::Tensor as HostTensor;
use ops::{Backend, Dtype, Tensor, gate_up_rows};

use crate::checkpoint::{Checkpoint, flat};
use crate::{DrafterConfig, LayerKind, ModelConfig, ModelError};

/// Turns host tensors into device weights of one storage type.
pub(crate) struct Uploader<'a, B: Backend> {
    pub(crate) backend: &'a B,
    /// Storage of matrices; `None` = read and drop them, for a check that needs no room.
    pub(crate) dtype: Option<Dtype>,
}

impl<B: Backend> Uploader<'_, B> {
    /// Matrices `[out_i, in]` stacked along their outputs.
    fn matrix(&self, parts: &[HostTensor]) -> Result<Tensor<B>, ModelError> {
        self.tensor(parts, |parts| parts.iter().flat_map(flat).collect())
    }

    /// Gate and up projection, their outputs interleaved as [`ops::LinearSwiglu`] wants them.
    fn gate_up(&self, gate: HostTensor, up: HostTensor) -> Result<Tensor<B>, ModelError> {
        let (intermediate, columns) = (gate.dims()[0], gate.dims()[1]);
        self.tensor(&[gate, up], |parts| {
            let (gate, up) = (flat(&parts[0]), flat(&parts[1]));
            let mut values = vec![0.0; 2 * intermediate * columns];
            for j in 0..intermediate {
                let (gate_row, up_row) = gate_up_rows(j, intermediate);
                for (from, to) in [(&gate, gate_row), (&up, up_row)] {
                    values[to * columns..][..columns]
                        .copy_from_slice(&from[j * columns..][..columns]);
                }
            }
            values
        })
    }

    /// A matrix with the outputs of all parts, in the order of `values`.
    fn tensor(
        &self,
        parts: &[HostTensor],
        values: impl FnOnce(&[HostTensor]) -> Vec<f32>,
    ) -> Result<Tensor<B>, ModelError> {
        let columns = parts[0].dims()[1];
        let (dtype, rows, values) = match self.dtype {
            Some(dtype) => {
                let rows = parts.iter().map(|part| part.dims()[0]).sum();
                (dtype, rows, values(parts))
            }
            None => (Dtype::Bf16, 0, Vec::new()),
        };
        Ok(Tensor::from_f32(
            self.backend,
            dtype,
            rows,
            columns,
            &values,
        )?)
    }

    /// A vector, always f32. `add` is what the checkpoint leaves out of a norm's factor.
    fn vector(&self, tensor: &HostTensor, add: f32) -> Result<B::Buf<f32>, ModelError> {
        let values: Vec<f32> = flat(tensor).iter().map(|value| value + add).collect();
        self.upload(&values)
    }

    pub(crate) fn upload(&self, values: &[f32]) -> Result<B::Buf<f32>, ModelError> {
        let mut buf = self.backend.alloc(values.len())?;
        self.backend.upload(values, &mut buf, 0)?;
        Ok(buf)
    }
}

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
    pub(crate) fn load(
        up: &Uploader<'_, B>,
        config: &ModelConfig,
        file: &mut Checkpoint,
    ) -> Result<Self, ModelError> {
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let embedding = file.take("model.embed_tokens.weight", &[vocab, hidden])?;
        let norm = file.take("model.norm.weight", &[hidden])?;
        // A tied checkpoint may still carry a copy of the table.
        let head = match config.tied_head && !file.has("lm_head.weight") {
            true => None,
            false => Some(up.matrix(&[file.take("lm_head.weight", &[vocab, hidden])?])?),
        };
        let layers = (0..config.layers.len())
            .map(|index| target_layer(up, config, file, index))
            .collect::<Result<_, _>>()?;
        Ok(TargetWeights {
            embedding: up.matrix(&[embedding])?,
            layers,
            norm: up.vector(&norm, 1.0)?,
            head,
            frequency: up.upload(&frequencies(config.rope_theta, config.rotary_dim))?,
        })
    }
}

fn target_layer<B: Backend>(
    up: &Uploader<'_, B>,
    config: &ModelConfig,
    file: &mut Checkpoint,
    index: usize,
) -> Result<TargetLayer<B>, ModelError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.hidden_size;
    let input_norm = file.take(&format!("{prefix}.input_layernorm.weight"), &[hidden])?;
    let post_norm = file.take(
        &format!("{prefix}.post_attention_layernorm.weight"),
        &[hidden],
    )?;
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
            let (weights, _) = attention(up, file, &format!("{prefix}.self_attn"), &sizes)?;
            Mixer::Attention(weights)
        }
        LayerKind::LinearAttention => {
            Mixer::Gdn(gdn(up, config, file, &format!("{prefix}.linear_attn"))?)
        }
    };
    Ok(TargetLayer {
        input_norm: up.vector(&input_norm, 1.0)?,
        mixer,
        post_norm: up.vector(&post_norm, 1.0)?,
        mlp: mlp(up, file, &prefix, hidden, config.intermediate_size)?,
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
    up: &Uploader<'_, B>,
    file: &mut Checkpoint,
    prefix: &str,
    sizes: &AttentionSizes,
) -> Result<(AttentionWeights<B>, [HostTensor; 2]), ModelError> {
    let (hidden, head_dim) = (sizes.hidden, sizes.head_dim);
    let kv_rows = sizes.kv_heads * head_dim;
    let query = file.take(
        &format!("{prefix}.q_proj.weight"),
        &[sizes.query_rows, hidden],
    )?;
    let key = file.take(&format!("{prefix}.k_proj.weight"), &[kv_rows, hidden])?;
    let value = file.take(&format!("{prefix}.v_proj.weight"), &[kv_rows, hidden])?;
    let output = file.take(
        &format!("{prefix}.o_proj.weight"),
        &[hidden, sizes.heads * head_dim],
    )?;
    let query_norm = file.take(&format!("{prefix}.q_norm.weight"), &[head_dim])?;
    let key_norm = file.take(&format!("{prefix}.k_norm.weight"), &[head_dim])?;
    let kv = [key, value];
    let weights = AttentionWeights {
        mixed: up.matrix(&[&[query][..], &kv].concat())?,
        output: up.matrix(&[output])?,
        query_norm: up.vector(&query_norm, sizes.norm_add)?,
        key_norm: up.vector(&key_norm, sizes.norm_add)?,
    };
    Ok((weights, kv))
}

fn gdn<B: Backend>(
    up: &Uploader<'_, B>,
    config: &ModelConfig,
    file: &mut Checkpoint,
    prefix: &str,
) -> Result<GdnWeights<B>, ModelError> {
    let (hidden, shape) = (config.hidden_size, config.gdn);
    let (channels, width, heads) = (shape.channels(), shape.value_width(), shape.value_heads);
    let mut take = |name: &str, shape: &[usize]| file.take(&format!("{prefix}.{name}"), shape);
    let qkv = take("in_proj_qkv.weight", &[channels, hidden])?;
    let z = take("in_proj_z.weight", &[width, hidden])?;
    let b = take("in_proj_b.weight", &[heads, hidden])?;
    let a = take("in_proj_a.weight", &[heads, hidden])?;
    let conv = take("conv1d.weight", &[channels, 1, 4])?;
    let a_log = take("A_log", &[heads])?;
    let dt_bias = take("dt_bias", &[heads])?;
    let norm = take("norm.weight", &[shape.value_dim])?;
    let output = take("out_proj.weight", &[hidden, width])?;
    Ok(GdnWeights {
        mixed: up.matrix(&[qkv, z, b, a])?,
        conv: up.vector(&conv, 0.0)?,
        a_log: up.vector(&a_log, 0.0)?,
        dt_bias: up.vector(&dt_bias, 0.0)?,
        norm: up.vector(&norm, 0.0)?,
        output: up.matrix(&[output])?,
    })
}

fn mlp<B: Backend>(
    up: &Uploader<'_, B>,
    file: &mut Checkpoint,
    prefix: &str,
    hidden: usize,
    intermediate: usize,
) -> Result<Mlp<B>, ModelError> {
    let gate = file.take(
        &format!("{prefix}.mlp.gate_proj.weight"),
        &[intermediate, hidden],
    )?;
    let upper = file.take(
        &format!("{prefix}.mlp.up_proj.weight"),
        &[intermediate, hidden],
    )?;
    let down = file.take(
        &format!("{prefix}.mlp.down_proj.weight"),
        &[hidden, intermediate],
    )?;
    Ok(Mlp {
        gate_up: up.gate_up(gate, upper)?,
        down: up.matrix(&[down])?,
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
        up: &Uploader<'_, B>,
        config: &DrafterConfig,
        file: &mut Checkpoint,
    ) -> Result<Self, ModelError> {
        let hidden = config.hidden_size;
        let features = file.take("fc.weight", &[hidden, config.taps.len() * hidden])?;
        let features_norm = file.take("hidden_norm.weight", &[hidden])?;
        let norm = file.take("norm.weight", &[hidden])?;
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
            let input_norm = file.take(&format!("{prefix}.input_layernorm.weight"), &[hidden])?;
            let post = file.take(
                &format!("{prefix}.post_attention_layernorm.weight"),
                &[hidden],
            )?;
            let (attention, kv) = attention(up, file, &format!("{prefix}.self_attn"), &sizes)?;
            context_kv.extend(kv);
            layers.push(DrafterLayer {
                input_norm: up.vector(&input_norm, 0.0)?,
                attention,
                post_norm: up.vector(&post, 0.0)?,
                mlp: mlp(up, file, &prefix, hidden, config.intermediate_size)?,
            });
        }
        Ok(DrafterWeights {
            features: up.matrix(&[features])?,
            features_norm: up.vector(&features_norm, 0.0)?,
            context_kv: up.matrix(&context_kv)?,
            layers,
            norm: up.vector(&norm, 0.0)?,
            frequency: up.upload(&frequencies(config.rope_theta, config.head_dim))?,
        })
    }
}

/// `theta^(-2 j / rotary)` for `j = 0 .. rotary / 2`, rounded to f32 once.
fn frequencies(theta: f64, rotary: usize) -> Vec<f32> {
    (0..rotary / 2)
        .map(|j| theta.powf(-2.0 * j as f64 / rotary as f64) as f32)
        .collect()
}

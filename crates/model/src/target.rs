//! The target's forward pass: a list of op calls, written once for every backend.

use ops::{
    Attention, Backend, Batch, ConvTree, CopyColumns, Embed, GatedNorm, GdnJournal, GdnMode,
    GdnScan, GdnState, KvLayer, KvTarget, Linear, LinearAddNorm, LinearOut, LinearSwiglu, NormRope,
    OpsError, QuerySource, RmsNorm, Rows, Slots, Summation, TreeTables,
};

use crate::ModelConfig;
use crate::weights::{AttentionWeights, GdnWeights, Mixer, Mlp, TargetWeights};
use crate::workspace::Workspace;

/// The hybrid model: weights and sizes.
pub(crate) struct Target<B: Backend> {
    pub(crate) config: ModelConfig,
    pub(crate) weights: TargetWeights<B>,
    /// Layers whose output goes to the drafter, in order of the features.
    pub(crate) taps: Vec<usize>,
}

/// What a forward works on.
pub(crate) struct Pass<'a, B: Backend> {
    pub(crate) backend: &'a B,
    /// Verify a tree or prefill a chunk.
    pub(crate) mode: GdnMode,
    pub(crate) batch: &'a Batch<B>,
    pub(crate) rows: Rows<'a, B>,
    pub(crate) tree: &'a TreeTables<B>,
    pub(crate) slots: &'a Slots<B>,
    pub(crate) workspace: &'a mut Workspace<B>,
    /// One per full-attention layer.
    pub(crate) caches: &'a mut [KvLayer<B>],
    /// One per GDN layer.
    pub(crate) states: &'a mut [GdnState<B>],
    /// One per GDN layer in a verify; one for all in a prefill, which commits as it goes.
    pub(crate) journals: &'a mut [GdnJournal<B>],
}

impl<B: Backend> Target<B> {
    /// From tokens to the residual stream behind the last layer, under the final norm
    /// (`workspace.h`); the residual stream behind tapped layers is copied to `workspace.taps`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_, B>) -> Result<(), OpsError> {
        pass.backend.embed(Embed {
            rows: pass.rows,
            batch: pass.batch,
            table: &self.weights.embedding,
            out: &mut pass.workspace.x,
        })?;
        let layers = &self.weights.layers;
        let mut next_norm = layers.first().map_or(&self.weights.norm, |l| &l.input_norm);
        pass.backend.rms_norm(RmsNorm {
            rows: pass.rows,
            dim: self.config.hidden_size,
            eps: self.config.norm_eps,
            x: &pass.workspace.x,
            weight: next_norm,
            out: &mut pass.workspace.h,
        })?;
        let (mut attention_index, mut gdn_index) = (0, 0);
        for (index, layer) in layers.iter().enumerate() {
            match &layer.mixer {
                Mixer::Attention(weights) => {
                    self.attention(pass, weights, attention_index, &layer.post_norm)?;
                    attention_index += 1;
                }
                Mixer::Gdn(weights) => {
                    self.gdn(pass, weights, gdn_index, &layer.post_norm)?;
                    gdn_index += 1;
                }
            }
            let following = layers.get(index + 1);
            next_norm = following.map_or(&self.weights.norm, |l| &l.input_norm);
            let norm = NextNorm {
                weight: next_norm,
                eps: self.config.norm_eps,
            };
            mlp(pass.backend, pass.rows, &layer.mlp, norm, pass.workspace)?;
            self.tap(pass, index)?;
        }
        Ok(())
    }

    /// Copies the residual stream where layer `index` is tapped.
    fn tap(&self, pass: &mut Pass<'_, B>, index: usize) -> Result<(), OpsError> {
        let hidden = self.config.hidden_size;
        for (order, _) in (self.taps.iter().enumerate()).filter(|(_, tap)| **tap == index) {
            pass.backend.copy_columns(CopyColumns {
                rows: pass.rows,
                dim: hidden,
                x: &pass.workspace.x,
                offset: order * hidden,
                out_dim: self.taps.len() * hidden,
                out: &mut pass.workspace.taps,
            })?;
        }
        Ok(())
    }

    fn attention(
        &self,
        pass: &mut Pass<'_, B>,
        weights: &AttentionWeights<B>,
        index: usize,
        post_norm: &B::Buf<f32>,
    ) -> Result<(), OpsError> {
        let (backend, rows, config) = (pass.backend, pass.rows, &self.config);
        let ws = &mut *pass.workspace;
        let width = config.mixed_width();
        backend.linear(act(rows, &ws.h, &weights.mixed, &mut ws.mixed, width))?;
        backend.norm_rope(NormRope {
            rows,
            head_dim: config.head_dim,
            rotary: config.rotary_dim,
            frequency: &self.weights.frequency,
            eps: config.norm_eps,
            x: &ws.mixed,
            row_stride: width,
            query: Some(QuerySource {
                heads: config.attention_heads,
                head_stride: 2 * config.head_dim,
                weight: &weights.query_norm,
                out: &mut ws.query,
            }),
            kv_heads: config.kv_heads,
            kv_offset: 2 * config.attention_heads * config.head_dim,
            key_weight: &weights.key_norm,
            target: KvTarget::Pages {
                batch: pass.batch,
                slots: pass.slots,
                cache: &mut pass.caches[index],
            },
        })?;
        let attention = Attention {
            rows,
            batch: pass.batch,
            slots: pass.slots,
            cache: &pass.caches[index],
            heads: config.attention_heads,
            query: &ws.query,
            gate: &ws.mixed,
            gate_row_stride: width,
            out: &mut ws.attention,
            tree: pass.tree,
        };
        match pass.mode {
            GdnMode::Verify => backend.tree_attention(attention)?,
            GdnMode::Prefill => backend.prefill_attention(attention)?,
        }
        backend.linear_add_norm(LinearAddNorm {
            rows,
            x: &ws.attention,
            weight: &weights.output,
            summation: Summation::EightBlocks,
            residual: &mut ws.x,
            norm_weight: post_norm,
            eps: config.norm_eps,
            normed: &mut ws.h,
        })
    }

    fn gdn(
        &self,
        pass: &mut Pass<'_, B>,
        weights: &GdnWeights<B>,
        index: usize,
        post_norm: &B::Buf<f32>,
    ) -> Result<(), OpsError> {
        let (backend, rows, config) = (pass.backend, pass.rows, &self.config);
        let ws = &mut *pass.workspace;
        let state = &mut pass.states[index];
        let journal = match pass.mode {
            GdnMode::Verify => &mut pass.journals[index],
            GdnMode::Prefill => &mut pass.journals[0],
        };
        let stride = config.gdn.mixed_stride();
        let mixed = &mut journal.mixed;
        backend.linear(act(rows, &ws.h, &weights.mixed, mixed, stride))?;
        backend.conv_tree(ConvTree {
            rows,
            batch: pass.batch,
            tree: pass.tree,
            state,
            weight: &weights.conv,
            a_log: &weights.a_log,
            dt_bias: &weights.dt_bias,
            journal,
        })?;
        backend.gdn_scan(GdnScan {
            rows,
            batch: pass.batch,
            tree: pass.tree,
            slots: pass.slots,
            mode: pass.mode,
            state,
            journal,
            out: &mut ws.o,
        })?;
        backend.gated_norm(GatedNorm {
            rows,
            shape: config.gdn,
            eps: config.norm_eps,
            o: &ws.o,
            mixed: &journal.mixed,
            weight: &weights.norm,
            out: &mut ws.o_gated,
        })?;
        backend.linear_add_norm(LinearAddNorm {
            rows,
            x: &ws.o_gated,
            weight: &weights.output,
            summation: Summation::EightBlocks,
            residual: &mut ws.x,
            norm_weight: post_norm,
            eps: config.norm_eps,
            normed: &mut ws.h,
        })
    }
}

/// An activation `out = x Wt` with `stride` values per row.
pub(crate) fn act<'a, B: Backend>(
    rows: Rows<'a, B>,
    x: &'a B::Buf<B::Act>,
    weight: &'a ops::Tensor<B>,
    out: &'a mut B::Buf<B::Act>,
    stride: usize,
) -> Linear<'a, B> {
    Linear {
        rows,
        x,
        weight,
        out: LinearOut::Act(out),
        out_stride: stride,
    }
}

/// An f32 `out = x Wt`, rows behind each other.
pub(crate) fn float<'a, B: Backend>(
    rows: Rows<'a, B>,
    x: &'a B::Buf<B::Act>,
    weight: &'a ops::Tensor<B>,
    out: &'a mut B::Buf<f32>,
) -> Linear<'a, B> {
    Linear {
        rows,
        x,
        weight,
        out: LinearOut::F32(out),
        out_stride: weight.rows,
    }
}

/// The norm in front of the product that follows.
pub(crate) struct NextNorm<'a, B: Backend> {
    pub(crate) weight: &'a B::Buf<f32>,
    pub(crate) eps: f32,
}

/// `x += down(silu(gate h) * up h)`, then `h = norm(x)`.
pub(crate) fn mlp<B: Backend>(
    backend: &B,
    rows: Rows<'_, B>,
    weights: &Mlp<B>,
    norm: NextNorm<'_, B>,
    ws: &mut Workspace<B>,
) -> Result<(), OpsError> {
    backend.linear_swiglu(LinearSwiglu {
        rows,
        x: &ws.h,
        weight: &weights.gate_up,
        gate_up: &mut ws.gate_up,
        out: &mut ws.activation,
    })?;
    backend.linear_add_norm(LinearAddNorm {
        rows,
        x: &ws.activation,
        weight: &weights.down,
        summation: Summation::EightBlocks,
        residual: &mut ws.x,
        norm_weight: norm.weight,
        eps: norm.eps,
        normed: &mut ws.h,
    })
}

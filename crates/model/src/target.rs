//! The target's forward pass: a list of op calls, written once for every backend.

use ops::{
    Attention, Backend, Batch, ConvTree, CopyColumns, Embed, GatedNorm, GdnJournal, GdnMode,
    GdnScan, GdnState, KvLayer, KvTarget, Linear, NormRope, OpsError, Output, QuerySource, RmsNorm,
    Rows, Slots, Summation, Swiglu, TreeTables,
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
    /// From tokens to the residual stream behind the last layer (`workspace.x`); tapped layers are
    /// copied to `workspace.taps`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_, B>) -> Result<(), OpsError> {
        let hidden = self.config.hidden_size;
        pass.backend.embed(Embed {
            rows: pass.rows,
            batch: pass.batch,
            table: &self.weights.embedding,
            out: &mut pass.workspace.x,
        })?;
        let (mut attention_index, mut gdn_index) = (0, 0);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.norm(pass, &layer.input_norm)?;
            match &layer.mixer {
                Mixer::Attention(weights) => {
                    self.attention(pass, weights, attention_index)?;
                    attention_index += 1;
                }
                Mixer::Gdn(weights) => {
                    self.gdn(pass, weights, gdn_index)?;
                    gdn_index += 1;
                }
            }
            self.norm(pass, &layer.post_norm)?;
            mlp(pass.backend, pass.rows, &layer.mlp, pass.workspace)?;
            for (order, _) in self
                .taps
                .iter()
                .enumerate()
                .filter(|(_, tap)| **tap == index)
            {
                pass.backend.copy_columns(CopyColumns {
                    rows: pass.rows,
                    dim: hidden,
                    x: &pass.workspace.x,
                    offset: order * hidden,
                    out_dim: self.taps.len() * hidden,
                    out: &mut pass.workspace.taps,
                })?;
            }
        }
        Ok(())
    }

    fn norm(&self, pass: &mut Pass<'_, B>, weight: &B::Buf<f32>) -> Result<(), OpsError> {
        pass.backend.rms_norm(RmsNorm {
            rows: pass.rows,
            dim: self.config.hidden_size,
            eps: self.config.norm_eps,
            x: &pass.workspace.x,
            weight,
            out: &mut pass.workspace.h,
        })
    }

    fn attention(
        &self,
        pass: &mut Pass<'_, B>,
        weights: &AttentionWeights<B>,
        index: usize,
    ) -> Result<(), OpsError> {
        let (backend, rows, config) = (pass.backend, pass.rows, &self.config);
        let ws = &mut *pass.workspace;
        backend.linear(store(rows, &ws.h, &weights.query, &mut ws.query_gate))?;
        backend.linear(store(rows, &ws.h, &weights.kv, &mut ws.kv))?;
        backend.norm_rope(NormRope {
            rows,
            head_dim: config.head_dim,
            rotary: config.rotary_dim,
            frequency: &self.weights.frequency,
            eps: config.norm_eps,
            query: Some(QuerySource {
                heads: config.attention_heads,
                x: &ws.query_gate,
                stride: 2 * config.head_dim,
                weight: &weights.query_norm,
                out: &mut ws.query,
            }),
            kv_heads: config.kv_heads,
            kv: &ws.kv,
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
            query_gate: &ws.query_gate,
            out: &mut ws.attention,
        };
        match pass.mode {
            GdnMode::Verify => backend.tree_attention(attention)?,
            GdnMode::Prefill => backend.prefill_attention(attention)?,
        }
        backend.linear(add_row_parallel(
            rows,
            &ws.attention,
            &weights.output,
            &mut ws.x,
        ))
    }

    fn gdn(
        &self,
        pass: &mut Pass<'_, B>,
        weights: &GdnWeights<B>,
        index: usize,
    ) -> Result<(), OpsError> {
        let (backend, rows) = (pass.backend, pass.rows);
        let ws = &mut *pass.workspace;
        let state = &mut pass.states[index];
        let journal = match pass.mode {
            GdnMode::Verify => &mut pass.journals[index],
            GdnMode::Prefill => &mut pass.journals[0],
        };
        backend.linear(store(rows, &ws.h, &weights.qkv, &mut journal.conv_in))?;
        backend.linear(store(rows, &ws.h, &weights.z, &mut ws.z))?;
        backend.linear(store(rows, &ws.h, &weights.ba, &mut ws.ba))?;
        backend.conv_tree(ConvTree {
            rows,
            batch: pass.batch,
            tree: pass.tree,
            state,
            channels: self.config.gdn.channels(),
            x: &journal.conv_in,
            weight: &weights.conv,
            out: &mut ws.qkv,
        })?;
        backend.gdn_scan(GdnScan {
            rows,
            batch: pass.batch,
            tree: pass.tree,
            slots: pass.slots,
            mode: pass.mode,
            qkv: &ws.qkv,
            ba: &ws.ba,
            a_log: &weights.a_log,
            dt_bias: &weights.dt_bias,
            state,
            journal,
            out: &mut ws.o,
        })?;
        backend.gated_norm(GatedNorm {
            rows,
            shape: self.config.gdn,
            eps: self.config.norm_eps,
            o: &ws.o,
            z: &ws.z,
            weight: &weights.norm,
            out: &mut ws.o_gated,
        })?;
        backend.linear(add_row_parallel(
            rows,
            &ws.o_gated,
            &weights.output,
            &mut ws.x,
        ))
    }

    /// Final norm and head of the rows in `x`, which stand for `rows`: logits to `logits`.
    pub(crate) fn head(
        &self,
        backend: &B,
        rows: Rows<'_, B>,
        x: &B::Buf<f32>,
        normed: &mut B::Buf<f32>,
        logits: &mut B::Buf<f32>,
    ) -> Result<(), OpsError> {
        backend.rms_norm(RmsNorm {
            rows,
            dim: self.config.hidden_size,
            eps: self.config.norm_eps,
            x,
            weight: &self.weights.norm,
            out: normed,
        })?;
        backend.linear(store(rows, normed, self.weights.head(), logits))
    }
}

/// `out = x Wt` in one run over K.
pub(crate) fn store<'a, B: Backend>(
    rows: Rows<'a, B>,
    x: &'a B::Buf<f32>,
    weight: &'a ops::Tensor<B>,
    out: &'a mut B::Buf<f32>,
) -> Linear<'a, B> {
    Linear {
        rows,
        x,
        weight,
        summation: Summation::Whole,
        output: Output::Store,
        out,
    }
}

/// `out += x Wt` with K summed in eight blocks: the products whose inputs are split over ranks.
pub(crate) fn add_row_parallel<'a, B: Backend>(
    rows: Rows<'a, B>,
    x: &'a B::Buf<f32>,
    weight: &'a ops::Tensor<B>,
    out: &'a mut B::Buf<f32>,
) -> Linear<'a, B> {
    Linear {
        rows,
        x,
        weight,
        summation: Summation::EightBlocks,
        output: Output::Add,
        out,
    }
}

/// `x += down(silu(gate h) * up h)`.
pub(crate) fn mlp<B: Backend>(
    backend: &B,
    rows: Rows<'_, B>,
    weights: &Mlp<B>,
    ws: &mut Workspace<B>,
) -> Result<(), OpsError> {
    backend.linear(store(rows, &ws.h, &weights.gate_up, &mut ws.gate_up))?;
    backend.swiglu(Swiglu {
        rows,
        dim: weights.down.columns,
        gate_up: &ws.gate_up,
        out: &mut ws.activation,
    })?;
    backend.linear(add_row_parallel(
        rows,
        &ws.activation,
        &weights.down,
        &mut ws.x,
    ))
}

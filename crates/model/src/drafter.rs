//! The DFlash drafter: context keys and values from tapped features, and the block forward.

use ops::{
    Backend, Batch, ContextRows, DraftAttention, Embed, GatherRows, KvLayer, KvTarget, NormRope,
    OpsError, QuerySource, RmsNorm, Rows, Slots,
};

use crate::DrafterConfig;
use crate::target::{add_row_parallel, mlp, store};
use crate::weights::{DrafterLayer, DrafterWeights};
use crate::workspace::Workspace;

/// Weights, sizes and context of the drafter.
pub(crate) struct Drafter<B: Backend> {
    pub(crate) config: DrafterConfig,
    pub(crate) weights: DrafterWeights<B>,
    /// Context keys and values, one pool per layer, paged like the target's. Sliding layers keep
    /// all rows; their window is a mask.
    pub(crate) caches: Vec<KvLayer<B>>,
    /// `[block rows, kv_heads, head_dim]`: keys of the block at hand.
    pub(crate) block_keys: B::Buf<f32>,
    pub(crate) block_values: B::Buf<f32>,
}

impl<B: Backend> Drafter<B> {
    /// Appends the listed rows of `workspace.taps` to the context of their sequences:
    /// `f = rms(c fct)`, then per layer `k = rope(rms(f kt))`, `v = f vt`.
    pub(crate) fn append_context(
        &mut self,
        backend: &B,
        context: &ContextRows<B>,
        capacity: usize,
        slots: &Slots<B>,
        ws: &mut Workspace<B>,
    ) -> Result<(), OpsError> {
        let (config, rows) = (&self.config, context.rows(capacity));
        let weights = &self.weights;
        backend.gather_rows(GatherRows {
            rows,
            source: &context.source,
            dim: config.taps.len() * config.hidden_size,
            x: &ws.taps,
            out: &mut ws.features,
        })?;
        backend.linear(store(rows, &ws.features, &weights.features, &mut ws.x))?;
        self.norm(backend, rows, &ws.x, &weights.features_norm, &mut ws.h)?;
        for (layer, cache) in weights.layers.iter().zip(&mut self.caches) {
            backend.linear(store(rows, &ws.h, &layer.attention.kv, &mut ws.kv))?;
            backend.norm_rope(NormRope {
                rows,
                head_dim: config.head_dim,
                rotary: config.head_dim,
                frequency: &weights.frequency,
                eps: config.norm_eps,
                query: None,
                kv_heads: config.kv_heads,
                kv: &ws.kv,
                key_weight: &layer.attention.key_norm,
                target: KvTarget::Listed {
                    context,
                    slots,
                    cache,
                },
            })?;
        }
        Ok(())
    }

    /// The block forward over `[anchor, mask, mask, ...]` of every block; normed output in
    /// `workspace.h`.
    pub(crate) fn block(
        &mut self,
        backend: &B,
        embedding: &ops::Tensor<B>,
        batch: &Batch<B>,
        capacity: usize,
        slots: &Slots<B>,
        ws: &mut Workspace<B>,
    ) -> Result<(), OpsError> {
        let rows = batch.rows(capacity);
        backend.embed(Embed {
            rows,
            batch,
            table: embedding,
            out: &mut ws.x,
        })?;
        for index in 0..self.weights.layers.len() {
            let norm = &self.weights.layers[index].input_norm;
            self.norm(backend, rows, &ws.x, norm, &mut ws.h)?;
            self.attention(backend, index, batch, capacity, slots, ws)?;
            let layer = &self.weights.layers[index];
            self.norm(backend, rows, &ws.x, &layer.post_norm, &mut ws.h)?;
            mlp(backend, rows, &layer.mlp, ws)?;
        }
        self.norm(backend, rows, &ws.x, &self.weights.norm, &mut ws.h)
    }

    fn attention(
        &mut self,
        backend: &B,
        index: usize,
        batch: &Batch<B>,
        capacity: usize,
        slots: &Slots<B>,
        ws: &mut Workspace<B>,
    ) -> Result<(), OpsError> {
        let (config, rows) = (&self.config, batch.rows(capacity));
        let DrafterLayer {
            attention: weights, ..
        } = &self.weights.layers[index];
        backend.linear(store(rows, &ws.h, &weights.query, &mut ws.query_gate))?;
        backend.linear(store(rows, &ws.h, &weights.kv, &mut ws.kv))?;
        backend.norm_rope(NormRope {
            rows,
            head_dim: config.head_dim,
            rotary: config.head_dim,
            frequency: &self.weights.frequency,
            eps: config.norm_eps,
            query: Some(QuerySource {
                heads: config.attention_heads,
                x: &ws.query_gate,
                stride: config.head_dim,
                weight: &weights.query_norm,
                out: &mut ws.query,
            }),
            kv_heads: config.kv_heads,
            kv: &ws.kv,
            key_weight: &weights.key_norm,
            target: KvTarget::Block {
                batch,
                slots,
                keys: &mut self.block_keys,
                values: &mut self.block_values,
            },
        })?;
        backend.draft_attention(DraftAttention {
            rows,
            batch,
            slots,
            cache: &self.caches[index],
            mask: config.layers[index],
            heads: config.attention_heads,
            query: &ws.query,
            block_keys: &self.block_keys,
            block_values: &self.block_values,
            out: &mut ws.attention,
        })?;
        backend.linear(add_row_parallel(
            rows,
            &ws.attention,
            &weights.output,
            &mut ws.x,
        ))
    }

    fn norm(
        &self,
        backend: &B,
        rows: Rows<'_, B>,
        x: &B::Buf<f32>,
        weight: &B::Buf<f32>,
        out: &mut B::Buf<f32>,
    ) -> Result<(), OpsError> {
        let (dim, eps) = (self.config.hidden_size, self.config.norm_eps);
        backend.rms_norm(RmsNorm {
            rows,
            dim,
            eps,
            x,
            weight,
            out,
        })
    }
}

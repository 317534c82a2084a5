//! The DFlash drafter: context keys and values from tapped features, and the block forward.

use ops::{
    Backend, Batch, ContextRows, DraftAttention, Embed, GatherRows, KvLayer, KvTarget,
    LinearAddNorm, NormRope, OpsError, QuerySource, RmsNorm, Rows, Slots, Summation,
};

use crate::DrafterConfig;
use crate::target::{NextNorm, act, float, mlp};
use crate::weights::DrafterWeights;
use crate::workspace::Workspace;

/// Weights, sizes and context of the drafter.
pub(crate) struct Drafter<B: Backend> {
    pub(crate) config: DrafterConfig,
    pub(crate) weights: DrafterWeights<B>,
    /// Context keys and values, one pool per layer, paged like the target's. Sliding layers keep
    /// all rows; their window is a mask.
    pub(crate) caches: Vec<KvLayer<B>>,
    /// `[block rows, kv_heads, head_dim]`: keys of the block at hand.
    pub(crate) block_keys: B::Buf<B::Act>,
    pub(crate) block_values: B::Buf<B::Act>,
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
        backend.linear(float(rows, &ws.features, &weights.features, &mut ws.x))?;
        self.norm(backend, rows, &weights.features_norm, ws)?;
        let width = config.context_width();
        backend.linear(act(rows, &ws.h, &weights.context_kv, &mut ws.mixed, width))?;
        for (index, layer) in weights.layers.iter().enumerate() {
            backend.norm_rope(NormRope {
                rows,
                head_dim: config.head_dim,
                rotary: config.head_dim,
                frequency: &weights.frequency,
                eps: config.norm_eps,
                x: &ws.mixed,
                row_stride: width,
                query: None,
                kv_heads: config.kv_heads,
                kv_offset: index * 2 * config.kv_heads * config.head_dim,
                key_weight: &layer.attention.key_norm,
                target: KvTarget::Listed {
                    context,
                    slots,
                    cache: &mut self.caches[index],
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
        self.norm(backend, rows, self.input_norm(0), ws)?;
        for index in 0..self.weights.layers.len() {
            self.attention(backend, index, batch, rows, slots, ws)?;
            let norm = NextNorm {
                weight: self.input_norm(index + 1),
                eps: self.config.norm_eps,
            };
            mlp(backend, rows, &self.weights.layers[index].mlp, norm, ws)?;
        }
        Ok(())
    }

    /// The norm in front of layer `index`; behind the last layer the final one.
    fn input_norm(&self, index: usize) -> &B::Buf<f32> {
        let layer = self.weights.layers.get(index);
        layer.map_or(&self.weights.norm, |layer| &layer.input_norm)
    }

    fn attention(
        &mut self,
        backend: &B,
        index: usize,
        batch: &Batch<B>,
        rows: Rows<'_, B>,
        slots: &Slots<B>,
        ws: &mut Workspace<B>,
    ) -> Result<(), OpsError> {
        let (config, layer) = (&self.config, &self.weights.layers[index]);
        let (weights, width) = (&layer.attention, config.mixed_width());
        backend.linear(act(rows, &ws.h, &weights.mixed, &mut ws.mixed, width))?;
        backend.norm_rope(NormRope {
            rows,
            head_dim: config.head_dim,
            rotary: config.head_dim,
            frequency: &self.weights.frequency,
            eps: config.norm_eps,
            x: &ws.mixed,
            row_stride: width,
            query: Some(QuerySource {
                heads: config.attention_heads,
                head_stride: config.head_dim,
                weight: &weights.query_norm,
                out: &mut ws.query,
            }),
            kv_heads: config.kv_heads,
            kv_offset: config.attention_heads * config.head_dim,
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
        backend.linear_add_norm(LinearAddNorm {
            rows,
            x: &ws.attention,
            weight: &weights.output,
            summation: Summation::EightBlocks,
            residual: &mut ws.x,
            norm_weight: &layer.post_norm,
            eps: config.norm_eps,
            normed: &mut ws.h,
        })
    }

    /// `workspace.h = norm(workspace.x)`.
    fn norm(
        &self,
        backend: &B,
        rows: Rows<'_, B>,
        weight: &B::Buf<f32>,
        ws: &mut Workspace<B>,
    ) -> Result<(), OpsError> {
        backend.rms_norm(RmsNorm {
            rows,
            dim: self.config.hidden_size,
            eps: self.config.norm_eps,
            x: &ws.x,
            weight,
            out: &mut ws.h,
        })
    }
}

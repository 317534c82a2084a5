//! Every intermediate of a forward pass, allocated once.

use ops::{Backend, OpsError};

use crate::{DrafterConfig, ModelConfig};

/// Row counts the workspace is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkspaceRows {
    /// Rows of the largest forward: prefill, verify or draft.
    pub(crate) forward: usize,
    /// Rows whose logits exist at once: verify, draft, or a slice of a prompt.
    pub(crate) logits: usize,
}

/// Rows of the head that are computed at once for a prompt's log-probabilities.
pub(crate) const LOGITS_SLICE_ROWS: usize = 256;

/// Widths of the buffers, in f32 values per row.
pub(crate) struct Widths {
    pub(crate) hidden: usize,
    pub(crate) query_gate: usize,
    pub(crate) kv: usize,
    pub(crate) query: usize,
    pub(crate) channels: usize,
    pub(crate) value: usize,
    pub(crate) ba: usize,
    pub(crate) gate_up: usize,
    pub(crate) activation: usize,
    pub(crate) taps: usize,
    pub(crate) vocab: usize,
}

impl Widths {
    pub(crate) fn of(target: &ModelConfig, drafter: Option<&DrafterConfig>) -> Self {
        let heads = target.attention_heads * target.head_dim;
        let kv = 2 * target.kv_heads * target.head_dim;
        // The drafter shares the target's buffers.
        let draft = |width: fn(&DrafterConfig) -> usize| drafter.map_or(0, width);
        let intermediate = target.intermediate_size.max(draft(|d| d.intermediate_size));
        Widths {
            hidden: target.hidden_size,
            query_gate: 2 * heads.max(draft(|d| d.attention_heads * d.head_dim)),
            kv: kv.max(draft(|d| 2 * d.kv_heads * d.head_dim)),
            query: heads.max(draft(|d| d.attention_heads * d.head_dim)),
            channels: target.gdn.channels(),
            value: target.gdn.value_width(),
            ba: 2 * target.gdn.value_heads,
            gate_up: 2 * intermediate,
            activation: intermediate,
            taps: draft(|d| d.taps.len() * d.hidden_size),
            vocab: target.vocab_size,
        }
    }

    /// f32 values per forward row, each buffer once.
    pub(crate) fn row_values(&self) -> usize {
        2 * self.hidden
            + self.query_gate
            + self.kv
            + 2 * self.query
            + self.channels
            + 3 * self.value
            + self.ba
            + self.gate_up
            + self.activation
            + 2 * self.taps
    }
}

/// The buffers; shapes are `[rows, width]`.
pub(crate) struct Workspace<B: Backend> {
    /// Residual stream.
    pub(crate) x: B::Buf<f32>,
    /// Normed input of the next product.
    pub(crate) h: B::Buf<f32>,
    pub(crate) query_gate: B::Buf<f32>,
    pub(crate) kv: B::Buf<f32>,
    pub(crate) query: B::Buf<f32>,
    pub(crate) attention: B::Buf<f32>,
    /// q, k, v after the convolution.
    pub(crate) qkv: B::Buf<f32>,
    pub(crate) z: B::Buf<f32>,
    pub(crate) ba: B::Buf<f32>,
    /// Output of the scan.
    pub(crate) o: B::Buf<f32>,
    /// `o`, normed and gated.
    pub(crate) o_gated: B::Buf<f32>,
    pub(crate) gate_up: B::Buf<f32>,
    pub(crate) activation: B::Buf<f32>,
    /// Residual stream behind the tapped layers, concatenated.
    pub(crate) taps: B::Buf<f32>,
    /// Rows of `taps` that belong to committed tokens.
    pub(crate) features: B::Buf<f32>,
    /// `[rows.logits, vocab]`.
    pub(crate) logits: B::Buf<f32>,
}

impl<B: Backend> Workspace<B> {
    pub(crate) fn new(backend: &B, widths: &Widths, rows: WorkspaceRows) -> Result<Self, OpsError> {
        let alloc = |width: usize| backend.alloc::<f32>(rows.forward * width);
        Ok(Workspace {
            x: alloc(widths.hidden)?,
            h: alloc(widths.hidden)?,
            query_gate: alloc(widths.query_gate)?,
            kv: alloc(widths.kv)?,
            query: alloc(widths.query)?,
            attention: alloc(widths.query)?,
            qkv: alloc(widths.channels)?,
            z: alloc(widths.value)?,
            ba: alloc(widths.ba)?,
            o: alloc(widths.value)?,
            o_gated: alloc(widths.value)?,
            gate_up: alloc(widths.gate_up)?,
            activation: alloc(widths.activation)?,
            taps: alloc(widths.taps)?,
            features: alloc(widths.taps)?,
            logits: backend.alloc(rows.logits * widths.vocab)?,
        })
    }
}

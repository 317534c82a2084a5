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

/// Widths of the buffers, in values per row. The drafter shares the target's buffers.
pub(crate) struct Widths {
    pub(crate) hidden: usize,
    /// Queries, gates, keys and values of an attention layer; or the keys and values of all layers
    /// of the drafter.
    pub(crate) mixed: usize,
    pub(crate) query: usize,
    pub(crate) value: usize,
    pub(crate) intermediate: usize,
    pub(crate) taps: usize,
    pub(crate) vocab: usize,
}

impl Widths {
    pub(crate) fn of(target: &ModelConfig, drafter: Option<&DrafterConfig>) -> Self {
        let draft = |width: fn(&DrafterConfig) -> usize| drafter.map_or(0, width);
        let query = target.attention_heads * target.head_dim;
        let layer = |d: &DrafterConfig| d.mixed_width().max(d.context_width());
        Widths {
            hidden: target.hidden_size,
            mixed: target.mixed_width().max(draft(layer)),
            query: query.max(draft(|d| d.attention_heads * d.head_dim)),
            value: target.gdn.value_width(),
            intermediate: target.intermediate_size.max(draft(|d| d.intermediate_size)),
            taps: draft(|d| d.taps.len() * d.hidden_size),
            vocab: target.vocab_size,
        }
    }

    /// Activations per forward row, each buffer once; the residual stream is f32 and not counted.
    pub(crate) fn row_acts(&self) -> usize {
        self.hidden
            + self.mixed
            + 2 * self.query
            + 2 * self.value
            + 3 * self.intermediate
            + 2 * self.taps
    }
}

/// The buffers; shapes are `[rows, width]`, the width that of the layer at hand.
pub(crate) struct Workspace<B: Backend> {
    /// Residual stream.
    pub(crate) x: B::Buf<f32>,
    /// Normed input of the next product.
    pub(crate) h: B::Buf<B::Act>,
    /// What an attention layer projects: queries and gates, keys, values.
    pub(crate) mixed: B::Buf<B::Act>,
    pub(crate) query: B::Buf<B::Act>,
    pub(crate) attention: B::Buf<B::Act>,
    /// Output of the scan.
    pub(crate) o: B::Buf<B::Act>,
    /// `o`, normed and gated.
    pub(crate) o_gated: B::Buf<B::Act>,
    pub(crate) gate_up: B::Buf<B::Act>,
    pub(crate) activation: B::Buf<B::Act>,
    /// Residual stream behind the tapped layers, concatenated.
    pub(crate) taps: B::Buf<B::Act>,
    /// Rows of `taps` that belong to committed tokens.
    pub(crate) features: B::Buf<B::Act>,
    /// `[rows.logits, vocab]`.
    pub(crate) logits: B::Buf<f32>,
}

impl<B: Backend> Workspace<B> {
    pub(crate) fn new(backend: &B, widths: &Widths, rows: WorkspaceRows) -> Result<Self, OpsError> {
        let alloc = |width: usize| backend.alloc::<B::Act>(rows.forward * width);
        Ok(Workspace {
            x: backend.alloc(rows.forward * widths.hidden)?,
            h: alloc(widths.hidden)?,
            mixed: alloc(widths.mixed)?,
            query: alloc(widths.query)?,
            attention: alloc(widths.query)?,
            o: alloc(widths.value)?,
            o_gated: alloc(widths.value)?,
            gate_up: alloc(2 * widths.intermediate)?,
            activation: alloc(widths.intermediate)?,
            taps: alloc(widths.taps)?,
            features: alloc(widths.taps)?,
            logits: backend.alloc(rows.logits * widths.vocab)?,
        })
    }
}

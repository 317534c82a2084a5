//! Runs forward passes and steps over pre-allocated memory.

mod load;
mod prefill;
mod results;
mod staging;
mod start;
mod step;
#[cfg(test)]
mod tests;
mod types;

use ops::{
    Backend, Batch, ContextRows, DraftPlan, GdnJournal, GdnState, KvLayer, ROW_BUCKETS, Slots,
    TreeTables, Walk,
};

use crate::drafter::Drafter;
use crate::target::Target;
use crate::workspace::Workspace;
use crate::{DrafterConfig, MemoryPlan, ModelConfig};

use results::ResultBuffers;
pub use types::{
    Chunk, Emitted, PrefillOutput, PromptLogprobs, RunnerConfig, SequenceStart, SequenceStep,
    Shape, StepOutput, StepSequence, StepTiming, TokenLogprob,
};

/// A loaded model with all its memory.
///
/// Every sequence owns one slot. A slot's committed state covers `length` tokens: keys and values
/// in its pages, recurrent state and convolution history (the state may lag by the pending rows,
/// which the next scan replays), and the drafter's context. The newest emitted token, the root, is
/// processed by the next step.
pub struct Runner<B: Backend> {
    backend: B,
    config: RunnerConfig,
    plan: MemoryPlan,
    target: Target<B>,
    drafter: Option<Drafter<B>>,
    slots: Slots<B>,
    /// Keys and values of the target, one pool per full-attention layer.
    caches: Vec<KvLayer<B>>,
    /// One per GDN layer.
    states: Vec<GdnState<B>>,
    /// One per GDN layer, for the rows of a verify.
    journals: Vec<GdnJournal<B>>,
    /// One for all layers: a prefill commits layer by layer.
    prefill_journal: GdnJournal<B>,
    workspace: Workspace<B>,
    prefill: Forward<B>,
    verify: Forward<B>,
    /// The last rows of finished prompts.
    first: Forward<B>,
    /// Blocks of the drafter.
    blocks: Batch<B>,
    draft_plan: DraftPlan<B>,
    /// Rows picked out of a forward for the head.
    selected: Selected<B>,
    /// Candidates of the drafted rows, `[blocks, depths, topk]`.
    candidate_ids: B::Buf<u32>,
    candidate_logprobs: B::Buf<f32>,
    results: ResultBuffers<B>,
    /// Alternatives that each slot's sequence wants beside its tokens.
    logprobs_top: Vec<Option<usize>>,
}

/// Tables of one kind of forward.
struct Forward<B: Backend> {
    batch: Batch<B>,
    tree: TreeTables<B>,
    /// New context rows for the drafter.
    context: ContextRows<B>,
    walk: Walk<B>,
}

/// Rows gathered for the head.
struct Selected<B: Backend> {
    rows: ContextRows<B>,
    /// `[rows, hidden]`.
    x: B::Buf<f32>,
    /// `[rows, hidden]`.
    normed: B::Buf<f32>,
}

impl<B: Backend> Runner<B> {
    /// The sizes it was made with.
    pub fn config(&self) -> &RunnerConfig {
        &self.config
    }

    /// The target's sizes.
    pub fn target_config(&self) -> &ModelConfig {
        &self.target.config
    }

    /// The drafter's sizes, if there is one.
    pub fn drafter_config(&self) -> Option<&DrafterConfig> {
        self.drafter.as_ref().map(|drafter| &drafter.config)
    }

    /// What was allocated.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }
}

/// The smallest row bucket that holds `rows`.
///
/// # Panics
/// If no bucket does: the caller plans at most the largest.
pub(crate) fn bucket(rows: usize) -> usize {
    *ROW_BUCKETS
        .iter()
        .find(|bucket| **bucket >= rows)
        .unwrap_or_else(|| panic!("{rows} rows in a step; the largest bucket is 512"))
}

/// Bytes of the result block, for the memory plan.
pub(crate) fn result_bytes(rows: usize, sequences: usize) -> usize {
    ResultBuffers::<ops::Cpu>::bytes(rows, sequences)
}

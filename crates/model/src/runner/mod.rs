//! Runs forward passes and steps over pre-allocated memory.

mod constrained;
mod constraint;
mod decoded;
mod filler;
mod graphs;
mod load;
mod part_times;
mod prefill;
mod replay;
mod results;
mod simulation;
mod snapshots;
mod staging;
mod start;
mod step;
mod step_key;
mod step_tree;
#[cfg(test)]
mod tests;
mod types;
mod walk;

use std::rc::Rc;

use ops::{
    Backend, Batch, ContextRows, DraftPlan, GdnJournal, GdnState, KvLayer, Slots, TreeTables, Walk,
};

use crate::drafter::Drafter;
use crate::target::Target;
use crate::workspace::Workspace;
use crate::{DrafterConfig, MemoryPlan, ModelConfig};

pub use constraint::Constraint;
use constraint::Masks;
pub(crate) use decoded::ROW_SCAN_VOCAB;
use decoded::RowScan;
use graphs::Graphs;
pub use load::ModelSources;
pub use part_times::DeviceTimes;
use results::ResultBuffers;
pub use simulation::AcceptanceLaw;
use snapshots::Snapshots;
pub(crate) use snapshots::snapshot_bytes;
use staging::{HeldBatch, HeldPlan};
pub use step_key::StepKey;
pub(crate) use step_key::bucket;
pub use step_tree::{DraftRank, StepNode, StepTree};
pub use types::{
    Chunk, Emitted, PrefillOutput, PromptLogprobs, Replay, Resume, RunnerConfig, SequenceStart,
    SequenceStep, Shape, StepOutput, StepParts, StepSequence, StepTiming, TokenLogprob,
};

/// A loaded model with all its memory.
///
/// Every sequence owns one slot. A slot's committed state covers `length` tokens: keys and values
/// in its pages, recurrent state and convolution history (the state may lag by the pending rows,
/// which the next scan replays), and the drafter's context. The newest emitted token, the root, is
/// processed by the next step.
pub struct Runner<B: Backend> {
    /// Shared with the closure that is recorded.
    backend: Rc<B>,
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
    drafts: Drafts<B>,
    /// Rows picked out of a forward for the head.
    selected: Selected<B>,
    results: ResultBuffers<B>,
    /// Tokens that rows of constrained sequences may choose.
    masks: Masks<B>,
    /// Recurrent state that outlives its sequence.
    snapshots: Snapshots<B>,
    /// Brings states of snapshots on; `None`: there are no places for any.
    row_scan: Option<RowScan<B>>,
    /// The rows that `journals` have.
    verified: Verified,
    /// Where each slot's sequence stands.
    progress: Vec<Progress>,
    /// Alternatives that each slot's sequence wants beside its tokens.
    logprobs_top: Vec<Option<usize>>,
    /// Recorded steps.
    graphs: Graphs<B::Graph>,
    /// Seed of simulated acceptance.
    simulation: Option<u64>,
}

/// Where a sequence stands, as the host knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Committed tokens.
    length: usize,
    /// Rows by which the state lags.
    pending: usize,
    /// Emitted tokens that must be replayed before the first step.
    to_replay: usize,
}

/// The last step or replay.
#[derive(Clone, Debug, Default)]
struct Verified {
    /// Steps and replays so far.
    count: u64,
    /// Slot and first row of every sequence.
    segments: Vec<(usize, usize)>,
}

impl Verified {
    /// The latest one had sequences in these slots, of so many rows.
    fn next(&mut self, sequences: impl Iterator<Item = (usize, usize)>) {
        self.count += 1;
        self.segments.clear();
        let mut start = 0;
        for (slot, rows) in sequences {
            self.segments.push((slot, start));
            start += rows;
        }
    }
}

/// Which rows are sampled and walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The last rows of prompts.
    First,
    /// The verify rows of a step.
    Step,
}

/// Tables of one kind of forward.
struct Forward<B: Backend> {
    batch: Batch<B>,
    held: HeldBatch,
    tree: TreeTables<B>,
    /// New context rows for the drafter.
    context: ContextRows<B>,
    walk: Walk<B>,
}

/// Blocks of the drafter and what comes of them.
struct Drafts<B: Backend> {
    batch: Batch<B>,
    held: HeldBatch,
    plan: DraftPlan<B>,
    held_plan: HeldPlan,
    /// Candidates of all block rows, `[blocks, block_size, topk]`.
    candidate_ids: B::Buf<u32>,
    candidate_logprobs: B::Buf<f32>,
    /// The same as a law of simulated acceptance has them.
    law_logprobs: B::Buf<f32>,
}

/// Rows gathered for the head.
struct Selected<B: Backend> {
    rows: ContextRows<B>,
    /// `[rows, hidden]`, under the final norm.
    x: B::Buf<B::Act>,
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

/// Bytes of the result block and of the masks, for the memory plan.
pub(crate) fn result_bytes(rows: usize, sequences: usize, vocab_rows: usize) -> usize {
    ResultBuffers::<ops::Cpu>::bytes(rows, sequences) + Masks::<ops::Cpu>::bytes(rows, vocab_rows)
}

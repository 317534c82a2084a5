//! The draft tree: best-first construction from per-depth candidates (DDTree), or a chain.

use crate::{Backend, Batch, Cpu, OpsError, Slots};

/// Budgets at which the predicted acceptance of a tree is reported.
pub const PHI_BUDGETS: [usize; 4] = [7, 15, 31, 63];
/// Lengths at which the predicted acceptance of a chain is reported.
pub const PHI_LENGTHS: [usize; 3] = [3, 7, 15];

/// Predicted accepted nodes under the drafter's own law: the sum of the nodes' path probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// For trees of [`PHI_BUDGETS`] nodes.
    pub tree: [f32; PHI_BUDGETS.len()],
    /// For chains of [`PHI_LENGTHS`] nodes.
    pub chain: [f32; PHI_LENGTHS.len()],
}

impl Prediction {
    /// Values as they stand in [`BuildTree::prediction`]: tree, then chain.
    pub const LEN: usize = PHI_BUDGETS.len() + PHI_LENGTHS.len();
}

/// How each sequence of a step drafts; filled by the host before the step.
pub struct DraftPlan<B: Backend> {
    /// `[sequences]` block of the draft batch that belongs to the sequence, [`crate::NONE`] = no
    /// draft: the segment is its root alone.
    pub block: B::Buf<u32>,
    /// `[sequences]` 1 = chain, 0 = tree.
    pub chain: B::Buf<u32>,
    /// `[sequences]` deepest useful node: what the request may still emit and what the context
    /// holds, less one; at most the drafted depths.
    pub depth_max: B::Buf<u32>,
}

impl<B: Backend> DraftPlan<B> {
    /// Empty tables.
    pub fn new(backend: &B, sequences: usize) -> Result<Self, OpsError> {
        Ok(DraftPlan {
            block: backend.alloc(sequences)?,
            chain: backend.alloc(sequences)?,
            depth_max: backend.alloc(sequences)?,
        })
    }
}

/// Fills `token`, `parent` and `depth` of every segment. Row 0 is the slot's root. A segment of n
/// rows gets the best n - 1 nodes, numbered in depth-first order (rank tuples sorted
/// lexicographically), so that the likeliest path is the contiguous prefix.
///
/// Tree: pop the node of largest score (sum of log-probabilities, f32, `parent + lp`), ties to the
/// lexicographically smaller rank tuple, a prefix before its extension; push its next sibling and
/// its first child. Ranks with logprob -inf end a row; a NaN ends the depth. Rows that remain when
/// nothing can be drafted are padding: parent 0, depth 1, the root's token, `padding[row] = 1`;
/// they are never children.
pub struct BuildTree<'a, B: Backend> {
    /// Rows that one block of the draft batch gives: its drafted depths.
    pub depths: usize,
    /// Candidates per depth.
    pub k: usize,
    /// `[blocks, depths, k]`.
    pub ids: &'a B::Buf<u32>,
    /// `[blocks, depths, k]`.
    pub logprobs: &'a B::Buf<f32>,
    /// How each sequence drafts.
    pub plan: &'a DraftPlan<B>,
    /// Roots.
    pub slots: &'a Slots<B>,
    /// Segments (slot, start and rows are given; token, parent and depth are written).
    pub batch: &'a mut Batch<B>,
    /// `[rows]` 1 = padding.
    pub padding: &'a mut B::Buf<u32>,
    /// `[sequences, Prediction::LEN]`; zeros where there is no draft.
    pub prediction: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(_op: BuildTree<'_, Cpu>) {
    todo!()
}

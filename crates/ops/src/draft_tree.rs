//! The draft tree: best-first construction from per-depth candidates (DDTree), or a chain.

mod best_first;

use self::best_first::{Candidates, Node};
use crate::limits::{NONE, TREE_ROWS_MAX};
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
}

impl<B: Backend> DraftPlan<B> {
    /// Empty tables.
    pub fn new(backend: &B, sequences: usize) -> Result<Self, OpsError> {
        Ok(DraftPlan {
            block: backend.alloc(sequences)?,
            chain: backend.alloc(sequences)?,
        })
    }
}

/// Fills `token`, `parent` and `depth` of every segment. Row 0 is the slot's root. A segment of n
/// rows gets the best n - 1 nodes, numbered in depth-first order (rank tuples sorted
/// lexicographically), so that the likeliest path is the contiguous prefix.
///
/// Tree: pop the node of largest score (sum of log-probabilities, f32, `parent + lp`), ties to the
/// lexicographically smaller rank tuple, a prefix before its extension; push its next sibling and
/// its first child. Ranks with logprob -inf end a row; a NaN ends the depth and those below it.
/// Chain: the likeliest token of each depth. Rows that remain when nothing can be drafted are
/// padding: parent 0, depth 1, the root's token, `padding[row] = 1`; they are never children.
///
/// Depths are limited to those that can still be emitted: with n = what `tokens_max` and
/// `context_max` of the slot leave (the root takes position `length`), at most n - 1, since the
/// target's own token comes behind the deepest node.
///
/// The prediction does not depend on the segment's rows: it always looks at the best 63 nodes and
/// at the whole chain within that limit. It counts what exists where there is less.
pub struct BuildTree<'a, B: Backend> {
    /// Rows of a block of the draft batch: the anchor, from which nothing is drafted, and one row
    /// per depth. 1 without a drafter.
    pub block_size: usize,
    /// Candidates per depth.
    pub k: usize,
    /// `[blocks, block_size, k]`: candidates of depth d, counted from 0, of block b are row
    /// `b * block_size + 1 + d`.
    pub ids: &'a B::Buf<u32>,
    /// `[blocks, block_size, k]`.
    pub logprobs: &'a B::Buf<f32>,
    /// How each sequence drafts.
    pub plan: &'a DraftPlan<B>,
    /// Roots, and limits of the sequences.
    pub slots: &'a Slots<B>,
    /// Segments (slot, start and rows are given; token, parent and depth are written).
    pub batch: &'a mut Batch<B>,
    /// `[rows]` 1 = padding.
    pub padding: &'a mut B::Buf<u32>,
    /// `[sequences, Prediction::LEN]`; zeros where there is no draft.
    pub prediction: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(op: BuildTree<'_, Cpu>) {
    let candidates_len = op.block_size.saturating_sub(1) * op.k;
    for sequence in 0..op.batch.live[1] as usize {
        let slot = op.batch.sequence_slot[sequence] as usize;
        let rows = op.batch.sequence_rows[sequence] as usize;
        assert!(
            (1..=TREE_ROWS_MAX).contains(&rows),
            "a drafted segment has 1 to {TREE_ROWS_MAX} rows, this one {rows}"
        );
        let block = op.plan.block[sequence];
        let candidates = if block == NONE {
            Candidates::new(&[], &[], op.k, 0)
        } else {
            let offset = (block as usize * op.block_size + 1) * op.k;
            Candidates::new(
                &op.ids[offset..][..candidates_len],
                &op.logprobs[offset..][..candidates_len],
                op.k,
                useful_depth(op.slots, slot) as usize,
            )
        };
        let best: Vec<Node> = candidates.best_first().take(TREE_ROWS_MAX - 1).collect();
        let chain = candidates.chain();
        let Prediction { tree, chain: line } = Prediction::of(&best, &chain);
        let prediction = &mut op.prediction[sequence * Prediction::LEN..][..Prediction::LEN];
        prediction[..tree.len()].copy_from_slice(&tree);
        prediction[tree.len()..].copy_from_slice(&line);

        let mut nodes = if op.plan.chain[sequence] == 1 {
            chain
        } else {
            best
        };
        nodes.truncate(rows - 1);
        let start = op.batch.sequence_start[sequence] as usize;
        op.padding[start..start + rows].fill(0);
        op.padding[start + 1 + nodes.len()..start + rows].fill(1);
        write_segment(
            op.batch,
            start,
            rows,
            op.slots.root[slot],
            &candidates,
            &nodes,
        );
    }
}

/// Depth of the deepest node that can still be emitted: the target's own token comes after it.
fn useful_depth(slots: &Slots<Cpu>, slot: usize) -> u32 {
    let limits = &slots.sampling[slot];
    let to_emit = limits.tokens_max.saturating_sub(slots.emitted[slot]);
    // The root takes position `length`.
    let to_fill = limits
        .context_max
        .saturating_sub(slots.length[slot].saturating_add(1));
    to_emit.min(to_fill).saturating_sub(1)
}

/// Root, nodes in depth-first order, padding.
fn write_segment(
    batch: &mut Batch<Cpu>,
    start: usize,
    rows: usize,
    root: u32,
    candidates: &Candidates<'_>,
    nodes: &[Node],
) {
    let token = &mut batch.token[start..start + rows];
    let parent = &mut batch.parent[start..start + rows];
    let depth = &mut batch.depth[start..start + rows];
    token.fill(root);
    parent.fill(0);
    depth.fill(1);
    (parent[0], depth[0]) = (-1, 0);

    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_unstable_by_key(|&chosen| nodes[chosen].ranks);
    // Row of the root and of each node by order of choice.
    let mut row = vec![0; 1 + nodes.len()];
    for (place, &chosen) in order.iter().enumerate() {
        row[1 + chosen] = 1 + place;
    }
    for (node, &row_of_node) in nodes.iter().zip(&row[1..]) {
        token[row_of_node] = candidates.token(node);
        parent[row_of_node] = row[node.parent] as i32;
        depth[row_of_node] = node.depth as u32;
    }
}

#[cfg(test)]
mod tests;

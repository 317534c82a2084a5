//! The draft tree: best-first construction from per-depth candidates (DDTree), or a chain.

mod best_first;
mod deal;

use self::best_first::{Candidates, Node};
use self::deal::{Hand, deal};
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
    /// `[sequences]` rows that the sequence was given in a step that shares its rows.
    pub rows: B::Buf<u32>,
    /// `[sequences]` rows that it may get of those that are shared, at most
    /// [`crate::TREE_ROWS_MAX`]; 0 = it keeps its own.
    pub rows_max: B::Buf<u32>,
}

impl<B: Backend> DraftPlan<B> {
    /// Empty tables.
    pub fn new(backend: &B, sequences: usize) -> Result<Self, OpsError> {
        Ok(DraftPlan {
            block: backend.alloc(sequences)?,
            chain: backend.alloc(sequences)?,
            rows: backend.alloc(sequences)?,
            rows_max: backend.alloc(sequences)?,
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
///
/// Where rows are `shared`, segments are the op's to cut. Sequences whose plan has a `rows_max`
/// keep their root; the other rows that they were given go to the best nodes of all of them, by
/// score, equal scores to the sequence that comes first, until a sequence has `rows_max` rows or no
/// more nodes. So a sequence gets what it would get alone with so many rows, and no padding. The
/// others keep the rows that they were given. Segments follow each other as ever; rows that nobody
/// can use are left behind the last one, and `live[0]` is the number of the others.
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
    /// Whether sequences share their rows.
    pub shared: bool,
    /// Roots, and limits of the sequences.
    pub slots: &'a Slots<B>,
    /// Segments: token, parent and depth are written; slot, start and rows are given. Where rows
    /// are shared only slots and `live[1]` are, and all else is written.
    pub batch: &'a mut Batch<B>,
    /// `[rows]` 1 = padding.
    pub padding: &'a mut B::Buf<u32>,
    /// `[sequences, Prediction::LEN]`; zeros where there is no draft.
    pub prediction: &'a mut B::Buf<f32>,
}

/// What a sequence drafts from, and its nodes in order of choice.
struct Draft<'a> {
    candidates: Candidates<'a>,
    nodes: Vec<Node>,
}

pub(crate) fn cpu(op: BuildTree<'_, Cpu>) {
    let sequences = op.batch.live[1] as usize;
    let mut drafts = Vec::with_capacity(sequences);
    for sequence in 0..sequences {
        let slot = op.batch.sequence_slot[sequence] as usize;
        let candidates = candidates(&op, sequence, slot);
        let best: Vec<Node> = candidates.best_first().take(TREE_ROWS_MAX - 1).collect();
        let chain = candidates.chain();
        let Prediction { tree, chain: line } = Prediction::of(&best, &chain);
        let prediction = &mut op.prediction[sequence * Prediction::LEN..][..Prediction::LEN];
        prediction[..tree.len()].copy_from_slice(&tree);
        prediction[tree.len()..].copy_from_slice(&line);
        let nodes = match op.plan.chain[sequence] {
            1 => chain,
            _ => best,
        };
        drafts.push(Draft { candidates, nodes });
    }
    if op.shared {
        share_rows(op.plan, op.batch, &drafts);
    }
    for (sequence, draft) in drafts.iter().enumerate() {
        let root = op.slots.root[op.batch.sequence_slot[sequence] as usize];
        let start = op.batch.sequence_start[sequence] as usize;
        let rows = op.batch.sequence_rows[sequence] as usize;
        assert!(
            (1..=TREE_ROWS_MAX).contains(&rows),
            "a drafted segment has 1 to {TREE_ROWS_MAX} rows, this one {rows}"
        );
        let nodes = &draft.nodes[..draft.nodes.len().min(rows - 1)];
        op.padding[start..start + rows].fill(0);
        op.padding[start + 1 + nodes.len()..start + rows].fill(1);
        write_segment(op.batch, start, rows, root, &draft.candidates, nodes);
    }
}

/// What a sequence may draft.
fn candidates<'a>(op: &BuildTree<'a, Cpu>, sequence: usize, slot: usize) -> Candidates<'a> {
    let block = op.plan.block[sequence];
    if block == NONE {
        return Candidates::new(&[], &[], op.k, 0);
    }
    let len = op.block_size.saturating_sub(1) * op.k;
    let offset = (block as usize * op.block_size + 1) * op.k;
    let (ids, logprobs) = (op.ids, op.logprobs);
    Candidates::new(
        &ids[offset..][..len],
        &logprobs[offset..][..len],
        op.k,
        useful_depth(op.slots, slot) as usize,
    )
}

/// Deals the rows and cuts the segments.
fn share_rows(plan: &DraftPlan<Cpu>, batch: &mut Batch<Cpu>, drafts: &[Draft<'_>]) {
    let hands = drafts.iter().enumerate().map(|(sequence, draft)| Hand {
        rows: plan.rows[sequence] as usize,
        rows_max: plan.rows_max[sequence] as usize,
        nodes: &draft.nodes,
    });
    let mut start = 0;
    for (sequence, rows) in deal(&hands.collect::<Vec<_>>()).into_iter().enumerate() {
        batch.sequence_start[sequence] = start as u32;
        batch.sequence_rows[sequence] = rows as u32;
        batch.row_sequence[start..start + rows].fill(sequence as u32);
        start += rows;
    }
    batch.row_sequence[start..].fill(NONE);
    batch.live[0] = start as u32;
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

//! The search itself: candidates per depth in, nodes in order of predicted usefulness out.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::{PHI_BUDGETS, PHI_LENGTHS, Prediction};
use crate::activation::exp;
use crate::limits::{DEPTH_MAX, TOPK_MAX};

/// Bits of one rank in [`Node::ranks`]: `DEPTH_MAX` ranks of at most `TOPK_MAX` fill 60 bits.
const RANK_BITS: usize = 4;
const _: () = assert!(DEPTH_MAX * RANK_BITS <= 64 && TOPK_MAX < 1 << RANK_BITS);

/// The drafter's most likely tokens of each depth. Ranks count from 1, depths too.
pub(super) struct Candidates<'a> {
    /// `[depths, k]`
    ids: &'a [u32],
    /// `[depths, k]`, each row descending and at most 0.
    logprobs: &'a [f32],
    k: usize,
    /// Depths that may hold nodes.
    depths: usize,
}

/// One drafted token and the way to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Node {
    /// Ranks from depth 1 on, four bits each from the top, 0 = absent. Unsigned order of the word
    /// is lexicographic order of the tuple, a prefix before its extensions.
    pub ranks: u64,
    /// 0 = the root, else 1 + the parent's place in order of choice.
    pub parent: usize,
    /// Edges from the root.
    pub depth: usize,
    /// Log of the path's probability: the parent's score + the token's log-probability.
    pub score: f32,
}

impl Node {
    /// Rank of the node's own token.
    pub fn rank(&self) -> usize {
        (self.ranks >> (64 - RANK_BITS * self.depth)) as usize & ((1 << RANK_BITS) - 1)
    }
}

impl<'a> Candidates<'a> {
    /// At most `depth_max` depths, and none from the first that has a NaN on.
    pub fn new(ids: &'a [u32], logprobs: &'a [f32], k: usize, depth_max: usize) -> Self {
        assert!(
            k <= TOPK_MAX && logprobs.len() <= DEPTH_MAX * k && ids.len() == logprobs.len(),
            "{} ids and {} log-probabilities, {k} per depth; at most {TOPK_MAX} per depth and \
             {DEPTH_MAX} depths",
            ids.len(),
            logprobs.len()
        );
        let depths = if k == 0 {
            0
        } else {
            logprobs
                .chunks(k)
                .take(depth_max)
                .take_while(|row| !row.iter().any(|lp| lp.is_nan()))
                .count()
        };
        Candidates {
            ids,
            logprobs,
            k,
            depths,
        }
    }

    /// Token of a node.
    pub fn token(&self, node: &Node) -> u32 {
        self.ids[(node.depth - 1) * self.k + node.rank() - 1]
    }

    /// Nodes in order of choice: largest score first, equal scores by rank tuple.
    pub fn best_first(&'a self) -> BestFirst<'a> {
        let mut search = BestFirst {
            candidates: self,
            frontier: BinaryHeap::new(),
            chosen: 0,
        };
        search.open(Parent::ROOT, 1);
        search
    }

    /// The most likely token of each depth, as one path.
    pub fn chain(&self) -> Vec<Node> {
        let mut parent = Parent::ROOT;
        let mut nodes = Vec::with_capacity(self.depths);
        while let Some(node) = self.node(parent, 1) {
            nodes.push(node);
            parent = Parent::of(nodes.len(), &node);
        }
        nodes
    }

    /// The child of `parent` with `rank`, if there is such a token and the path has any
    /// probability.
    fn node(&self, parent: Parent, rank: usize) -> Option<Node> {
        let depth = parent.depth + 1;
        if depth > self.depths || rank > self.k {
            return None;
        }
        let score = parent.score + self.logprobs[(depth - 1) * self.k + rank - 1];
        (score > f32::NEG_INFINITY).then(|| Node {
            ranks: parent.ranks | (rank as u64) << (64 - RANK_BITS * depth),
            parent: parent.number,
            depth,
            score,
        })
    }
}

/// What a node needs to know of its parent.
#[derive(Clone, Copy)]
struct Parent {
    number: usize,
    ranks: u64,
    depth: usize,
    score: f32,
}

impl Parent {
    const ROOT: Parent = Parent {
        number: 0,
        ranks: 0,
        depth: 0,
        score: 0.0,
    };

    fn of(number: usize, node: &Node) -> Self {
        Parent {
            number,
            ranks: node.ranks,
            depth: node.depth,
            score: node.score,
        }
    }
}

/// Best-first search over prefixes of candidates (DDTree). Every prefix but the first has one
/// predecessor whose score is not smaller: its left sibling, or its parent if it is a first child.
/// A prefix enters the frontier when its predecessor leaves it, so the best prefix that is not yet
/// chosen is always in the frontier, and the first B results are the B likeliest prefixes.
pub(super) struct BestFirst<'a> {
    candidates: &'a Candidates<'a>,
    pub frontier: BinaryHeap<Open>,
    chosen: usize,
}

impl BestFirst<'_> {
    fn open(&mut self, parent: Parent, rank: usize) {
        if let Some(node) = self.candidates.node(parent, rank) {
            self.frontier.push(Open { node, parent });
        }
    }
}

impl Iterator for BestFirst<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        let Open { node, parent } = self.frontier.pop()?;
        self.chosen += 1;
        self.open(parent, node.rank() + 1);
        self.open(Parent::of(self.chosen, &node), 1);
        Some(node)
    }
}

/// A node of the frontier. The parent's score is kept to be added to: subtracting one sibling's
/// term and adding the next one's would make equal scores unequal.
pub(super) struct Open {
    pub node: Node,
    parent: Parent,
}

impl Ord for Open {
    /// The greatest is chosen first: larger score, then smaller rank tuple. Scores are sums that
    /// begin with +0, so there is no -0 for `total_cmp` to tell from +0, and no NaN.
    fn cmp(&self, other: &Self) -> Ordering {
        (self.node.score.total_cmp(&other.node.score))
            .then_with(|| other.node.ranks.cmp(&self.node.ranks))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Open {}

impl Prediction {
    /// From the best nodes and the chain, as far as they go.
    pub(super) fn of(best: &[Node], chain: &[Node]) -> Self {
        // Sums start from +0 and use the portable exponential: every device has these bits.
        let mass = |nodes: &[Node], count: usize| {
            let masses = nodes.iter().take(count).map(|node| exp(node.score));
            masses.fold(0.0, |sum, mass| sum + mass)
        };
        Prediction {
            tree: PHI_BUDGETS.map(|budget| mass(best, budget)),
            chain: PHI_LENGTHS.map(|length| mass(chain, length)),
        }
    }
}

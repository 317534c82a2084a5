//! What a step verified, for those who want to look at it.

use ops::{Backend, EMIT_MAX, OpsError};

use super::{Runner, SequenceStep, Shape, StepSequence};
use crate::ModelError;

/// The tree that a step verified for one sequence, and the walk through it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTree {
    /// Node 0 is the root: the token that was emitted last before the step. Parents come before
    /// their children; a chain is a tree whose nodes have one child each.
    pub nodes: Vec<StepNode>,
    /// Accepted nodes from the root down, the root left out.
    pub path: Vec<usize>,
}

/// One verified row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepNode {
    /// Its token.
    pub token: u32,
    /// Its parent; `None` for the root.
    pub parent: Option<usize>,
    /// Edges to the root.
    pub depth: usize,
    /// What the drafter said of it; `None` for the root.
    pub draft: Option<DraftRank>,
}

/// A candidate's place among the candidates of its depth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftRank {
    /// 0 = the likeliest.
    pub rank: usize,
    /// Natural log of its probability.
    pub logprob: f32,
}

impl<B: Backend> Runner<B> {
    /// The trees of the last step, which was one of these sequences with these results; `None`
    /// where nobody asked. Costs a few small downloads if somebody did, else nothing: the tables of
    /// a step stay on the device until the next one.
    ///
    /// # Panics
    /// If the three lists differ in length.
    pub fn step_trees(
        &self,
        sequences: &[SequenceStep],
        results: &[StepSequence],
        asked: &[bool],
    ) -> Result<Vec<Option<StepTree>>, ModelError> {
        assert_eq!(sequences.len(), results.len(), "one result per sequence");
        assert_eq!(sequences.len(), asked.len(), "one answer per sequence");
        if !asked.contains(&true) {
            return Ok(vec![None; asked.len()]);
        }
        let tables = self.read_tables(sequences, results)?;
        let (mut row, mut block) = (0, 0);
        let mut trees = Vec::with_capacity(asked.len());
        for (index, (step, result)) in sequences.iter().zip(results).enumerate() {
            let candidates = tables.block(block);
            let tree = || {
                tables
                    .tree(row, candidates, result.drafted)
                    .walked(&tables.path[index * EMIT_MAX..], result.accepted)
            };
            trees.push(asked[index].then(tree));
            row += result.rows;
            block += usize::from(step.shape != Shape::Plain);
        }
        Ok(trees)
    }

    fn read_tables(
        &self,
        sequences: &[SequenceStep],
        results: &[StepSequence],
    ) -> Result<Tables, OpsError> {
        let rows = results.iter().map(|result| result.rows).sum();
        let drafting = sequences.iter().filter(|step| step.shape != Shape::Plain);
        let (k, block) = (self.config.topk, self.block_size() * self.config.topk);
        let candidates = drafting.count() * block;
        let mut tables = Tables {
            token: vec![0; rows],
            parent: vec![0; rows],
            path: vec![0; sequences.len() * EMIT_MAX],
            ids: vec![0; candidates],
            logprobs: vec![0.0; candidates],
            k,
            block,
        };
        let (backend, verify) = (&*self.backend, &self.verify);
        backend.download(&verify.batch.token, 0, &mut tables.token)?;
        backend.download(&verify.batch.parent, 0, &mut tables.parent)?;
        backend.download(&verify.walk.path, 0, &mut tables.path)?;
        if candidates > 0 {
            let drafts = &self.drafts;
            backend.download(&drafts.candidate_ids, 0, &mut tables.ids)?;
            backend.download(&drafts.candidate_logprobs, 0, &mut tables.logprobs)?;
        }
        Ok(tables)
    }
}

/// Host copies of what a step left on the device.
struct Tables {
    /// `[rows]`
    token: Vec<u32>,
    /// `[rows]`
    parent: Vec<i32>,
    /// `[sequences, EMIT_MAX]`
    path: Vec<u32>,
    /// `[blocks, block_size, k]`
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    k: usize,
    /// Candidates of a block.
    block: usize,
}

/// Candidates of one block, `[block_size, k]`. Those of row d are for nodes of depth d.
type Candidates<'a> = (&'a [u32], &'a [f32]);

impl Tables {
    fn block(&self, block: usize) -> Candidates<'_> {
        let range = block * self.block..(block + 1) * self.block;
        match self.ids.get(range.clone()) {
            Some(ids) => (ids, &self.logprobs[range]),
            None => (&[], &[]),
        }
    }

    /// The root in row `start` and the `drafted` nodes behind it.
    fn tree(&self, start: usize, candidates: Candidates<'_>, drafted: usize) -> StepTree {
        let mut nodes: Vec<StepNode> = Vec::with_capacity(1 + drafted);
        for row in start..=start + drafted {
            let parent = usize::try_from(self.parent[row]).ok();
            let depth = parent.map_or(0, |parent| nodes[parent].depth + 1);
            let token = self.token[row];
            nodes.push(StepNode {
                token,
                parent,
                depth,
                draft: parent.and_then(|_| self.rank(candidates, depth, token)),
            });
        }
        StepTree {
            nodes,
            path: Vec::new(),
        }
    }

    fn rank(&self, (ids, logprobs): Candidates<'_>, depth: usize, token: u32) -> Option<DraftRank> {
        let row = depth * self.k;
        let ids = ids.get(row..row + self.k)?;
        let rank = ids.iter().position(|&id| id == token)?;
        Some(DraftRank {
            rank,
            logprob: logprobs[row + rank],
        })
    }
}

impl StepTree {
    /// With the walk's rows, which begin with the root's.
    fn walked(mut self, path: &[u32], accepted: usize) -> Self {
        let kept = path.iter().skip(1).take(accepted);
        self.path = kept.map(|&row| row as usize).collect();
        self
    }
}

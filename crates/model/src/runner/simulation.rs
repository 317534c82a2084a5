//! Acceptance by a law instead of the model, for benchmarks on weights that mean nothing.

use ops::{Backend, DEPTH_MAX};

use super::Runner;
use crate::ModelError;

/// Acceptance that is drawn instead of computed; see [`ops::SimulateAcceptance`]. The children of
/// a node are tried in the order of their ranks; each is tried only if those before it were not
/// accepted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AcceptanceLaw {
    /// Rate at which the first child of a node of depth 0, 1, ... is accepted.
    pub first: [f32; DEPTH_MAX],
    /// Rate at which each later child is, when those before it were not.
    pub later: [f32; DEPTH_MAX],
    /// Key of the random numbers.
    pub seed: u64,
}

impl AcceptanceLaw {
    /// Probability that the child of this rank, counted from 0, of a node of depth `depth` is the
    /// accepted one, the node being accepted: `first`, then `(1 - first) (1 - later)^(rank - 1)
    /// later`. That is what a drafter that knew the law would say of its candidates.
    pub fn probability(&self, depth: usize, rank: usize) -> f64 {
        let (first, later) = (f64::from(self.first[depth]), f64::from(self.later[depth]));
        match rank {
            0 => first,
            _ => (1.0 - first) * (1.0 - later).powi(rank as i32 - 1) * later,
        }
    }

    /// The first depth at which the second candidate would be likelier than the first: no drafter
    /// ranks like that, and a tree of the likeliest nodes needs ranks in order.
    pub fn misranked_depth(&self) -> Option<usize> {
        (0..DEPTH_MAX).find(|&depth| self.probability(depth, 0) < self.probability(depth, 1))
    }

    /// Log-probabilities of `k` candidates in each row of a block, the anchor's left at zero.
    /// Depths beyond the law's have none.
    fn block_logprobs(&self, block_size: usize, k: usize) -> Vec<f32> {
        let candidate = |entry: usize| match (entry / k).checked_sub(1) {
            None => 0.0,
            Some(depth) if depth < DEPTH_MAX => self.probability(depth, entry % k).ln() as f32,
            Some(_) => f32::NEG_INFINITY,
        };
        (0..block_size * k).map(candidate).collect()
    }
}

impl<B: Backend> Runner<B> {
    /// From now on drafts are accepted by `law`, and trees are built as a drafter would have them
    /// built whose candidates have the law's probabilities; `None` = by the model again. Tokens are
    /// still the drafter's candidates. Recorded steps are dropped: they hold the former choice. For
    /// benchmarks only.
    pub fn simulate(&mut self, law: Option<AcceptanceLaw>) -> Result<(), ModelError> {
        self.graphs.clear();
        self.simulation = law.map(|law| law.seed);
        let Some(law) = law else { return Ok(()) };
        let rates = [law.first, law.later].concat();
        self.backend.upload(&rates, &mut self.results.law, 0)?;
        let blocks = self.drafts.batch.rows_max / self.block_size();
        let block = law.block_logprobs(self.block_size(), self.config.topk);
        let logprobs = &mut self.drafts.law_logprobs;
        Ok(self.backend.upload(&block.repeat(blocks), logprobs, 0)?)
    }
}

//! What a step did to one request, in detail.

use model::{Emitted, Shape, StepTree};

/// A step of a request that asked for traces.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTrace {
    /// How it drafted.
    pub shape: Shape,
    /// What was verified; its path has only nodes whose tokens were emitted.
    pub tree: StepTree,
    /// The target's own token behind the path; `None` where the step was cut on an accepted node.
    pub bonus: Option<u32>,
    /// Milliseconds of the step, whose batch may have held other requests.
    pub ms: f64,
}

impl StepTrace {
    /// Of a step that emitted these tokens: those of the path, then the bonus.
    pub(crate) fn new(shape: Shape, mut tree: StepTree, tokens: &[Emitted], ms: f64) -> Self {
        tree.path.truncate(tokens.len());
        StepTrace {
            shape,
            bonus: tokens.get(tree.path.len()).map(|token| token.id),
            tree,
            ms,
        }
    }

    /// Emitted tokens in order.
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        let accepted = self
            .tree
            .path
            .iter()
            .map(|&node| self.tree.nodes[node].token);
        accepted.chain(self.bonus)
    }

    /// Emitted tokens.
    pub fn count(&self) -> usize {
        self.tree.path.len() + usize::from(self.bonus.is_some())
    }

    /// Lets only the first `kept` emitted tokens count, as [`crate::Finish::trim`] does.
    pub fn trim(&mut self, kept: usize) {
        if kept < self.count() {
            self.tree.path.truncate(kept);
            self.bonus = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use model::StepNode;

    use super::*;

    fn trace(emitted: usize) -> StepTrace {
        let node = |index: usize| StepNode {
            token: 10 + index as u32,
            parent: index.checked_sub(1),
            depth: index,
            draft: None,
        };
        let tree = StepTree {
            nodes: (0..4).map(node).collect(),
            path: vec![1, 2],
        };
        let token = |id| Emitted { id, logprob: None };
        let tokens = [11, 12, 50].map(token);
        StepTrace::new(Shape::Chain(3), tree, &tokens[..emitted], 1.0)
    }

    #[test]
    fn tokens_are_the_path_and_the_bonus() {
        for (emitted, tokens) in [(3, &[11, 12, 50][..]), (2, &[11, 12]), (1, &[11])] {
            let trace = trace(emitted);
            assert!(trace.tokens().eq(tokens.iter().copied()), "{trace:?}");
            assert_eq!(trace.count(), emitted);
        }
    }

    #[test]
    fn what_is_dropped_is_no_bonus_and_no_path() {
        for kept in 0..5 {
            let mut trace = trace(3);
            trace.trim(kept);
            assert!(trace.tokens().eq([11, 12, 50].into_iter().take(kept)));
        }
    }
}

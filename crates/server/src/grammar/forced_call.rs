//! The beginning of a tool call in the model's own format, with one of the given names.

use std::sync::Arc;

use engine::{Constraint, ConstraintState, OutputConstraint};

use crate::vocabulary::Vocabulary;

/// Children of a node: tokens and where they lead. A node without any is the end of a beginning.
type Node = Vec<(u32, usize)>;

/// One of the tokenised texts `<tool_call>\n<function=NAME>\n`, then anything.
#[derive(Clone)]
pub(super) struct ForcedCall {
    /// All of them as a trie over token ids; node 0 is the root.
    nodes: Arc<Vec<Node>>,
    /// Behind each accepted token; `None`: behind one that may not come there.
    path: Vec<Option<usize>>,
}

impl ForcedCall {
    /// Before the first token. Names that need a token of `banned` are left out; `Ok(None)` where all
    /// do.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        names: &[String],
        banned: &[u32],
    ) -> Result<Option<Self>, String> {
        let mut nodes: Vec<Node> = vec![Vec::new()];
        for name in names {
            let tokens = vocabulary.encode(&format!("<tool_call>\n<function={name}>\n"))?;
            if tokens.iter().any(|token| banned.contains(token)) {
                continue;
            }
            let mut node = 0;
            for token in tokens {
                let known = nodes[node].iter().find(|(own, _)| *own == token);
                node = match known {
                    Some(&(_, child)) => child,
                    None => {
                        let child = nodes.len();
                        nodes[node].push((token, child));
                        nodes.push(Vec::new());
                        child
                    }
                };
            }
        }
        Ok((nodes.len() > 1).then(|| ForcedCall {
            nodes: Arc::new(nodes),
            path: Vec::new(),
        }))
    }

    fn node(&self) -> Option<usize> {
        self.path.last().copied().unwrap_or(Some(0))
    }

    fn is_whole(&self, node: usize) -> bool {
        self.nodes[node].is_empty()
    }
}

impl Constraint for ForcedCall {
    fn mask(&mut self, words: &mut [u32]) {
        match self.node() {
            None => {}
            Some(node) if self.is_whole(node) => words.fill(u32::MAX),
            Some(node) => {
                for &(token, _) in &self.nodes[node] {
                    words[token as usize / 32] |= 1 << (token % 32);
                }
            }
        }
    }

    fn allows_all(&mut self) -> bool {
        self.node().is_some_and(|node| self.is_whole(node))
    }

    fn accept(&mut self, token: u32) {
        let next = self.node().and_then(|node| {
            if self.is_whole(node) {
                return Some(node);
            }
            let mut children = self.nodes[node].iter();
            children.find(|(own, _)| *own == token).map(|edge| edge.1)
        });
        self.path.push(next);
    }

    fn rollback(&mut self, tokens: usize) {
        self.path.truncate(self.path.len().saturating_sub(tokens));
    }
}

impl OutputConstraint for ForcedCall {
    fn state(&self) -> ConstraintState {
        match self.node() {
            None => ConstraintState::Blocked { whole: false },
            Some(node) if self.is_whole(node) => ConstraintState::Released,
            Some(_) => ConstraintState::Open,
        }
    }

    fn boxed_clone(&self) -> Box<dyn OutputConstraint> {
        Box::new(self.clone())
    }
}

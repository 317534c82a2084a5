//! Sequences that may not emit every token: a constraint says which may follow.

use ops::{Backend, Batch, OpsError, TokenMasks, TreeTables, is_allowed};

use super::staging::Held;

/// A language over token ids, at one point of a text. A grammar, a forced prefix, a set of banned
/// tokens.
///
/// The runner walks trees of drafts with it and always takes back what it accepted: after a step
/// the constraint stands where it stood before. It is the caller that moves it on, by the tokens
/// that the step emitted.
///
/// Until the text has ended, a mask must leave a token that nothing else bans, as `tokens_min` bans
/// stop ids: where none is left, token 0 comes.
pub trait Constraint {
    /// Sets bit `id % 32` of `words[id / 32]` for every token that may come next. `words` has
    /// `ceil(vocab_size / 32)` words and comes zeroed; bits that name no token mean nothing.
    fn mask(&mut self, words: &mut [u32]);

    /// Whether every token may come next: then nobody asks for the mask.
    fn allows_all(&mut self) -> bool {
        false
    }

    /// Moves on by a token that the last mask of this point allowed.
    fn accept(&mut self, token: u32);

    /// Takes back the last `tokens` accepted tokens. A step takes back at most [`ops::DEPTH_MAX`].
    fn rollback(&mut self, tokens: usize);
}

/// Masks of the rows of a step, and what they are made of.
pub(super) struct Masks<B: Backend> {
    pub(super) tables: TokenMasks<B>,
    held: Held<u32>,
    /// Rows of the step; 1 = has a mask.
    masked: Vec<u32>,
    /// `[tree_rows, words_per_row]` masks of one sequence.
    words: Vec<u32>,
    nodes: Nodes,
}

/// Rows of a step as the device has linked them.
#[derive(Default)]
struct Nodes {
    token: Vec<u32>,
    first_child: Vec<i32>,
    next_sibling: Vec<i32>,
}

impl Nodes {
    /// So many rows without children.
    fn roots(&mut self, rows: usize) {
        for table in [&mut self.first_child, &mut self.next_sibling] {
            table.clear();
            table.resize(rows, -1);
        }
        self.token.clear();
        self.token.resize(rows, 0);
    }

    /// Waits for the rows of a batch and reads them.
    fn read<B: Backend>(
        &mut self,
        backend: &B,
        batch: &Batch<B>,
        tree: &TreeTables<B>,
    ) -> Result<(), OpsError> {
        backend.download(&batch.token, 0, &mut self.token)?;
        backend.download(&tree.first_child, 0, &mut self.first_child)?;
        backend.download(&tree.next_sibling, 0, &mut self.next_sibling)
    }
}

impl<B: Backend> Masks<B> {
    /// Masks for `rows` rows, of which at most `tree_rows` belong to one sequence.
    pub(super) fn new(
        backend: &B,
        rows: usize,
        tree_rows: usize,
        vocab_rows: usize,
    ) -> Result<Self, OpsError> {
        let tables = TokenMasks::new(backend, rows, vocab_rows)?;
        Ok(Masks {
            held: Held::default(),
            masked: Vec::with_capacity(rows),
            words: vec![0; tree_rows * tables.words_per_row],
            nodes: Nodes::default(),
            tables,
        })
    }

    /// Bytes on the device.
    pub(super) fn bytes(rows: usize, vocab_rows: usize) -> usize {
        TokenMasks::<B>::bytes(rows, vocab_rows)
    }

    /// Makes and uploads the masks of segments of `segments[s]` rows, the s-th under
    /// `constraints[s]`. Reads the rows from the device only if a constrained segment has children.
    pub(super) fn fill(
        &mut self,
        backend: &B,
        (batch, tree): (&Batch<B>, &TreeTables<B>),
        segments: &[usize],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<(), OpsError> {
        let rows = segments.iter().sum();
        self.nodes.roots(rows);
        let mut pairs = segments.iter().zip(constraints.iter());
        if pairs.any(|(&rows, constraint)| rows > 1 && constraint.is_some()) {
            self.nodes.read(backend, batch, tree)?;
        }
        self.masked.clear();
        self.masked.resize(rows, 0);
        let width = self.tables.words_per_row;
        let mut start = 0;
        for (&rows, constraint) in segments.iter().zip(constraints) {
            if let Some(constraint) = constraint {
                let mut tree = MaskedTree {
                    token: &self.nodes.token[start..][..rows],
                    first_child: &self.nodes.first_child[start..][..rows],
                    next_sibling: &self.nodes.next_sibling[start..][..rows],
                    width,
                    masked: &mut self.masked[start..][..rows],
                    words: &mut self.words,
                };
                tree.visit(0, &mut **constraint);
                let used = tree.rows_used();
                let words = &self.words[..used * width];
                if !words.is_empty() {
                    backend.upload(words, &mut self.tables.words, start * width)?;
                }
            }
            start += rows;
        }
        self.held
            .write(backend, &self.masked, &mut self.tables.masked)
    }
}

/// The rows of one sequence, numbered from its root, and their masks.
struct MaskedTree<'a> {
    token: &'a [u32],
    first_child: &'a [i32],
    next_sibling: &'a [i32],
    /// Words of a mask.
    width: usize,
    masked: &'a mut [u32],
    words: &'a mut [u32],
}

impl MaskedTree<'_> {
    /// Masks a node, unless all may follow it, and what can be chosen below it: a child that its
    /// parent's mask bans is never reached, nor is what hangs on it. The constraint stands behind the
    /// node's token.
    fn visit(&mut self, node: usize, constraint: &mut dyn Constraint) {
        let words = node * self.width..(node + 1) * self.width;
        let free = constraint.allows_all();
        if !free {
            self.words[words.clone()].fill(0);
            constraint.mask(&mut self.words[words.clone()]);
            self.masked[node] = 1;
        }
        let mut next = self.first_child[node];
        while let Ok(child) = usize::try_from(next) {
            if free || is_allowed(&self.words[words.clone()], self.token[child]) {
                constraint.accept(self.token[child]);
                self.visit(child, constraint);
                constraint.rollback(1);
            }
            next = self.next_sibling[child];
        }
    }

    /// Rows up to the last that has a mask.
    fn rows_used(&self) -> usize {
        let last = self.masked.iter().rposition(|&masked| masked != 0);
        last.map_or(0, |last| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens must rise by 1 to 3, except behind `free`.
    struct Rising {
        path: Vec<u32>,
        masks: usize,
        free: u32,
    }

    impl Constraint for Rising {
        fn mask(&mut self, words: &mut [u32]) {
            assert!(words.iter().all(|&word| word == 0), "words come zeroed");
            let last = self.path.last().expect("there is a root");
            for id in last + 1..=last + 3 {
                words[id as usize / 32] |= 1 << (id % 32);
            }
            self.masks += 1;
        }

        fn allows_all(&mut self) -> bool {
            self.path.last() == Some(&self.free)
        }

        fn accept(&mut self, token: u32) {
            let last = self.path.last().expect("there is a root");
            let free = *last == self.free;
            assert!(
                free || (last + 1..=last + 3).contains(&token),
                "{token} is banned"
            );
            self.path.push(token);
        }

        fn rollback(&mut self, tokens: usize) {
            self.path.truncate(self.path.len() - tokens);
        }
    }

    /// Children of 30 are 31 and 40, of 31 34 and 33, of 40 41; the last row is padding.
    #[test]
    fn nodes_that_can_be_chosen_get_the_mask_of_their_own_path() {
        let token = [30, 31, 40, 34, 41, 33, 31];
        let (mut masked, mut words) = ([0; 7], [0xAB; 14]);
        let mut tree = MaskedTree {
            token: &token,
            first_child: &[1, 3, 4, -1, -1, -1, -1],
            next_sibling: &[-1, 2, -1, 5, -1, -1, -1],
            width: 2,
            masked: &mut masked,
            words: &mut words,
        };
        let mut constraint = Rising {
            path: vec![30],
            masks: 0,
            free: 0,
        };
        tree.visit(0, &mut constraint);
        assert_eq!(tree.rows_used(), 6);
        assert_eq!((&constraint.path[..], constraint.masks), (&[30][..], 4));
        assert_eq!(masked, [1, 1, 0, 1, 0, 1, 0]);
        for (row, words) in words.chunks(2).enumerate() {
            let allowed = (0..64).filter(|&id| is_allowed(words, id));
            let last = token[row];
            match masked[row] {
                1 => assert!(allowed.eq(last + 1..=last + 3), "row {row}"),
                _ => assert_eq!(words, [0xAB; 2], "row {row} was not touched"),
            }
        }
    }

    /// Behind 31 everything may come: its row stays as it was, the rows below have masks again.
    #[test]
    fn nodes_that_everything_may_follow_get_no_mask() {
        let token = [30, 31, 50, 52, 60];
        let (mut masked, mut words) = ([0; 5], [0xAB; 10]);
        let mut tree = MaskedTree {
            token: &token,
            first_child: &[1, 2, 3, -1, -1],
            next_sibling: &[-1, -1, 4, -1, -1],
            width: 2,
            masked: &mut masked,
            words: &mut words,
        };
        let mut constraint = Rising {
            path: vec![30],
            masks: 0,
            free: 31,
        };
        tree.visit(0, &mut constraint);
        assert_eq!((&constraint.path[..], constraint.masks), (&[30][..], 4));
        assert_eq!(masked, [1, 0, 1, 1, 1]);
        assert_eq!(words[2..4], [0xAB; 2]);
    }
}

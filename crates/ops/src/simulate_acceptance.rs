//! Choices made by a given law instead of the model, to time steps at a known acceptance.

use crate::limits::DEPTH_MAX;
use crate::philox::uniform;
use crate::{Backend, Batch, Cpu, Slots, TreeTables};

/// Overwrites the choice of every live row, so that the walk follows children by `law`. The
/// children of a row of depth d are tried in rank order, j = 0, 1, ...: child j is taken if
/// `uniform(seed, emitted + d, j)` is below `law[0, d]` for j = 0 and below `law[1, d]` for later
/// ones; the first that is taken gives the choice. If none is, the choice is the lowest id that no
/// child has. For benchmarks only.
pub struct SimulateAcceptance<'a, B: Backend> {
    /// Segments, tokens and depths.
    pub batch: &'a Batch<B>,
    /// Children.
    pub tree: &'a TreeTables<B>,
    /// Tokens emitted so far.
    pub slots: &'a Slots<B>,
    /// `[2, DEPTH_MAX]` rate of the first child, and of each later one after a miss, of rows of
    /// depth 0, 1, ... A row of depth `DEPTH_MAX` has no children.
    pub law: &'a B::Buf<f32>,
    /// Key of the random numbers.
    pub seed: u64,
    /// `[rows]`.
    pub choice: &'a mut B::Buf<u32>,
}

pub(crate) fn cpu(op: SimulateAcceptance<'_, Cpu>) {
    for sequence in 0..op.batch.live[1] as usize {
        let slot = op.batch.sequence_slot[sequence] as usize;
        let start = op.batch.sequence_start[sequence] as usize;
        for row in start..start + op.batch.sequence_rows[sequence] as usize {
            let depth = op.batch.depth[row];
            let children = children(op.batch, op.tree, start, row);
            let index = op.slots.emitted[slot].wrapping_add(depth);
            let taken = children.iter().enumerate().find(|(j, _)| {
                let law = usize::from(*j > 0) * DEPTH_MAX;
                uniform(op.seed, index, *j as u32) < op.law[law + depth as usize]
            });
            op.choice[row] = match taken {
                Some((_, &token)) => token,
                None => (0..)
                    .find(|id| !children.contains(id))
                    .expect("a row has fewer children than there are ids"),
            };
        }
    }
}

/// Tokens of a row's children in rank order.
fn children(batch: &Batch<Cpu>, tree: &TreeTables<Cpu>, start: usize, row: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut next = tree.first_child[row];
    while let Ok(node) = usize::try_from(next) {
        tokens.push(batch.token[start + node]);
        next = tree.next_sibling[start + node];
    }
    tokens
}

#[cfg(test)]
mod tests;

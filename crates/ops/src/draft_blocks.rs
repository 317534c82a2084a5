//! The drafter's input: one block per drafting sequence.

use crate::{Backend, Batch, Cpu, Slots};

/// `token` of every live block: the root of its slot in the first row (the anchor), the mask token
/// in the others. Everything else of the batch is given.
pub struct DraftBlocks<'a, B: Backend> {
    /// Roots.
    pub slots: &'a Slots<B>,
    /// Id of the mask token.
    pub mask_token: u32,
    /// Rows of every block.
    pub block_size: usize,
    /// Blocks are the segments; their slots, starts and rows are given.
    pub batch: &'a mut Batch<B>,
}

pub(crate) fn cpu(op: DraftBlocks<'_, Cpu>) {
    for block in 0..op.batch.live[1] as usize {
        let slot = op.batch.sequence_slot[block] as usize;
        let start = op.batch.sequence_start[block] as usize;
        let rows = op.batch.sequence_rows[block] as usize;
        assert_eq!(
            rows, op.block_size,
            "block {block} has {rows} rows, not {}",
            op.block_size
        );
        let token = &mut op.batch.token[start..start + rows];
        token.fill(op.mask_token);
        token[0] = op.slots.root[slot];
    }
}

#[cfg(test)]
mod tests;

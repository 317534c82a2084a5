//! Moves every sequence of a step on, and lists its new context rows for the drafter.

use crate::limits::EMIT_MAX;
use crate::{Backend, Batch, ContextRows, Cpu, Slots, Walk};

/// Per sequence: list its path rows in `context` (source = row of the batch, position =
/// `length + j`), then `length += path_rows`, `pending = path_rows - 1`, count the emitted tokens
/// in `generated`, `emitted += n`, `root = last emitted token`.
///
/// With `first` (the batch's rows are the last rows of prompts that are already committed): lists
/// nothing (`context` ends up empty) and leaves `length` and `pending`.
pub struct Advance<'a, B: Backend> {
    /// Segments.
    pub batch: &'a Batch<B>,
    /// Paths and tokens.
    pub walk: &'a Walk<B>,
    /// See above.
    pub first: bool,
    /// What moves on.
    pub slots: &'a mut Slots<B>,
    /// New context rows, in batch order, packed.
    pub context: &'a mut ContextRows<B>,
}

pub(crate) fn cpu(op: Advance<'_, Cpu>) {
    let (batch, walk, slots, context) = (op.batch, op.walk, op.slots, op.context);
    let mut listed = 0;
    for sequence in 0..batch.live[1] as usize {
        let slot = batch.sequence_slot[sequence] as usize;
        if !op.first {
            let start = batch.sequence_start[sequence];
            let path_rows = walk.path_rows[sequence] as usize;
            let path = &walk.path[sequence * EMIT_MAX..][..path_rows];
            for (&row, position) in path.iter().zip(slots.length[slot]..) {
                context.source[listed] = start + row;
                context.slot[listed] = slot as u32;
                context.position[listed] = position;
                listed += 1;
            }
            slots.length[slot] += path_rows as u32;
            slots.pending[slot] = (path_rows as u32).saturating_sub(1);
        }
        let emitted = walk.emitted[sequence] as usize;
        let tokens = &walk.tokens[sequence * EMIT_MAX..][..emitted];
        for &token in tokens {
            slots.generated[slot * slots.vocab_rows + token as usize] += 1;
        }
        slots.emitted[slot] += emitted as u32;
        if let Some(&last) = tokens.last() {
            slots.root[slot] = last;
        }
    }
    context.live[0] = listed as u32;
}

#[cfg(test)]
mod tests;

//! Batches for the tests of ops that work on segments.

use crate::{Batch, Cpu, NONE, Slots};

/// One sequence of a batch.
pub(crate) struct Segment<'a> {
    pub slot: u32,
    /// `[rows]` token ids.
    pub token: &'a [u32],
    /// `[rows]` parents within the segment, -1 for row 0.
    pub parent: &'a [i32],
}

/// A batch of `segments` with two padding rows and one unused sequence entry behind them.
pub(crate) fn batch(segments: &[Segment<'_>]) -> Batch<Cpu> {
    let rows: usize = segments.iter().map(|segment| segment.parent.len()).sum();
    let mut batch = Batch::new(&Cpu::default(), rows + 2, segments.len() + 1).expect("host memory");
    batch
        .live
        .copy_from_slice(&[rows as u32, segments.len() as u32]);
    batch.row_sequence.fill(NONE);
    let mut start = 0;
    for (sequence, segment) in segments.iter().enumerate() {
        batch.sequence_slot[sequence] = segment.slot;
        batch.sequence_start[sequence] = start as u32;
        batch.sequence_rows[sequence] = segment.parent.len() as u32;
        for (i, &parent) in segment.parent.iter().enumerate() {
            batch.row_sequence[start + i] = sequence as u32;
            batch.token[start + i] = segment.token[i];
            batch.parent[start + i] = parent;
            if parent >= 0 {
                batch.depth[start + i] = batch.depth[start + parent as usize] + 1;
            }
        }
        start += segment.parent.len();
    }
    batch
}

/// `count` slots of two pages each for ids `0..vocab_used` in rows of `vocab_used + 3`, with no
/// limits in force.
pub(crate) fn slots(count: usize, vocab_used: usize) -> Slots<Cpu> {
    let mut slots =
        Slots::new(&Cpu::default(), count, 2, vocab_used + 3, vocab_used).expect("host memory");
    for row in slots.sampling.iter_mut() {
        row.top_p = 1.0;
        row.repetition_penalty = 1.0;
        row.tokens_max = u32::MAX;
        row.context_max = u32::MAX;
    }
    for (page, entry) in slots.block_table.iter_mut().enumerate() {
        *entry = page as u32;
    }
    slots
}

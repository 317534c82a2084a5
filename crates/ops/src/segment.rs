//! The sequences of a batch as the CPU ops walk them.

use crate::{Batch, Cpu, NONE, Rows};

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// The sequence's slot.
    pub slot: usize,
    /// Its first row in the batch.
    pub start: usize,
    /// Number of rows, padding inside the segment included.
    pub rows: usize,
}

impl Rows<'_, Cpu> {
    /// Rows that an op works on.
    pub(crate) fn count(self) -> usize {
        self.capacity.min(self.live[0] as usize)
    }
}

/// The live sequences of a batch that have rows.
pub(crate) fn segments(batch: &Batch<Cpu>, rows: Rows<'_, Cpu>) -> Vec<Segment> {
    let count = rows.count();
    (0..rows.live[1] as usize)
        .filter(|&s| batch.sequence_slot[s] != NONE && batch.sequence_rows[s] > 0)
        .map(|s| {
            let segment = Segment {
                slot: batch.sequence_slot[s] as usize,
                start: batch.sequence_start[s] as usize,
                rows: batch.sequence_rows[s] as usize,
            };
            assert!(
                segment.start + segment.rows <= count,
                "sequence {s} has rows {}..{} of {count}",
                segment.start,
                segment.start + segment.rows
            );
            segment
        })
        .collect()
}

/// Slot, and number within its segment, of a row; `None` for padding.
pub(crate) fn place(batch: &Batch<Cpu>, row: usize) -> Option<(usize, usize)> {
    let sequence = batch.row_sequence[row];
    if sequence == NONE {
        return None;
    }
    let slot = batch.sequence_slot[sequence as usize];
    let start = batch.sequence_start[sequence as usize] as usize;
    (slot != NONE).then(|| (slot as usize, row - start))
}

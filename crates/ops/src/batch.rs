//! The rows of one forward pass and the sequences they belong to, all in device memory.

use crate::{Backend, OpsError};

/// How many rows an op works on: a host constant (the bucket a graph was captured for) and the
/// number that is live in this step, on the device. Rows from `live` on are padding: an op may
/// compute or skip them, but nothing may read them.
pub struct Rows<'a, B: Backend> {
    /// Rows the buffers hold at least; constant for a bucket.
    pub capacity: usize,
    /// `[live rows, live sequences]`.
    pub live: &'a B::Buf<u32>,
    /// Whether they are rows of prompts. Steps never need the same bits, so that a backend may sum
    /// such a product in another order: one for every number of rows.
    pub prompt: bool,
}

impl<'a, B: Backend> Rows<'a, B> {
    /// Rows of a step.
    pub fn new(capacity: usize, live: &'a B::Buf<u32>) -> Self {
        Rows {
            capacity,
            live,
            prompt: false,
        }
    }

    /// The same rows as rows of prompts.
    pub fn of_prompts(self) -> Self {
        Rows {
            prompt: true,
            ..self
        }
    }
}

impl<B: Backend> Clone for Rows<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B: Backend> Copy for Rows<'_, B> {}

/// A segment of consecutive rows per sequence. Within a segment rows are numbered from 0 (the
/// root, or the first token of a prefill chunk); parents come before children.
///
/// Row `i` of sequence `s` has rotary position `length[slot] + depth` and writes its key and value
/// to cache index `length[slot] + i`, where `slot = sequence_slot[s]` and `length` is the number of
/// committed tokens ([`crate::Slots`]).
pub struct Batch<B: Backend> {
    /// Rows the tables can hold.
    pub rows_max: usize,
    /// Sequences that ops cover, a host constant like [`Rows::capacity`]: what the tables hold,
    /// unless [`Batch::cover`] says less.
    pub sequences_max: usize,
    pub(crate) sequences_held: usize,
    /// `[2]`: live rows, live sequences.
    pub live: B::Buf<u32>,
    /// `[rows_max]` sequence of a row, [`crate::NONE`] for padding.
    pub row_sequence: B::Buf<u32>,
    /// `[rows_max]` token id.
    pub token: B::Buf<u32>,
    /// `[rows_max]` parent, numbered within the segment; -1 for row 0.
    pub parent: B::Buf<i32>,
    /// `[rows_max]` edges from row 0 of the segment.
    pub depth: B::Buf<u32>,
    /// `[sequences_max]` slot of a sequence.
    pub sequence_slot: B::Buf<u32>,
    /// `[sequences_max]` first row of the segment.
    pub sequence_start: B::Buf<u32>,
    /// `[sequences_max]` rows of the segment.
    pub sequence_rows: B::Buf<u32>,
}

impl<B: Backend> Batch<B> {
    /// Empty tables.
    pub fn new(backend: &B, rows_max: usize, sequences_max: usize) -> Result<Self, OpsError> {
        Ok(Batch {
            rows_max,
            sequences_max,
            sequences_held: sequences_max,
            live: backend.alloc(2)?,
            row_sequence: backend.alloc(rows_max)?,
            token: backend.alloc(rows_max)?,
            parent: backend.alloc(rows_max)?,
            depth: backend.alloc(rows_max)?,
            sequence_slot: backend.alloc(sequences_max)?,
            sequence_start: backend.alloc(sequences_max)?,
            sequence_rows: backend.alloc(sequences_max)?,
        })
    }

    /// Ops from here on need to cover the first `sequences` entries only.
    ///
    /// # Panics
    /// If the tables hold fewer.
    pub fn cover(&mut self, sequences: usize) {
        assert!(
            sequences <= self.sequences_held,
            "{sequences} sequences in tables for {}",
            self.sequences_held
        );
        self.sequences_max = sequences;
    }

    /// The row count of a forward over `capacity` rows of this batch.
    ///
    /// # Panics
    /// If `capacity` exceeds the tables.
    pub fn rows(&self, capacity: usize) -> Rows<'_, B> {
        assert!(
            capacity <= self.rows_max,
            "{capacity} rows in tables for {}",
            self.rows_max
        );
        Rows::new(capacity, &self.live)
    }
}

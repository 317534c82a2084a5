//! Moves every sequence of a step on, and lists its new context rows for the drafter.

use crate::{Backend, Batch, ContextRows, Cpu, Slots, Walk};

/// Per sequence: list its path rows in `context` (source = row of the batch, position =
/// `length + j`), then `length += path_rows`, `pending = path_rows - 1`, count the emitted tokens
/// in `generated`, `emitted += n`, `root = last emitted token`.
///
/// With `first` (the batch's rows are the last rows of prompts that are already committed): lists
/// nothing and leaves `length` and `pending`.
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

pub(crate) fn cpu(_op: Advance<'_, Cpu>) {
    todo!()
}

//! Processes the logits of every row with the row's own history and chooses its token.

use crate::{Backend, Batch, Cpu, Rows, Slots};

/// For each live row, with the options of its slot and output index `t = emitted[slot] + depth`:
///
/// 1. ids from `vocab_used` on do not exist; stop ids are banned while `t < tokens_min`
/// 2. `logit_bias` added (-inf bans)
/// 3. repetition penalty on every token of prompt, output and path: `z > 0 ? z / r : z * r`; then
///    `frequency * count + presence * [count > 0]` subtracted, counts over output and path
/// 4. greedy: the largest, ties to the lower id
/// 5. else `z / temperature`; top_k (ties to the lower id); softmax; top_p (smallest set in
///    descending order whose mass reaches it, at least one); min_p; draw: the smallest id whose
///    cumulative mass exceeds `u * total`, ids ascending, summed in tiles of 64 ids in f32,
///    `u = uniform(seed, t, choice)`
///
/// The path of a row is the tokens of its ancestors from depth 1 to itself; row 0 is already
/// emitted and counted.
pub struct Sample<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Segments, tokens and parents.
    pub batch: &'a Batch<B>,
    /// Options and counts.
    pub slots: &'a Slots<B>,
    /// `[rows, vocab_rows]`.
    pub logits: &'a B::Buf<f32>,
    /// `[rows]` the chosen token.
    pub choice: &'a mut B::Buf<u32>,
}

pub(crate) fn cpu(_op: Sample<'_, Cpu>) {
    todo!()
}

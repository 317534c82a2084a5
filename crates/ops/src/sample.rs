//! Processes the logits of every row with the row's own history and chooses its token.

mod history;
mod law;

use rayon::prelude::*;

use self::history::History;
use crate::limits::NONE;
use crate::philox::uniform;
use crate::topk::PARALLEL_LOGITS;
use crate::{Backend, Batch, Cpu, Rows, Slots, TokenMasks};

/// For each live row, with the options of its slot and output index `t = emitted[slot] + depth`:
///
/// 1. ids from `vocab_used` on do not exist; stop ids are banned while `t < tokens_min`
/// 2. tokens that the row's mask does not allow are banned; then `logit_bias` added (-inf bans)
/// 3. repetition penalty on every token of prompt, output and path: `z > 0 ? z / r : z * r`; then
///    `frequency * count + presence * [count > 0]` subtracted, counts over output and path
/// 4. greedy: the largest, ties to the lower id
/// 5. else `z * (1 / temperature)`; top_k (ties to the lower id); softmax; top_p (smallest set in
///    descending order whose mass reaches it, at least one); min_p; draw: the smallest id whose
///    cumulative mass exceeds `u * total`, ids ascending, summed in tiles of 64 ids in f32,
///    `u = uniform(seed, t, choice)`
///
/// The path of a row is the tokens of its ancestors from depth 1 to itself; row 0 is already
/// emitted and counted.
///
/// A NaN logit is never chosen while another id is allowed, and a ban holds against any bias. If
/// no id has a logit above -inf, the lowest id that is not banned (whose logit is NaN) is chosen,
/// or 0 if all are.
pub struct Sample<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Segments, tokens and parents.
    pub batch: &'a Batch<B>,
    /// Options and counts.
    pub slots: &'a Slots<B>,
    /// Which tokens rows may choose; `None`: any, in every row.
    pub masks: Option<&'a TokenMasks<B>>,
    /// `[rows, vocab_rows]`.
    pub logits: &'a B::Buf<f32>,
    /// `[rows]` the chosen token.
    pub choice: &'a mut B::Buf<u32>,
    /// `[rows]` 1 if every raw logit of an id below `vocab_used` is finite, else 0.
    pub finite: &'a mut B::Buf<u32>,
}

pub(crate) fn cpu(op: Sample<'_, Cpu>) {
    let rows = op.rows.live[0] as usize;
    assert!(
        rows <= op.rows.capacity,
        "{rows} live rows, {} launched",
        op.rows.capacity
    );
    let (batch, slots, masks) = (op.batch, op.slots, op.masks);
    if let Some(masks) = masks {
        masks.assert_fits(op.rows.capacity, slots.vocab_rows);
    }
    let logits = &op.logits[..rows * slots.vocab_rows];
    let process = |scratch: &mut Vec<f32>, row: usize, choice: &mut u32, finite: &mut u32| {
        if batch.row_sequence[row] == NONE {
            return;
        }
        let logits = &logits[row * slots.vocab_rows..][..slots.vocab_used];
        let mask = masks.and_then(|masks| masks.row(row));
        *choice = choose(&History::new(batch, slots, mask, row), logits, scratch);
        *finite = u32::from(logits.iter().all(|z| z.is_finite()));
    };
    let (choices, finite) = (&mut op.choice[..rows], &mut op.finite[..rows]);
    if logits.len() < PARALLEL_LOGITS {
        let mut scratch = Vec::new();
        for (row, (choice, finite)) in choices.iter_mut().zip(finite).enumerate() {
            process(&mut scratch, row, choice, finite);
        }
    } else {
        choices
            .par_iter_mut()
            .zip(finite)
            .enumerate()
            .for_each_init(Vec::new, |scratch, (row, (choice, finite))| {
                process(scratch, row, choice, finite);
            });
    }
}

fn choose(history: &History<'_>, logits: &[f32], scratch: &mut Vec<f32>) -> u32 {
    let options = history.options;
    if options.is_greedy() && history.is_neutral() {
        return law::most_likely(logits);
    }
    scratch.clear();
    scratch.extend_from_slice(logits);
    history.apply(scratch);
    if options.is_greedy() {
        return law::most_likely(scratch);
    }
    let seed = u64::from(options.seed_high) << 32 | u64::from(options.seed_low);
    let u = uniform(seed, history.index, options.choice);
    law::draw(scratch, options, u)
}

#[cfg(test)]
mod tests;

//! What the host reads back of a step, in one block.

use crate::limits::EMIT_MAX;
use crate::{Backend, Batch, Cpu, CutReason, PHI_BUDGETS, Prediction, Walk};

/// Words before the tokens.
const HEAD: usize = 6;
/// Words per sequence of [`StepResult::out`].
pub const RESULT_WORDS: usize = HEAD + EMIT_MAX + Prediction::LEN;

/// Packs per sequence `[emitted, reason, path_rows, rows, padded, finite, tokens[EMIT_MAX],
/// prediction[Prediction::LEN] as f32 bits]` ([`SequenceResult`] is the reader). `rows` are those
/// of the segment, `padded` counts the padding among them; `finite` is 1 if the logits behind every emitted token were finite,
/// that is, of path rows `0 .. emitted`: rows off the path must not matter. Tokens from `emitted`
/// on are 0.
pub struct StepResult<'a, B: Backend> {
    /// Segments.
    pub batch: &'a Batch<B>,
    /// Paths, tokens and reasons.
    pub walk: &'a Walk<B>,
    /// `[rows]` 1 = padding.
    pub padding: &'a B::Buf<u32>,
    /// `[sequences, Prediction::LEN]`.
    pub prediction: &'a B::Buf<f32>,
    /// `[rows]` 1 = every logit of the row is finite ([`crate::Sample`]).
    pub finite: &'a B::Buf<u32>,
    /// `[sequences, RESULT_WORDS]`.
    pub out: &'a mut B::Buf<u32>,
}

/// The words of one sequence, read.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceResult {
    /// Emitted tokens.
    pub tokens: Vec<u32>,
    /// Why the sequence ended, if it did.
    pub reason: Option<CutReason>,
    /// Rows of the path that stay, row 0 included.
    pub path_rows: usize,
    /// Rows of the segment.
    pub rows: usize,
    /// Padding rows of the segment.
    pub padded: usize,
    /// The logits behind every emitted token were finite.
    pub finite: bool,
    /// Predicted acceptance; zeros without a draft.
    pub prediction: Prediction,
}

impl SequenceResult {
    /// Reads one sequence's words.
    ///
    /// # Panics
    /// If there are fewer than [`RESULT_WORDS`].
    pub fn read(words: &[u32]) -> Self {
        let emitted = words[0] as usize;
        let (head, values) = words[..RESULT_WORDS].split_at(HEAD + EMIT_MAX);
        let value = |index: usize| f32::from_bits(values[index]);
        SequenceResult {
            tokens: head[HEAD..HEAD + emitted].to_vec(),
            reason: CutReason::from_code(words[1]),
            path_rows: words[2] as usize,
            rows: words[3] as usize,
            padded: words[4] as usize,
            finite: words[5] == 1,
            prediction: Prediction {
                tree: std::array::from_fn(value),
                chain: std::array::from_fn(|index| value(PHI_BUDGETS.len() + index)),
            },
        }
    }
}

pub(crate) fn cpu(op: StepResult<'_, Cpu>) {
    for sequence in 0..op.batch.live[1] as usize {
        let start = op.batch.sequence_start[sequence] as usize;
        let rows = op.batch.sequence_rows[sequence] as usize;
        let emitted = op.walk.emitted[sequence] as usize;
        let path = &op.walk.path[sequence * EMIT_MAX..][..emitted];
        let padded = op.padding[start..start + rows].iter().filter(|&&p| p != 0);
        let finite = path.iter().all(|&row| op.finite[start + row as usize] == 1);
        let out = &mut op.out[sequence * RESULT_WORDS..][..RESULT_WORDS];
        out[..HEAD].copy_from_slice(&[
            emitted as u32,
            op.walk.reason[sequence],
            op.walk.path_rows[sequence],
            rows as u32,
            padded.count() as u32,
            u32::from(finite),
        ]);
        let (tokens, prediction) = out[HEAD..].split_at_mut(EMIT_MAX);
        tokens.fill(0);
        tokens[..emitted].copy_from_slice(&op.walk.tokens[sequence * EMIT_MAX..][..emitted]);
        let values = &op.prediction[sequence * Prediction::LEN..][..Prediction::LEN];
        for (out, value) in prediction.iter_mut().zip(values) {
            *out = value.to_bits();
        }
    }
}

#[cfg(test)]
mod tests;

//! The result block: what the host reads back after a walk.

use ops::{
    Backend, DEPTH_MAX, EMIT_MAX, NONE, OpsError, Prediction, RESULT_WORDS, SequenceResult,
    TOP_LOGPROBS_MAX,
};

use super::{Emitted, TokenLogprob};

/// Device side of everything that a step leaves for the host, and what leads to it.
pub(super) struct ResultBuffers<B: Backend> {
    /// `[rows]` token chosen at each row.
    pub(super) choice: B::Buf<u32>,
    /// `[rows]` 1 = the row's logits are finite.
    pub(super) finite: B::Buf<u32>,
    /// `[rows]` 1 = padding.
    pub(super) padding: B::Buf<u32>,
    /// `[sequences, Prediction::LEN]`.
    pub(super) prediction: B::Buf<f32>,
    /// `[sequences, RESULT_WORDS]`.
    pub(super) packed: B::Buf<u32>,
    /// `[sequences, EMIT_MAX]`.
    pub(super) logprob: B::Buf<f32>,
    /// `[sequences, EMIT_MAX, TOP_LOGPROBS_MAX]`.
    pub(super) top_ids: B::Buf<u32>,
    pub(super) top_logprobs: B::Buf<f32>,
    /// `[2, DEPTH_MAX]` law of simulated acceptance.
    pub(super) law: B::Buf<f32>,
}

/// What a walk did to one sequence.
pub(super) struct ReadSequence {
    pub(super) result: SequenceResult,
    /// The result's tokens, with log-probabilities where they were asked for.
    pub(super) tokens: Vec<Emitted>,
}

impl ReadSequence {
    /// What to say if the logits `place` are not finite: a forward over broken weights shows there,
    /// and no token is better than a random one.
    pub(super) fn not_finite(&self, place: &str) -> Option<String> {
        (!self.result.finite).then(|| {
            format!(
                "the logits {place} are not finite: the weights hold values that are not finite or \
                 overflow; run `spinney check` on the model folder"
            )
        })
    }
}

impl<B: Backend> ResultBuffers<B> {
    pub(super) fn new(backend: &B, rows: usize, sequences: usize) -> Result<Self, OpsError> {
        let emitted = sequences * EMIT_MAX;
        Ok(ResultBuffers {
            choice: backend.alloc(rows)?,
            finite: backend.alloc(rows)?,
            padding: backend.alloc(rows)?,
            prediction: backend.alloc(sequences * Prediction::LEN)?,
            packed: backend.alloc(sequences * RESULT_WORDS)?,
            logprob: backend.alloc(emitted)?,
            top_ids: backend.alloc(emitted * TOP_LOGPROBS_MAX)?,
            top_logprobs: backend.alloc(emitted * TOP_LOGPROBS_MAX)?,
            law: backend.alloc(2 * DEPTH_MAX)?,
        })
    }

    /// Bytes of these buffers.
    pub(super) fn bytes(rows: usize, sequences: usize) -> usize {
        let sequence = Prediction::LEN + RESULT_WORDS + EMIT_MAX * (1 + 2 * TOP_LOGPROBS_MAX);
        4 * (3 * rows + sequences * sequence + 2 * DEPTH_MAX)
    }

    /// Waits for a walk and reads what it did. `tops[s]`: alternatives that sequence s wants beside
    /// its tokens; log-probabilities are read only if some sequence wants them.
    pub(super) fn read(
        &self,
        backend: &B,
        tops: &[Option<usize>],
    ) -> Result<Vec<ReadSequence>, OpsError> {
        let mut words = vec![0; tops.len() * RESULT_WORDS];
        backend.download(&self.packed, 0, &mut words)?;
        let mut sequences: Vec<_> = words
            .chunks(RESULT_WORDS)
            .map(|words| {
                let result = SequenceResult::read(words);
                let tokens = result.tokens.iter();
                ReadSequence {
                    tokens: tokens.map(|&id| Emitted { id, logprob: None }).collect(),
                    result,
                }
            })
            .collect();
        if tops.iter().any(Option::is_some) {
            self.read_logprobs(backend, tops, &mut sequences)?;
        }
        Ok(sequences)
    }

    fn read_logprobs(
        &self,
        backend: &B,
        tops: &[Option<usize>],
        sequences: &mut [ReadSequence],
    ) -> Result<(), OpsError> {
        let entries = tops.len() * EMIT_MAX;
        let mut logprobs = vec![0.0; entries];
        let mut ids = vec![NONE; entries * TOP_LOGPROBS_MAX];
        let mut values = vec![0.0; entries * TOP_LOGPROBS_MAX];
        backend.download(&self.logprob, 0, &mut logprobs)?;
        backend.download(&self.top_ids, 0, &mut ids)?;
        backend.download(&self.top_logprobs, 0, &mut values)?;
        for (index, (sequence, top)) in sequences.iter_mut().zip(tops).enumerate() {
            let Some(top) = *top else { continue };
            for (token, entry) in sequence.tokens.iter_mut().zip(index * EMIT_MAX..) {
                let first = entry * TOP_LOGPROBS_MAX;
                let best = ids[first..][..top].iter().zip(&values[first..]);
                token.logprob = Some(TokenLogprob {
                    logprob: logprobs[entry],
                    top: best
                        .map(|(&id, &logprob)| (id, logprob))
                        .filter(|(id, _)| *id != NONE)
                        .collect(),
                });
            }
        }
        Ok(())
    }
}

//! The result block: what the host reads back after a walk.

use ops::{Backend, CutReason, EMIT_MAX, NONE, OpsError, Prediction, TOP_LOGPROBS_MAX, Walk};

use super::{Emitted, TokenLogprob};

/// Device side of everything that is read back.
pub(super) struct ResultBuffers<B: Backend> {
    /// `[rows]` token chosen at each row.
    pub(super) choice: B::Buf<u32>,
    /// `[rows]` 1 = padding.
    pub(super) padding: B::Buf<u32>,
    /// `[sequences, Prediction::LEN]`.
    pub(super) prediction: B::Buf<f32>,
    /// `[sequences, EMIT_MAX]`.
    pub(super) logprob: B::Buf<f32>,
    /// `[sequences, EMIT_MAX, TOP_LOGPROBS_MAX]`.
    pub(super) top_ids: B::Buf<u32>,
    pub(super) top_logprobs: B::Buf<f32>,
}

impl<B: Backend> ResultBuffers<B> {
    pub(super) fn new(backend: &B, rows: usize, sequences: usize) -> Result<Self, OpsError> {
        let emitted = sequences * EMIT_MAX;
        Ok(ResultBuffers {
            choice: backend.alloc(rows)?,
            padding: backend.alloc(rows)?,
            prediction: backend.alloc(sequences * Prediction::LEN)?,
            logprob: backend.alloc(emitted)?,
            top_ids: backend.alloc(emitted * TOP_LOGPROBS_MAX)?,
            top_logprobs: backend.alloc(emitted * TOP_LOGPROBS_MAX)?,
        })
    }

    /// Bytes of these buffers.
    pub(super) fn bytes(rows: usize, sequences: usize) -> usize {
        let emitted = sequences * EMIT_MAX;
        4 * (2 * rows + sequences * Prediction::LEN + emitted * (1 + 2 * TOP_LOGPROBS_MAX))
    }

    /// Log-probabilities of the first `count` tokens of a sequence, with `top` alternatives.
    fn logprobs(
        &self,
        backend: &B,
        sequence: usize,
        count: usize,
        top: usize,
    ) -> Result<Vec<TokenLogprob>, OpsError> {
        let mut logprob = [0.0; EMIT_MAX];
        backend.download(&self.logprob, sequence * EMIT_MAX, &mut logprob[..count])?;
        let mut result = Vec::with_capacity(count);
        for (token, &logprob) in logprob[..count].iter().enumerate() {
            let offset = (sequence * EMIT_MAX + token) * TOP_LOGPROBS_MAX;
            let mut ids = [NONE; TOP_LOGPROBS_MAX];
            let mut values = [0.0; TOP_LOGPROBS_MAX];
            backend.download(&self.top_ids, offset, &mut ids[..top])?;
            backend.download(&self.top_logprobs, offset, &mut values[..top])?;
            let top = ids[..top]
                .iter()
                .copied()
                .zip(values)
                .filter(|(id, _)| *id != NONE);
            result.push(TokenLogprob {
                logprob,
                top: top.collect(),
            });
        }
        Ok(result)
    }

    /// The tokens that a walk emitted for a sequence, and why it ended, if it did. `top` is what
    /// the sequence's slot asks for.
    pub(super) fn emitted(
        &self,
        backend: &B,
        walk: &Walk<B>,
        sequence: usize,
        top: Option<usize>,
    ) -> Result<(Vec<Emitted>, Option<CutReason>), OpsError> {
        let (mut count, mut reason) = ([0], [0]);
        backend.download(&walk.emitted, sequence, &mut count)?;
        backend.download(&walk.reason, sequence, &mut reason)?;
        let count = count[0] as usize;
        let mut ids = [0; EMIT_MAX];
        backend.download(&walk.tokens, sequence * EMIT_MAX, &mut ids[..count])?;
        let mut tokens: Vec<Emitted> = ids[..count]
            .iter()
            .map(|&id| Emitted { id, logprob: None })
            .collect();
        if let Some(top) = top {
            for (token, logprob) in tokens
                .iter_mut()
                .zip(self.logprobs(backend, sequence, count, top)?)
            {
                token.logprob = Some(logprob);
            }
        }
        Ok((tokens, CutReason::from_code(reason[0])))
    }
}

/// Reads one value of a table.
pub(super) fn read_one<B: Backend>(
    backend: &B,
    buf: &B::Buf<u32>,
    index: usize,
) -> Result<u32, OpsError> {
    let mut value = [0];
    backend.download(buf, index, &mut value)?;
    Ok(value[0])
}

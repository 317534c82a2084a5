//! Giving a slot to a new sequence.

use ops::{
    Backend, Element, LOGIT_BIAS_MAX, NONE, OpsError, STOP_IDS_MAX, SamplingRow, Slots,
    TOP_LOGPROBS_MAX,
};

use super::{Runner, SequenceStart};
use crate::ModelError;

impl<B: Backend> Runner<B> {
    /// Gives a slot to a new sequence. The prompt is at least one token; prompt and output fit
    /// `pages`.
    ///
    /// # Panics
    /// If slot, pages, stop ids, biases or alternatives exceed what the tables hold: the engine
    /// checks requests before it starts them.
    pub fn start(&mut self, start: &SequenceStart<'_>) -> Result<(), ModelError> {
        let slot = start.slot;
        assert!(
            slot < self.slots.count,
            "slot {slot} of {}",
            self.slots.count
        );
        assert!(
            start.pages.len() <= self.slots.pages_max,
            "more pages than a sequence can own"
        );
        assert!(
            start.stop_ids.len() <= STOP_IDS_MAX,
            "more than {STOP_IDS_MAX} stop ids"
        );
        assert!(
            start.sampling.logit_bias.len() <= LOGIT_BIAS_MAX,
            "too many biases"
        );
        assert!(
            start.logprobs.unwrap_or(0) <= TOP_LOGPROBS_MAX,
            "too many alternatives"
        );
        self.clear(slot)?;
        let (backend, slots) = (&self.backend, &mut self.slots);
        let mut pages = vec![NONE; slots.pages_max];
        pages[..start.pages.len()].copy_from_slice(start.pages);
        backend.upload(&pages, &mut slots.block_table, slot * slots.pages_max)?;
        backend.upload(start.stop_ids, &mut slots.stop_ids, slot * STOP_IDS_MAX)?;
        let (ids, values): (Vec<u32>, Vec<f32>) = start.sampling.logit_bias.iter().copied().unzip();
        backend.upload(&ids, &mut slots.bias_ids, slot * LOGIT_BIAS_MAX)?;
        backend.upload(&values, &mut slots.bias_values, slot * LOGIT_BIAS_MAX)?;
        let words = Slots::<B>::seen_words(slots.vocab_rows);
        let mut seen = vec![0u32; words];
        for &token in start.prompt {
            seen[token as usize / 32] |= 1 << (token % 32);
        }
        backend.upload(&seen, &mut slots.prompt_seen, slot * words)?;
        let row = sampling_row(start, self.config.context_max);
        backend.upload(&[row], &mut slots.sampling, slot)?;
        self.logprobs_top[slot] = start.logprobs;
        self.prefilled[slot] = 0;
        Ok(())
    }

    /// Forgets whatever the slot held.
    fn clear(&mut self, slot: usize) -> Result<(), OpsError> {
        let (backend, slots) = (&*self.backend, &mut self.slots);
        for counter in [
            &mut slots.length,
            &mut slots.root,
            &mut slots.emitted,
            &mut slots.pending,
        ] {
            backend.zero(counter, slot, 1)?;
        }
        zero_row(backend, &mut slots.generated, slot, slots.vocab_rows)?;
        for state in &mut self.states {
            let shape = state.shape;
            zero_row(backend, &mut state.state, slot, shape.state_len())?;
            zero_row(backend, &mut state.conv, slot, 3 * shape.channels())?;
        }
        Ok(())
    }
}

fn zero_row<B: Backend, T: Element>(
    backend: &B,
    buf: &mut B::Buf<T>,
    row: usize,
    width: usize,
) -> Result<(), OpsError> {
    backend.zero(buf, row * width, width)
}

fn sampling_row(start: &SequenceStart<'_>, context_max: usize) -> SamplingRow {
    let sampling = start.sampling;
    SamplingRow {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        top_k: sampling.top_k,
        seed_low: sampling.seed as u32,
        seed_high: (sampling.seed >> 32) as u32,
        choice: sampling.choice,
        bias_count: sampling.logit_bias.len() as u32,
        stop_count: start.stop_ids.len() as u32,
        tokens_min: start.tokens_min as u32,
        tokens_max: start.tokens_max as u32,
        context_max: context_max as u32,
        logprobs: start.logprobs.map_or(0, |top| top as u32 + 1),
    }
}

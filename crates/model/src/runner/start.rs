//! Giving a slot to a new sequence.

use ops::{
    Backend, Element, LOGIT_BIAS_MAX, NONE, OpsError, STOP_IDS_MAX, SamplingRow, Slots,
    TOP_LOGPROBS_MAX,
};

use super::{Progress, Runner, SequenceStart};
use crate::ModelError;

impl<B: Backend> Runner<B> {
    /// Gives a slot to a new sequence. The prompt is at least one token.
    ///
    /// The caller guarantees that a page is there before a row is written to it, by this call or by
    /// [`Runner::extend_pages`]: a chunk or a replay writes the positions of its tokens, a step of
    /// n rows those of n tokens from the committed length on. What is resumed is in the first
    /// pages; several sequences may share pages, as long as no row of theirs is written there.
    ///
    /// # Panics
    /// If slot, pages, stop ids, biases or alternatives exceed what the tables hold, or the snapshot
    /// covers another length: the engine checks requests before it starts them.
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
        self.progress[slot] = Progress::default();
        self.restore(start)?;
        Ok(())
    }

    /// Brings back what a sequence had computed and emitted before.
    fn restore(&mut self, start: &SequenceStart<'_>) -> Result<(), OpsError> {
        let (slot, prompt, emitted) = (start.slot, start.prompt.len(), start.emitted);
        // The first token comes of the prompt's last, the first step processes the newest one.
        let most = prompt + emitted.len() - 1;
        let length = start.resume.map_or(0, |resume| resume.length);
        assert!(
            length <= most,
            "resumed at {length} of at most {most} tokens"
        );
        let (backend, slots) = (&*self.backend, &mut self.slots);
        if let Some(resume) = start.resume {
            let states = &mut self.states;
            self.snapshots
                .load(backend, resume.snapshot, length, states, slot)?;
            backend.upload(&[length as u32], &mut slots.length, slot)?;
        }
        if let Some(&root) = emitted.last() {
            let mut generated = vec![0u32; slots.vocab_rows];
            for &token in emitted {
                generated[token as usize] += 1;
            }
            let row = slot * slots.vocab_rows;
            backend.upload(&generated, &mut slots.generated, row)?;
            backend.upload(&[emitted.len() as u32], &mut slots.emitted, slot)?;
            backend.upload(&[root], &mut slots.root, slot)?;
        }
        self.progress[slot] = Progress {
            length,
            pending: 0,
            to_replay: most.saturating_sub(length.max(prompt)),
        };
        Ok(())
    }

    /// Gives a running sequence more pages: entries `from ..` of its block table, one per 64
    /// positions. Entries may be written again before a row is.
    ///
    /// # Panics
    /// If they are more than a sequence can own.
    pub fn extend_pages(
        &mut self,
        slot: usize,
        from: usize,
        pages: &[u32],
    ) -> Result<(), ModelError> {
        let slots = &mut self.slots;
        assert!(slot < slots.count, "slot {slot} of {}", slots.count);
        assert!(
            from + pages.len() <= slots.pages_max,
            "pages {from} to {} of at most {}",
            from + pages.len(),
            slots.pages_max
        );
        let entry = slot * slots.pages_max + from;
        self.backend.upload(pages, &mut slots.block_table, entry)?;
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

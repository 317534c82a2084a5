//! States that decoding passes, for prompts that go on from an answer. What follows such a state need
//! not have the bits of a prefill, so all this is off unless asked for.

use model::{ModelError, StepSequence};
use ops::{EMIT_MAX, PAGE_TOKENS};

use super::StepLoop;
use crate::step_runner::StepRunner;

impl<R: StepRunner> StepLoop<R> {
    /// Tells the runner which sequences may pass a multiple of 64 in the next step.
    pub(super) fn begin_passing(&mut self, indices: &[usize]) -> Result<(), ModelError> {
        if !self.decoded {
            return Ok(());
        }
        for &index in indices {
            let sequence = &self.scheduler.running[index];
            let passed = next_multiple(sequence.committed()) - sequence.committed();
            if passed > EMIT_MAX || sequence.tokens_left() < passed {
                continue;
            }
            let slot = sequence.slot.index();
            if sequence.decoded.begun.is_none() {
                let Some(cache) = &mut self.scheduler.cache else {
                    return Ok(());
                };
                let Some(reservation) = cache.reserve_snapshot() else {
                    continue;
                };
                self.copy_snapshots(&reservation.moves)?;
                self.scheduler.running[index].decoded.begun = Some(reservation);
            }
            if let Some(begun) = &self.scheduler.running[index].decoded.begun {
                self.runner.begin_decoded(slot, begun.device())?;
            }
        }
        Ok(())
    }

    /// Keeps the state at a multiple of 64 that the step passed.
    pub(super) fn keep_passed(
        &mut self,
        index: usize,
        result: &StepSequence,
    ) -> Result<(), ModelError> {
        let sequence = &mut self.scheduler.running[index];
        let position = next_multiple(sequence.committed());
        if result.not_finite.is_some() || position > sequence.committed() + result.tokens.len() {
            return Ok(());
        }
        if let Some(begun) = sequence.decoded.begun.take() {
            let slot = sequence.slot.index();
            self.runner.save_decoded(slot, position, begun.device())?;
            let before = sequence.decoded.kept.replace((position, begun));
            sequence.decoded.begun = before.map(|(_, reservation)| reservation);
        }
        Ok(())
    }

    /// Gives the cache the last state of a sequence that ends and whose first `kept` output tokens
    /// count, with the pages before it.
    pub(super) fn keep_decoded(&mut self, index: usize, kept: usize) {
        let scheduler = &mut self.scheduler;
        let sequence = &mut scheduler.running[index];
        let Some(cache) = &mut scheduler.cache else {
            return;
        };
        let Some((length, reservation)) = sequence.decoded.kept.take() else {
            return;
        };
        let mut tokens = sequence.request.prompt.clone();
        let output = &sequence.history.output;
        tokens.extend_from_slice(&output[..kept.min(output.len())]);
        // The newest token that counts is not processed, or need not be.
        if length >= tokens.len() {
            return cache.cancel(reservation);
        }
        let salt = sequence.request.cache_salt.as_deref();
        let pages = &sequence.pages.pages()[..length / PAGE_TOKENS];
        cache.insert(salt, &tokens[..length], pages, &mut scheduler.kv);
        cache.attach(salt, &tokens[..length], reservation);
    }
}

fn next_multiple(position: usize) -> usize {
    (position / PAGE_TOKENS + 1) * PAGE_TOKENS
}

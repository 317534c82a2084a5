//! Requests move into slots, and sometimes back.

use model::{ModelError, Resume, SequenceStart};

use super::StepLoop;
use crate::scheduler::Admission;
use crate::step_runner::StepRunner;

impl<R: StepRunner> StepLoop<R> {
    /// Starts everyone who finds room, and says so before the calls that follow.
    pub(super) fn admit(&mut self) -> Result<(), ModelError> {
        while let Some(admission) = self.scheduler.admit() {
            {
                // The queue's limit depends on the slots that are free: both change at once.
                let sequence = &self.scheduler.running[admission.index];
                let mut counters = self.shared.counters();
                counters.stats.running += 1;
                counters.stats.prompt_tokens += admission.spared as u64;
                self.shared.uncount_waiting(sequence.request.prompt.len());
            }
            if admission.first {
                let sequence = &self.scheduler.running[admission.index];
                let (id, started) = (sequence.id, sequence.history.started());
                self.update(id).started = Some(started);
            }
            self.start(admission)?;
        }
        if !self.updates.is_empty() {
            self.flush(None);
        }
        Ok(())
    }

    fn start(&mut self, admission: Admission) -> Result<(), ModelError> {
        let Admission { index, resumed, .. } = admission;
        let mut resume = None;
        if let Some(resumed) = &resumed {
            self.copy_snapshots(&resumed.moves)?;
            resume = Some(Resume {
                snapshot: resumed.lease.device(),
                length: resumed.length,
            });
        }
        let sequence = &mut self.scheduler.running[index];
        let request = &sequence.request;
        self.runner.start(&SequenceStart {
            slot: sequence.slot.index(),
            prompt: &request.prompt,
            pages: sequence.pages.pages(),
            sampling: &request.sampling,
            stop_ids: &request.stop_ids,
            tokens_min: request.min_tokens.min(sequence.tokens_max),
            tokens_max: sequence.tokens_max.max(1),
            logprobs: request.logprobs,
            resume,
            emitted: &sequence.history.output,
        })?;
        sequence.pages_told = sequence.pages.pages().len();
        if let (Some(resumed), Some(cache)) = (resumed, &mut self.scheduler.cache) {
            cache.unpin(resumed.lease);
        }
        Ok(())
    }

    /// Gives every sequence that decodes room for a row; who gave way waits again.
    pub(super) fn make_room(&mut self) {
        for (id, prompt) in self.scheduler.make_room() {
            tracing::debug!(id = id.0, "no page is free: the request waits again");
            let mut counters = self.shared.counters();
            counters.stats.running -= 1;
            counters.stats.preemptions += 1;
            self.shared.count_waiting(prompt);
        }
    }

    /// Tells the runner of pages that a sequence has got.
    pub(super) fn tell_pages(&mut self, index: usize) -> Result<(), ModelError> {
        let sequence = &mut self.scheduler.running[index];
        let (told, pages) = (sequence.pages_told, sequence.pages.pages());
        if told < pages.len() {
            let slot = sequence.slot.index();
            self.runner.extend_pages(slot, told, &pages[told..])?;
            sequence.pages_told = pages.len();
        }
        Ok(())
    }
}

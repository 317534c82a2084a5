//! How requests end.

use super::StepLoop;
use crate::handle::Command;
use crate::scheduler::Waiting;
use crate::step_runner::StepRunner;
use crate::{Finish, FinishReason, RequestId, RequestStats};

impl<R: StepRunner> StepLoop<R> {
    /// Ends a request wherever it is; one that has ended already is unknown here.
    pub(super) fn end(&mut self, id: RequestId, reason: FinishReason, kept: usize) {
        if let Some(index) = self.scheduler.find(id) {
            self.end_running(index, reason, kept);
        } else if let Some(waiting) = self.scheduler.waiting.remove(id) {
            self.end_waiting(&waiting, reason, kept);
        }
    }

    /// Ends requests that have waited for too long, unless one of them is beyond that.
    pub(super) fn expire(&mut self, ids: &[RequestId]) {
        if ids.iter().all(|&id| self.scheduler.waiting.is_new(id)) {
            for &id in ids {
                self.end(id, FinishReason::Expired, usize::MAX);
            }
        }
    }

    pub(super) fn end_running(&mut self, index: usize, reason: FinishReason, kept: usize) {
        let sequence = &self.scheduler.running[index];
        let (id, emitted) = (sequence.id, sequence.emitted());
        let finish = sequence.finish(reason, kept);
        self.keep_decoded(index, finish.completion_tokens);
        self.scheduler.release(index);
        self.end_started(id, emitted, finish);
    }

    /// A request that had a slot ends.
    fn end_started(&mut self, id: RequestId, emitted: usize, finish: Finish) {
        let dropped = (emitted - finish.completion_tokens) as u64;
        self.update(id).finish = Some(finish);
        let mut counters = self.shared.counters();
        counters.stats.generated_tokens -= dropped;
        counters.stats.ended += 1;
    }

    fn end_waiting(&mut self, waiting: &Waiting, reason: FinishReason, kept: usize) {
        let prompt = waiting.request.prompt.len();
        self.shared.uncount_waiting(prompt);
        if let Some(history) = &waiting.history {
            let finish = history.finish(prompt, reason, kept);
            return self.end_started(waiting.id, history.output.len(), finish);
        }
        self.update(waiting.id).finish = Some(Finish {
            reason,
            prompt_tokens: prompt,
            cached_tokens: 0,
            completion_tokens: 0,
            stats: RequestStats {
                acceptance_histogram: vec![0; ops::EMIT_MAX],
                queue_ms: waiting.submitted.elapsed().as_secs_f64() * 1e3,
                ..RequestStats::default()
            },
            records: Vec::new(),
        });
    }

    /// Ends everything that runs or waits here.
    pub(super) fn end_taken(&mut self, reason: &FinishReason) {
        while !self.scheduler.running.is_empty() {
            self.end_running(0, reason.clone(), usize::MAX);
        }
        while let Some(waiting) = self.scheduler.waiting.pop() {
            self.end_waiting(&waiting, reason.clone(), usize::MAX);
        }
    }

    /// The last act of the thread: also ends what is still in the channel.
    pub(super) fn end_all(&mut self, reason: &FinishReason) {
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit { .. } = command {
                self.obey(command);
            }
        }
        self.end_taken(reason);
        self.flush(None);
    }
}

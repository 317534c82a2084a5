//! News for the server.

use std::time::Instant;

use model::{CutReason, Emitted, StepTiming};

use super::StepLoop;
use crate::step_runner::StepRunner;
use crate::{FinishReason, Phase, RequestId, RequestUpdate, StepOutput, TokenUpdate};

impl<R: StepRunner> StepLoop<R> {
    /// The entry of a request in the next message.
    pub(super) fn update(&mut self, id: RequestId) -> &mut RequestUpdate {
        let found = self.updates.iter().position(|update| update.id == id);
        let index = found.unwrap_or_else(|| {
            self.updates.push(RequestUpdate {
                id,
                started: None,
                prompt_logprobs: Vec::new(),
                tokens: Vec::new(),
                trace: None,
                finish: None,
            });
            self.updates.len() - 1
        });
        &mut self.updates[index]
    }

    pub(super) fn push_tokens(&mut self, id: RequestId, tokens: impl IntoIterator<Item = Emitted>) {
        let update = self.update(id);
        update
            .tokens
            .extend(tokens.into_iter().map(|token| TokenUpdate {
                id: token.id,
                logprob: token.logprob,
            }));
    }

    /// Publishes the gauges, then sends the news. Without a receiver nobody can be served.
    pub(super) fn flush(&mut self, timing: Option<StepTiming>) {
        self.publish();
        if self.updates.is_empty() && timing.is_none() {
            return;
        }
        let output = StepOutput {
            updates: std::mem::take(&mut self.updates),
            timing,
            mask_ms: self.mask_ms.take(),
        };
        if self.outputs.send(output).is_err() {
            self.shared.enter(Phase::Draining);
            self.draining = true;
            self.end_taken(&FinishReason::Aborted);
            self.updates.clear();
            self.publish();
        }
    }

    pub(super) fn publish(&self) {
        let mut counters = self.shared.counters();
        let stats = &mut counters.stats;
        stats.running = self.scheduler.running.len();
        stats.preempted = self.scheduler.waiting.preempted();
        stats.pages_used = self.scheduler.pages_used();
        if let Some(cache) = &self.scheduler.cache {
            stats.prefix_cache = cache.stats();
        }
        stats.slots_used = self.scheduler.slots.used();
    }

    /// Books the tokens of a running sequence and notes its end.
    pub(super) fn emit(
        &mut self,
        index: usize,
        tokens: Vec<Emitted>,
        end: Option<FinishReason>,
        ended: &mut Vec<(usize, FinishReason)>,
    ) {
        // A constraint may refuse a step's first token; nothing else ends a request without one.
        if let (true, Some(FinishReason::Error(_) | FinishReason::Stop | FinishReason::Blocked)) =
            (tokens.is_empty(), &end)
        {
            ended.extend(end.map(|reason| (index, reason)));
            return;
        }
        let sequence = &mut self.scheduler.running[index];
        let (count, left) = (tokens.len(), sequence.tokens_left());
        assert!(
            (1..=left).contains(&count) && (count < left || end.is_some()),
            "{count} tokens with end {end:?} where {left} were left"
        );
        let ids = tokens.iter().map(|token| token.id);
        sequence.history.emit(ids, Instant::now());
        let id = sequence.id;
        self.shared.counters().emit(count, self.shared.now_ms());
        self.push_tokens(id, tokens);
        ended.extend(end.map(|reason| (index, reason)));
    }

    /// Ends what ended (indices ascend, so from the back) and sends the step's message.
    pub(super) fn finish_step(
        &mut self,
        ended: Vec<(usize, FinishReason)>,
        timing: Option<StepTiming>,
    ) {
        for (index, reason) in ended.into_iter().rev() {
            self.end_running(index, reason, usize::MAX);
        }
        self.flush(timing);
    }
}

pub(super) fn finish_reason(cut: CutReason) -> FinishReason {
    match cut {
        CutReason::Stop => FinishReason::Stop,
        CutReason::Tokens | CutReason::Context => FinishReason::Length,
    }
}

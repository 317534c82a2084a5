//! Prompts, and emitted tokens that are processed again.

use std::time::Instant;

use model::{Chunk, ModelError, PromptLogprobs, Replay};

use super::StepLoop;
use super::output::finish_reason;
use crate::FinishReason;
use crate::constraint::Borrowed;
use crate::scheduler::ChunkPlan;
use crate::sequence::Stage;
use crate::step_runner::StepRunner;

impl<R: StepRunner> StepLoop<R> {
    /// One prefill call.
    pub(super) fn prefill(&mut self, plans: &[ChunkPlan]) -> Result<(), ModelError> {
        let began = Instant::now();
        for plan in plans {
            self.scheduler.running[plan.index]
                .history
                .begin_chunk(began);
        }
        let indices: Vec<usize> = plans.iter().map(|plan| plan.index).collect();
        let mut constraints = Borrowed::take(&mut self.scheduler.running, &indices);
        let running = &self.scheduler.running;
        let chunks: Vec<Chunk<'_>> = plans
            .iter()
            .map(|plan| {
                let (sequence, range) = (&running[plan.index], plan.range.clone());
                let prompt = &sequence.request.prompt;
                let next = prompt.get(range.end).copied();
                let top = sequence.request.prompt_logprobs;
                Chunk {
                    slot: sequence.slot.index(),
                    start: range.start,
                    tokens: &prompt[range],
                    last: next.is_none() && sequence.wants_first(),
                    prompt_logprobs: top.map(|top| PromptLogprobs { top, next }),
                }
            })
            .collect();
        let outputs = self
            .runner
            .prefill_constrained(&chunks, &mut constraints.list())?;
        self.mask_ms = constraints.put_back(&mut self.scheduler.running, &indices);
        assert_eq!(outputs.len(), plans.len(), "one output per chunk");
        let mut ended = Vec::new();
        for (plan, mut output) in plans.iter().zip(outputs) {
            let now_ms = self.shared.now_ms();
            let sequence = &mut self.scheduler.running[plan.index];
            let new = sequence.history.count_prefill(plan.range.end);
            self.shared.counters().prefill(new, now_ms);
            sequence.end_chunk(plan.range.len());
            if output.not_finite.is_none() {
                self.keep_state(plan.index)?;
            }
            let sequence = &self.scheduler.running[plan.index];
            let id = sequence.id;
            let done = sequence.stage() != Stage::Prefill;
            let scored = done && sequence.tokens_max == 0;
            // What is broken is nobody's beginning.
            if output.not_finite.is_none() {
                self.keep_state(plan.index)?;
            }
            let known = plan.range.end - new - plan.range.start;
            if output.prompt_logprobs.len() > known {
                self.update(id).prompt_logprobs = output.prompt_logprobs.split_off(known);
            }
            if let Some(fault) = output.not_finite {
                ended.push((plan.index, FinishReason::Error(fault)));
            } else if scored {
                ended.push((plan.index, FinishReason::Length));
            } else if let Some(first) = output.first {
                let mut tokens = vec![first];
                let end = self.scheduler.running[plan.index]
                    .history
                    .constrain(&mut tokens);
                let end = end.or(output.ended.map(finish_reason));
                self.emit(plan.index, tokens, end, &mut ended);
            }
        }
        self.finish_step(ended, None);
        Ok(())
    }

    /// One replay call: so many emitted tokens of each of these sequences.
    pub(super) fn replay(&mut self, plans: &[(usize, usize)]) -> Result<(), ModelError> {
        let running = &self.scheduler.running;
        let replays: Vec<Replay<'_>> = (plans.iter())
            .map(|&(index, tokens)| Replay {
                slot: running[index].slot.index(),
                tokens: running[index].next_replay(tokens),
            })
            .collect();
        self.runner.replay(&replays)?;
        for &(index, tokens) in plans {
            self.scheduler.running[index].end_replay(tokens);
            self.shared.counters().stats.replayed_tokens += tokens as u64;
        }
        self.publish();
        Ok(())
    }
}

//! Steps of the sequences that decode.

use model::{ModelError, SequenceStep, Shape, StepSequence, StepTree};

use super::StepLoop;
use super::output::finish_reason;
use crate::auto::Choice;
use crate::constraint::Borrowed;
use crate::shape::Drafting;
use crate::step_plan::{Part, Seat, Wish, parts};
use crate::step_runner::StepRunner;
use crate::{FinishReason, StepTrace};

impl<R: StepRunner> StepLoop<R> {
    /// One step of every sequence that decodes.
    pub(super) fn decode(&mut self) -> Result<(), ModelError> {
        self.make_room();
        let indices = &self.scheduler.decoding()[..];
        if indices.is_empty() {
            self.publish();
            return Ok(());
        }
        self.give_pages(indices)?;
        self.begin_passing(indices)?;
        let parts = self.parts(indices);
        let rows = parts.iter().map(|part| part.given.rows()).sum();
        self.scheduler.count_step(rows);
        let steps: Vec<SequenceStep> = indices
            .iter()
            .zip(&parts)
            .map(|(&index, part)| SequenceStep {
                slot: self.scheduler.running[index].slot.index(),
                shape: part.given,
                rows_max: part.rows_max,
            })
            .collect();
        let mut constraints = Borrowed::take(&mut self.scheduler.running, indices);
        let output = self
            .runner
            .step_constrained(&steps, &mut constraints.list())?;
        self.mask_ms = constraints.put_back(&mut self.scheduler.running, indices);
        assert_eq!(
            output.sequences.len(),
            steps.len(),
            "one output per sequence"
        );
        if let (Some(auto), Drafting::Auto) = (&mut self.auto, self.drafting) {
            auto.took(rows, output.timing.total_ms);
        }
        let trees = self.step_trees(indices, &steps, &output.sequences)?;
        let mut ended = Vec::new();
        for (((&index, part), result), tree) in
            (indices.iter().zip(&parts).zip(output.sequences)).zip(trees)
        {
            self.keep_passed(index, &result)?;
            let took = (part, output.timing.total_ms);
            self.take_result(index, took, (result, tree), &mut ended);
        }
        self.finish_step(ended, Some(output.timing));
        Ok(())
    }

    /// Books what a step did to a sequence.
    fn take_result(
        &mut self,
        index: usize,
        (part, ms): (&Part, f64),
        (mut result, tree): (StepSequence, Option<StepTree>),
        ended: &mut Vec<(usize, FinishReason)>,
    ) {
        let sequence = &mut self.scheduler.running[index];
        assert_eq!(
            result.slot,
            sequence.slot.index(),
            "outputs in the order of the sequences"
        );
        if let Some(fault) = result.not_finite {
            ended.push((index, FinishReason::Error(fault)));
            return;
        }
        let (id, history) = (sequence.id, &mut sequence.history);
        let end = history.constrain(&mut result.tokens);
        let end = end.or(result.ended.map(finish_reason));
        let verified = part.verified(result.drafted);
        result.accepted = result.accepted.min(result.tokens.len());
        history.count_step(&result);
        // A cut step accepted less than it could: that says nothing about the drafter.
        if let (Some(auto), Some(prediction), None, None, Drafting::Auto) = (
            &mut self.auto,
            &result.prediction,
            &end,
            sequence.request.shape,
            self.drafting,
        ) {
            auto.observe(&mut history.phi, verified, result.accepted, prediction);
        }
        let mut counters = self.shared.counters();
        counters.count_step(part.shape, verified, &result);
        drop(counters);
        if let (Some(tree), false) = (tree, result.tokens.is_empty()) {
            self.update(id).trace = Some(StepTrace::new(verified, tree, &result.tokens, ms));
        }
        self.emit(index, result.tokens, end, ended);
    }

    /// What the step that just ran verified, where somebody asked.
    fn step_trees(
        &self,
        indices: &[usize],
        steps: &[SequenceStep],
        results: &[StepSequence],
    ) -> Result<Vec<Option<StepTree>>, ModelError> {
        let running = &self.scheduler.running;
        let asked = indices.iter().map(|&index| running[index].request.trace);
        let asked: Vec<bool> = asked.collect();
        self.runner.step_trees(steps, results, &asked)
    }

    /// Pages for as many rows as a sequence can get. Where none can be had it drafts less: nobody
    /// goes back to the queue for a draft.
    fn give_pages(&mut self, indices: &[usize]) -> Result<(), ModelError> {
        for &index in indices {
            self.scheduler.grow(index, self.limits.sequence_rows);
            self.tell_pages(index)?;
        }
        Ok(())
    }

    /// The parts of the next step. A sequence drafts if it may, and if more than the root's
    /// successor can still be emitted; never with more rows than its pages hold.
    fn parts(&mut self, indices: &[usize]) -> Vec<Part> {
        let running = &self.scheduler.running;
        let limit = self.draft_batch_max;
        let allowed = self.drafting != Drafting::Off && (limit == 0 || running.len() <= limit);
        let seat = |&index: &usize| {
            let sequence = &running[index];
            let drafts = allowed && sequence.request.speculative && sequence.tokens_left() > 1;
            Seat {
                wish: match (drafts, sequence.request.shape) {
                    (false, _) => Wish::Plain,
                    (true, Some(shape)) => Wish::Own(shape),
                    (true, None) => Wish::Common,
                },
                rows_left: sequence.rows_left(),
            }
        };
        let seats: Vec<Seat> = indices.iter().map(seat).collect();
        let common = indices.iter().zip(&seats);
        let common = common.filter(|(_, seat)| seat.wish == Wish::Common);
        let phis: Vec<_> = common
            .map(|(&index, _)| &running[index].history.phi)
            .collect();
        let choice = match (self.drafting, &mut self.auto) {
            (Drafting::Off, _) => Choice::uniform(Shape::Plain, phis.len()),
            (Drafting::Fixed(shape), _) => Choice::uniform(shape, phis.len()),
            (Drafting::Auto, Some(auto)) => auto.choose(&phis, indices.len() - phis.len()),
            (Drafting::Auto, None) => Choice::uniform(Shape::Tree(ops::PHI_BUDGETS[1]), phis.len()),
        };
        parts(&seats, choice, self.limits)
    }
}

//! Steps of the sequences that decode.

use model::{ModelError, SequenceStep, Shape, StepSequence, StepTree};

use super::StepLoop;
use super::output::finish_reason;
use crate::constraint::Borrowed;
use crate::shape::{self, Drafting, STEP_ROWS_MAX};
use crate::step_runner::StepRunner;
use crate::{FinishReason, StepTrace};

impl<R: StepRunner> StepLoop<R> {
    /// One step of every sequence that decodes.
    pub(super) fn decode(&mut self) -> Result<(), ModelError> {
        self.make_room();
        let indices = &self.scheduler.decoding()[..];
        if indices.is_empty() {
            return Ok(());
        }
        let shapes = self.shapes(indices);
        let shapes = self.give_pages(indices, shapes)?;
        let steps: Vec<SequenceStep> = indices
            .iter()
            .zip(&shapes)
            .map(|(&index, &shape)| SequenceStep {
                slot: self.scheduler.running[index].slot.index(),
                shape,
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
        let trees = self.step_trees(indices, &steps, &output.sequences)?;
        let results = output.sequences.into_iter().zip(trees);
        let mut ended = Vec::new();
        for ((&index, step), (mut result, tree)) in indices.iter().zip(&steps).zip(results) {
            assert_eq!(
                result.slot, step.slot,
                "outputs in the order of the sequences"
            );
            if let Some(fault) = result.not_finite {
                ended.push((index, FinishReason::Error(fault)));
                continue;
            }
            let sequence = &mut self.scheduler.running[index];
            let end = sequence.history.constrain(&mut result.tokens);
            let end = end.or(result.ended.map(finish_reason));
            result.accepted = result.accepted.min(result.tokens.len());
            sequence.history.count_step(&result);
            // A cut step accepted less than it could: that says nothing about the drafter.
            if let (Some(auto), Some(prediction), None, None) = (
                &mut self.auto,
                &result.prediction,
                &end,
                sequence.request.shape,
            ) {
                auto.observe(
                    &mut sequence.history.phi,
                    step.shape,
                    result.accepted,
                    prediction,
                );
            }
            self.shared.counters().count_step(step.shape, &result);
            if let (Some(tree), false) = (tree, result.tokens.is_empty()) {
                let (shape, ms) = (step.shape, output.timing.total_ms);
                let id = sequence.id;
                self.update(id).trace = Some(StepTrace::new(shape, tree, &result.tokens, ms));
            }
            self.emit(index, result.tokens, end, &mut ended);
        }
        self.finish_step(ended, Some(output.timing));
        Ok(())
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

    /// The shapes wanted for the next step. A sequence drafts if it may, and if more than the root's
    /// successor can still be emitted.
    fn shapes(&mut self, indices: &[usize]) -> Vec<Shape> {
        let running = &self.scheduler.running;
        let limit = self.draft_batch_max;
        let allowed = self.drafting != Drafting::Off && (limit == 0 || running.len() <= limit);
        let drafts = |index: usize| {
            let sequence = &running[index];
            allowed && sequence.request.speculative && sequence.tokens_left() > 1
        };
        let wanted = match (self.drafting, &mut self.auto) {
            (Drafting::Off, _) => Shape::Plain,
            (Drafting::Fixed(shape), _) => shape,
            (Drafting::Auto, Some(auto)) => {
                let chosen = |index: usize| drafts(index) && running[index].request.shape.is_none();
                let drafting = indices.iter().filter(|&&index| chosen(index));
                let phis: Vec<_> = drafting.map(|&index| &running[index].history.phi).collect();
                auto.choose(&phis, indices.len() - phis.len())
            }
            (Drafting::Auto, None) => Shape::Tree(ops::PHI_BUDGETS[1]),
        };
        let mut shapes: Vec<Shape> = indices
            .iter()
            .map(|&index| match drafts(index) {
                true => running[index].request.shape.unwrap_or(wanted),
                false => Shape::Plain,
            })
            .collect();
        shape::fit(&mut shapes, STEP_ROWS_MAX);
        shapes
    }

    /// Pages for the rows of these shapes. Where none can be had a shape is lowered to what the
    /// sequence's pages hold: nobody goes back to the queue for a draft.
    fn give_pages(
        &mut self,
        indices: &[usize],
        mut shapes: Vec<Shape>,
    ) -> Result<Vec<Shape>, ModelError> {
        for (&index, shape) in indices.iter().zip(&mut shapes) {
            self.scheduler.grow(index, shape.rows());
            *shape = shape::lower(*shape, self.scheduler.running[index].rows_left());
            self.tell_pages(index)?;
        }
        let rows = shapes.iter().map(|shape| shape.rows()).sum();
        self.scheduler.count_step(rows);
        Ok(shapes)
    }
}

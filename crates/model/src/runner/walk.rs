//! Sampling, the walk, and moving on: the same for the end of a prompt and for a step.

use ops::{
    AcceptWalk, Advance, Backend, OpsError, Sample, SimulateAcceptance, StepResult, TokenLogprobs,
};

use super::{Runner, Stage};

impl<B: Backend> Runner<B> {
    /// Samples every row, with the masks or without, follows the choices, and packs what the host
    /// will read.
    pub(super) fn sample_and_walk(
        &mut self,
        capacity: usize,
        stage: Stage,
        masked: bool,
    ) -> Result<(), OpsError> {
        let forward = match stage {
            Stage::First => &mut self.first,
            Stage::Step => &mut self.verify,
        };
        let (backend, results) = (&*self.backend, &mut self.results);
        backend.sample(Sample {
            rows: forward.batch.rows(capacity),
            batch: &forward.batch,
            slots: &self.slots,
            masks: masked.then_some(&self.masks.tables),
            logits: &self.workspace.logits,
            choice: &mut results.choice,
            finite: &mut results.finite,
        })?;
        if let (Stage::Step, Some(seed)) = (stage, self.simulation) {
            backend.simulate_acceptance(SimulateAcceptance {
                batch: &forward.batch,
                tree: &forward.tree,
                slots: &self.slots,
                law: &results.law,
                seed,
                choice: &mut results.choice,
            })?;
        }
        backend.accept_walk(AcceptWalk {
            batch: &forward.batch,
            tree: &forward.tree,
            slots: &self.slots,
            first: stage == Stage::First,
            choice: &results.choice,
            walk: &mut forward.walk,
        })?;
        backend.token_logprobs(TokenLogprobs {
            batch: &forward.batch,
            slots: &self.slots,
            walk: &forward.walk,
            logits: &self.workspace.logits,
            logprob: &mut results.logprob,
            top_ids: &mut results.top_ids,
            top_logprobs: &mut results.top_logprobs,
        })?;
        backend.step_result(StepResult {
            batch: &forward.batch,
            walk: &forward.walk,
            padding: &results.padding,
            prediction: &results.prediction,
            finite: &results.finite,
            out: &mut results.packed,
        })
    }

    /// Moves the sequences of the last walk on.
    pub(super) fn advance(&mut self, stage: Stage) -> Result<(), OpsError> {
        let forward = match stage {
            Stage::First => &mut self.first,
            Stage::Step => &mut self.verify,
        };
        self.backend.advance(Advance {
            batch: &forward.batch,
            walk: &forward.walk,
            first: stage == Stage::First,
            slots: &mut self.slots,
            context: &mut forward.context,
        })
    }
}

//! Steps in which some sequences may not emit every token.

use std::time::Instant;

use ops::{Backend, OpsError};

use super::graphs::{GraphKey, GraphPart};
use super::step::{PartClock, milliseconds};
use super::{Constraint, Runner, SequenceStep, StepKey, StepOutput, StepTiming};
use crate::ModelError;

impl<B: Backend> Runner<B> {
    /// [`Runner::step`] where `constraints[s]` says which tokens sequence s may emit; `None`: any.
    /// Every node of a constrained tree is sampled under the mask of its own path, so that the
    /// tokens are those of plain decoding under the same constraint, and the other sequences' are
    /// those of a step without constraints.
    ///
    /// Each constraint stands behind all tokens that its sequence has emitted, and still does when
    /// the step returns: the caller then moves it on by [`super::StepSequence::tokens`]. The step
    /// runs as two halves, between which the host makes the masks: where a constrained sequence
    /// drafts, it waits for the first half to read the tree.
    ///
    /// # Panics
    /// If there is not one entry per sequence, or as [`Runner::step`] does.
    pub fn step_constrained(
        &mut self,
        sequences: &[SequenceStep],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<StepOutput, ModelError> {
        assert_eq!(sequences.len(), constraints.len(), "one entry per sequence");
        if constraints.iter().all(Option::is_none) {
            return self.step(sequences);
        }
        let began = Instant::now();
        let step = self.stage_step(sequences)?;
        let mut clock = PartClock::start();
        let half = |part| GraphKey { part, step };
        let drafted = self.run_graph(half(GraphPart::Draft), &mut clock)?;
        let segments = self.segments(step, sequences)?;
        self.mask_step(&segments, constraints)?;
        clock.skip();
        let verified = self.run_graph(half(GraphPart::MaskedVerify), &mut clock)?;
        let sequences = self.read_step(sequences)?;
        let timing = StepTiming {
            total_ms: milliseconds(began),
            parts: (!drafted && !verified).then_some(clock.parts),
        };
        Ok(StepOutput { sequences, timing })
    }

    /// Rows of every sequence; where they are shared, waits for the first half, which deals them.
    fn segments(&self, key: StepKey, sequences: &[SequenceStep]) -> Result<Vec<usize>, OpsError> {
        if !key.shared {
            return Ok(sequences.iter().map(|step| step.shape.rows()).collect());
        }
        let mut rows = vec![0; sequences.len()];
        let table = &self.verify.batch.sequence_rows;
        self.backend.download(table, 0, &mut rows)?;
        Ok(rows.into_iter().map(|rows| rows as usize).collect())
    }

    /// Makes the masks of the rows that were staged and built.
    fn mask_step(
        &mut self,
        segments: &[usize],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<(), OpsError> {
        let tree = (&self.verify.batch, &self.verify.tree);
        self.masks.fill(&*self.backend, tree, segments, constraints)
    }
}

//! What the step loop needs of a model, so that it can be tested without one.

use model::{
    Chunk, Constraint, ModelError, PrefillOutput, Replay, Runner, RunnerConfig, SequenceStart,
    SequenceStep, StepKey, StepOutput, StepSequence, StepTree,
};
use ops::Backend;

/// The calls of [`Runner`] that the loop makes; see there for their contracts.
pub(crate) trait StepRunner {
    /// [`Runner::config`].
    fn config(&self) -> &RunnerConfig;
    /// [`Runner::start`].
    fn start(&mut self, start: &SequenceStart<'_>) -> Result<(), ModelError>;
    /// [`Runner::prefill`].
    fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Vec<PrefillOutput>, ModelError>;
    /// [`Runner::step`].
    fn step(&mut self, sequences: &[SequenceStep]) -> Result<StepOutput, ModelError>;
    /// [`Runner::prefill_constrained`].
    fn prefill_constrained(
        &mut self,
        chunks: &[Chunk<'_>],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<Vec<PrefillOutput>, ModelError>;
    /// [`Runner::step_constrained`].
    fn step_constrained(
        &mut self,
        sequences: &[SequenceStep],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<StepOutput, ModelError>;
    /// [`Runner::step_trees`].
    fn step_trees(
        &self,
        sequences: &[SequenceStep],
        results: &[StepSequence],
        asked: &[bool],
    ) -> Result<Vec<Option<StepTree>>, ModelError>;
    /// [`Runner::record`].
    fn record(&mut self, key: StepKey) -> Result<bool, ModelError>;
    /// [`Runner::extend_pages`].
    fn extend_pages(&mut self, slot: usize, from: usize, pages: &[u32]) -> Result<(), ModelError>;
    /// [`Runner::replay`].
    fn replay(&mut self, replays: &[Replay<'_>]) -> Result<(), ModelError>;
    /// [`Runner::save_snapshot`].
    fn save_snapshot(&mut self, slot: usize, snapshot: usize) -> Result<(), ModelError>;
    /// [`Runner::offload_snapshot`].
    fn offload_snapshot(&mut self, snapshot: usize, host: usize) -> Result<(), ModelError>;
    /// [`Runner::fetch_snapshot`].
    fn fetch_snapshot(&mut self, host: usize, snapshot: usize) -> Result<(), ModelError>;
    /// [`Runner::begin_decoded`].
    fn begin_decoded(&mut self, slot: usize, snapshot: usize) -> Result<(), ModelError>;
    /// [`Runner::save_decoded`].
    fn save_decoded(
        &mut self,
        slot: usize,
        length: usize,
        snapshot: usize,
    ) -> Result<(), ModelError>;
}

impl<B: Backend> StepRunner for Runner<B> {
    fn config(&self) -> &RunnerConfig {
        Runner::config(self)
    }

    fn start(&mut self, start: &SequenceStart<'_>) -> Result<(), ModelError> {
        Runner::start(self, start)
    }

    fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Vec<PrefillOutput>, ModelError> {
        Runner::prefill(self, chunks)
    }

    fn step(&mut self, sequences: &[SequenceStep]) -> Result<StepOutput, ModelError> {
        Runner::step(self, sequences)
    }

    fn prefill_constrained(
        &mut self,
        chunks: &[Chunk<'_>],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<Vec<PrefillOutput>, ModelError> {
        Runner::prefill_constrained(self, chunks, constraints)
    }

    fn step_constrained(
        &mut self,
        sequences: &[SequenceStep],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<StepOutput, ModelError> {
        Runner::step_constrained(self, sequences, constraints)
    }

    fn step_trees(
        &self,
        sequences: &[SequenceStep],
        results: &[StepSequence],
        asked: &[bool],
    ) -> Result<Vec<Option<StepTree>>, ModelError> {
        Runner::step_trees(self, sequences, results, asked)
    }

    fn record(&mut self, key: StepKey) -> Result<bool, ModelError> {
        Runner::record(self, key)
    }

    fn extend_pages(&mut self, slot: usize, from: usize, pages: &[u32]) -> Result<(), ModelError> {
        Runner::extend_pages(self, slot, from, pages)
    }

    fn replay(&mut self, replays: &[Replay<'_>]) -> Result<(), ModelError> {
        Runner::replay(self, replays)
    }

    fn save_snapshot(&mut self, slot: usize, snapshot: usize) -> Result<(), ModelError> {
        Runner::save_snapshot(self, slot, snapshot)
    }

    fn offload_snapshot(&mut self, snapshot: usize, host: usize) -> Result<(), ModelError> {
        Runner::offload_snapshot(self, snapshot, host)
    }

    fn fetch_snapshot(&mut self, host: usize, snapshot: usize) -> Result<(), ModelError> {
        Runner::fetch_snapshot(self, host, snapshot)
    }

    fn begin_decoded(&mut self, slot: usize, snapshot: usize) -> Result<(), ModelError> {
        Runner::begin_decoded(self, slot, snapshot)
    }

    fn save_decoded(
        &mut self,
        slot: usize,
        length: usize,
        snapshot: usize,
    ) -> Result<(), ModelError> {
        Runner::save_decoded(self, slot, length, snapshot)
    }
}

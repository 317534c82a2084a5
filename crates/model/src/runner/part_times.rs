//! How long the parts of a step take on the device, for benchmarks.

use std::rc::Rc;
use std::time::Instant;

use ops::{Backend, OpsError};

use super::step::PartClock;
use super::{Runner, SequenceStep, Stage, StepKey, StepParts};
use crate::ModelError;

/// A part of a step, or the whole.
#[derive(Clone, Copy, Debug)]
enum Part {
    Draft,
    Build,
    Verify,
    Sample,
    Commit,
    Whole,
}

/// Milliseconds per repetition, back to back, without anything read by the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceTimes {
    /// All parts as one.
    pub step_ms: f64,
    /// Each part by itself.
    pub parts: StepParts,
}

impl<B: Backend> Runner<B> {
    /// Repeats a step of the given sequences, then each of its parts by itself, `repeats` times.
    ///
    /// What the sequences hold afterwards means nothing: parts are repeated without the others.
    /// They must have room for as many tokens as twice the repetitions can emit.
    pub fn device_times(
        &mut self,
        sequences: &[SequenceStep],
        repeats: usize,
    ) -> Result<DeviceTimes, ModelError> {
        let key = self.stage_step(sequences)?;
        let mut time = |part| self.part_ms(key, part, repeats);
        Ok(DeviceTimes {
            step_ms: time(Part::Whole)?,
            parts: StepParts {
                draft_ms: match key.blocks {
                    0 => 0.0,
                    _ => time(Part::Draft)?,
                },
                build_ms: time(Part::Build)?,
                verify_ms: time(Part::Verify)?,
                sample_ms: time(Part::Sample)?,
                commit_ms: time(Part::Commit)?,
            },
        })
    }

    fn part_ms(&mut self, key: StepKey, part: Part, repeats: usize) -> Result<f64, ModelError> {
        // The first run prepares what cannot be recorded.
        self.enqueue_part(key, part)?;
        self.backend.wait()?;
        let backend = Rc::clone(&self.backend);
        let graph = match self.config.graphs {
            true => backend.record(&mut || self.enqueue_part(key, part))?,
            false => None,
        };
        let mut again = || match &graph {
            Some(graph) => backend.launch(graph),
            None => self.enqueue_part(key, part),
        };
        again()?;
        backend.wait()?;
        let began = Instant::now();
        for _ in 0..repeats {
            again()?;
        }
        backend.wait()?;
        Ok(began.elapsed().as_secs_f64() * 1e3 / repeats as f64)
    }

    fn enqueue_part(&mut self, key: StepKey, part: Part) -> Result<(), OpsError> {
        match part {
            Part::Draft => self.draft(key),
            Part::Build => self.build(key),
            Part::Verify => self.verify(key),
            Part::Sample => self.sample_and_walk(key.rows, Stage::Step, false),
            Part::Commit => self.commit(key),
            Part::Whole => self.enqueue(key, &mut PartClock::start()),
        }
    }
}

//! Steps recorded once and launched again, and acceptance by a law for benchmarks.

use std::rc::Rc;

use ops::{Backend, DEPTH_MAX, OpsError};

use super::step::PartClock;
use super::{Runner, StepKey};
use crate::ModelError;

/// Acceptance that is drawn instead of computed; see [`ops::SimulateAcceptance`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AcceptanceLaw {
    /// Rate at which the first child of a node of depth 0, 1, ... is accepted.
    pub first: [f32; DEPTH_MAX],
    /// Rate at which each later child is, when those before it were not.
    pub later: [f32; DEPTH_MAX],
    /// Key of the random numbers.
    pub seed: u64,
}

impl<B: Backend> Runner<B> {
    /// Records the ops of a step, so that steps which the key covers are launched as a whole.
    /// `false`: the device has no graphs, or [`super::RunnerConfig::graphs`] is off. Nothing runs
    /// and no state changes. The same key should have been run before: a device may prepare at the
    /// first use of an op what cannot be recorded.
    pub fn record(&mut self, key: StepKey) -> Result<bool, ModelError> {
        if !self.config.graphs {
            return Ok(false);
        }
        if self.graphs.iter().any(|(recorded, _)| *recorded == key) {
            return Ok(true);
        }
        let backend = Rc::clone(&self.backend);
        let graph = backend.record(&mut || self.enqueue(key, &mut PartClock::start()))?;
        let recorded = graph.is_some();
        self.graphs.extend(graph.map(|graph| (key, graph)));
        Ok(recorded)
    }

    /// Launches the smallest recorded step that covers `key`; `false` if there is none.
    pub(super) fn launch(&self, key: StepKey) -> Result<bool, OpsError> {
        let covering = self.graphs.iter().filter(|(own, _)| own.covers(key));
        match covering.min_by_key(|(own, _)| *own) {
            Some((_, graph)) => self.backend.launch(graph).map(|()| true),
            None => Ok(false),
        }
    }

    /// From now on drafts are accepted by `law`; `None` = by the model again. Recorded steps are
    /// dropped: they hold the former choice. For benchmarks only.
    pub fn simulate(&mut self, law: Option<AcceptanceLaw>) -> Result<(), ModelError> {
        self.graphs.clear();
        self.simulation = law.map(|law| law.seed);
        if let Some(law) = law {
            let rates = [law.first, law.later].concat();
            self.backend.upload(&rates, &mut self.results.law, 0)?;
        }
        Ok(())
    }
}

//! What is remembered of drafts: how good they were said to be, and how good they were.

use model::Prediction;

/// Steps after which an observation of Phi counts half, for one sequence alone. Where several draft,
/// chance evens out between them, and what changes (the end of a turn, for one) is seen sooner.
const PHI_HALF_LIFE: f64 = 8.0;
/// For any number of sequences.
const PHI_HALF_LIFE_LEAST: f64 = 2.0;
/// Observations after which a count in kappa counts half.
const KAPPA_HALF_LIFE: f64 = 200.0;
/// Nodes that kappa starts with on both sides, so that it begins at 1 and moves slowly.
const KAPPA_PRIOR: f64 = 8.0;
const KAPPA_RANGE: (f64, f64) = (0.3, 2.0);

/// Running mean of a prediction. Weights follow the clock of steps, not of observations: after a
/// long plain stretch one probe replaces what was known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PhiAverage {
    pub(super) mean: Prediction,
    pub(super) seen: Option<u64>,
}

impl PhiAverage {
    /// Of a step in which so many sequences drafted.
    pub(super) fn observe(&mut self, prediction: &Prediction, step: u64, sequences: usize) {
        let half_life = (PHI_HALF_LIFE / sequences.max(1) as f64).max(PHI_HALF_LIFE_LEAST);
        let keep = match self.seen {
            None => 0.0,
            Some(seen) => 0.5f64.powf(step.saturating_sub(seen).max(1) as f64 / half_life),
        } as f32;
        let blend = |mean: &mut f32, new: f32| *mean = keep * *mean + (1.0 - keep) * new;
        let tree = self.mean.tree.iter_mut().zip(prediction.tree);
        let chain = self.mean.chain.iter_mut().zip(prediction.chain);
        tree.chain(chain).for_each(|(mean, new)| blend(mean, new));
        self.seen = Some(step);
    }
}

/// Running ratio of accepted to predicted nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kappa {
    pub(super) accepted: f64,
    pub(super) predicted: f64,
}

impl Default for Kappa {
    fn default() -> Self {
        Kappa {
            accepted: KAPPA_PRIOR,
            predicted: KAPPA_PRIOR,
        }
    }
}

impl Kappa {
    pub(super) fn observe(&mut self, accepted: usize, predicted: f64) {
        let keep = 0.5f64.powf(1.0 / KAPPA_HALF_LIFE);
        self.accepted = keep * self.accepted + accepted as f64;
        self.predicted = keep * self.predicted + predicted;
    }

    pub(super) fn value(&self) -> f64 {
        let (low, high) = KAPPA_RANGE;
        (self.accepted / self.predicted.max(f64::MIN_POSITIVE)).clamp(low, high)
    }
}

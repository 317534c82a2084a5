//! Chooses the shape of a step: the most expected tokens per millisecond.
//!
//! `rate(shape) = (plain + sum over drafting sequences of (1 + kappa * Phi)) / T(shape, n)`.
//! Phi is a sequence's running mean of what the drafter predicts for that shape (every draft
//! reports it for all shapes), kappa the running ratio of accepted to predicted nodes of chains or
//! trees, T the start-up timing. All shapes are evaluated: T is a staircase, so the first local
//! maximum need not be the best.

use model::{Prediction, Shape};

use crate::shape::{STEP_ROWS_MAX, predicted};
use crate::timing_table::TimingTable;

/// What `auto` chooses from.
pub(crate) const CANDIDATES: [Shape; 8] = [
    Shape::Plain,
    Shape::Chain(3),
    Shape::Chain(7),
    Shape::Chain(15),
    Shape::Tree(7),
    Shape::Tree(15),
    Shape::Tree(31),
    Shape::Tree(63),
];
/// Steps before the first evaluation.
const START_STEPS: u64 = 4;
/// Steps between evaluations while the batch stays the same.
const EVALUATE_STEPS: u64 = 8;
/// A change must promise this much more.
const HYSTERESIS: f64 = 1.03;
/// Plain must have been best for this long.
const FALL_BACK_STEPS: u64 = 16;
/// A mode that was not used for this long is tried for one step.
const PROBE_STEPS: u64 = 64;
/// Steps after which an observation of Phi counts half.
const PHI_HALF_LIFE: f64 = 8.0;
/// Observations after which a count in kappa counts half.
const KAPPA_HALF_LIFE: f64 = 200.0;
/// Nodes that kappa starts with on both sides, so that it begins at 1 and moves slowly.
const KAPPA_PRIOR: f64 = 8.0;
const KAPPA_RANGE: (f64, f64) = (0.3, 2.0);

/// Running mean of a prediction. Weights follow the clock of steps, not of observations: after a
/// long plain stretch one probe replaces what was known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PhiAverage {
    mean: Prediction,
    seen: Option<u64>,
}

impl PhiAverage {
    fn observe(&mut self, prediction: &Prediction, step: u64) {
        let keep = match self.seen {
            None => 0.0,
            Some(seen) => 0.5f64.powf(step.saturating_sub(seen).max(1) as f64 / PHI_HALF_LIFE),
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
struct Kappa {
    accepted: f64,
    predicted: f64,
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
    fn observe(&mut self, accepted: usize, predicted: f64) {
        let keep = 0.5f64.powf(1.0 / KAPPA_HALF_LIFE);
        self.accepted = keep * self.accepted + accepted as f64;
        self.predicted = keep * self.predicted + predicted;
    }

    fn value(&self) -> f64 {
        let (low, high) = KAPPA_RANGE;
        (self.accepted / self.predicted.max(f64::MIN_POSITIVE)).clamp(low, high)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Plain,
    Chain,
    Tree,
}

fn mode(shape: Shape) -> Mode {
    match shape {
        Shape::Plain => Mode::Plain,
        Shape::Chain(_) => Mode::Chain,
        Shape::Tree(_) => Mode::Tree,
    }
}

/// The chooser of one engine.
#[derive(Debug)]
pub(crate) struct Auto {
    table: TimingTable,
    current: usize,
    chain: Kappa,
    tree: Kappa,
    /// Over all sequences: what a new one is expected to do.
    overall: PhiAverage,
    step: u64,
    evaluated: u64,
    batch: (usize, usize),
    /// Since when plain has been the best at every evaluation.
    plain_best_since: Option<u64>,
    chain_used: u64,
    tree_used: u64,
    /// The last step was a probe from plain: its news is worth an evaluation at once.
    probed: bool,
}

impl Auto {
    /// Starts with the longest chain that was timed.
    ///
    /// # Panics
    /// If the table has no plain shape at its head.
    pub(crate) fn new(table: TimingTable) -> Self {
        assert!(
            table
                .shapes
                .first()
                .is_some_and(|timing| timing.shape == Shape::Plain),
            "a timing table begins with the plain shape"
        );
        // The first steps run a chain: its draft predicts every shape, and it is never far off.
        let longest_chain = (0..table.shapes.len()).max_by_key(|&i| match table.shapes[i].shape {
            Shape::Chain(drafts) => drafts,
            Shape::Plain | Shape::Tree(_) => 0,
        });
        Auto {
            current: longest_chain.unwrap_or(0),
            table,
            chain: Kappa::default(),
            tree: Kappa::default(),
            overall: PhiAverage::default(),
            step: 0,
            evaluated: 0,
            batch: (0, 0),
            plain_best_since: None,
            chain_used: 0,
            tree_used: 0,
            probed: false,
        }
    }

    /// The shape for the next step of these drafting sequences, beside `plain` one-row ones.
    pub(crate) fn choose(&mut self, drafting: &[&PhiAverage], plain: usize) -> Shape {
        self.step += 1;
        if drafting.is_empty() {
            return Shape::Plain;
        }
        let batch = (drafting.len(), plain);
        let due = self.step >= self.evaluated + EVALUATE_STEPS || batch != self.batch;
        if self.step > START_STEPS && self.overall.seen.is_some() && (due || self.probed) {
            self.evaluate(drafting, plain);
            self.evaluated = self.step;
            self.batch = batch;
        }
        self.probed = false;
        let shape = self.probe(drafting, plain).unwrap_or(self.current);
        let shape = self.table.shapes[shape].shape;
        match mode(shape) {
            Mode::Plain => {}
            Mode::Chain => self.chain_used = self.step,
            Mode::Tree => self.tree_used = self.step,
        }
        shape
    }

    /// What a step in this shape did to a sequence.
    pub(crate) fn observe(
        &mut self,
        average: &mut PhiAverage,
        shape: Shape,
        accepted: usize,
        prediction: &Prediction,
    ) {
        average.observe(prediction, self.step);
        self.overall.observe(prediction, self.step);
        match mode(shape) {
            Mode::Plain => {}
            Mode::Chain => self.chain.observe(accepted, predicted(shape, prediction)),
            Mode::Tree => self.tree.observe(accepted, predicted(shape, prediction)),
        }
    }

    fn evaluate(&mut self, drafting: &[&PhiAverage], plain: usize) {
        let shapes = self.table.shapes.len();
        let mut best = self.best(0..shapes, drafting, plain);
        if best == 0 {
            let since = *self.plain_best_since.get_or_insert(self.step);
            if self.current == 0 || self.step - since >= FALL_BACK_STEPS {
                self.current = 0;
                return;
            }
            // Plain has to prove itself; until it has, the best of the others.
            best = self.best(1..shapes, drafting, plain);
        } else {
            self.plain_best_since = None;
        }
        let now = self.rate(self.current, drafting, plain);
        if self.rate(best, drafting, plain) > now * HYSTERESIS {
            self.current = best;
        }
    }

    /// The index of the shape to try once, if a mode was idle for long, or if plain rules a batch
    /// of which half was never drafted for: the next request need not be like the last.
    fn probe(&mut self, drafting: &[&PhiAverage], plain: usize) -> Option<usize> {
        let idle = |used: u64| self.step >= used + PROBE_STEPS;
        let unknown = drafting.iter().filter(|phi| phi.seen.is_none()).count();
        let news = 2 * unknown >= drafting.len();
        let wanted = match mode(self.table.shapes[self.current].shape) {
            Mode::Plain if news || idle(self.chain_used.max(self.tree_used)) => None,
            Mode::Chain if idle(self.tree_used) => Some(Mode::Tree),
            Mode::Tree if idle(self.chain_used) => Some(Mode::Chain),
            _ => return None,
        };
        let choices = (1..self.table.shapes.len())
            .filter(|&i| wanted.is_none_or(|wanted| mode(self.table.shapes[i].shape) == wanted));
        let choices: Vec<usize> = choices.collect();
        if choices.is_empty() {
            return None;
        }
        self.probed = wanted.is_none();
        Some(self.best(choices.into_iter(), drafting, plain))
    }

    fn best(
        &self,
        choices: impl Iterator<Item = usize>,
        drafting: &[&PhiAverage],
        plain: usize,
    ) -> usize {
        let rated = choices.map(|index| (index, self.rate(index, drafting, plain)));
        let best = rated.reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.expect("there is a shape to choose").0
    }

    /// Expected tokens per millisecond; 0 for a shape that a step cannot hold for all: it would
    /// be lowered to a smaller one, which is rated itself.
    fn rate(&self, index: usize, drafting: &[&PhiAverage], plain: usize) -> f64 {
        let shape = self.table.shapes[index].shape;
        if shape != Shape::Plain && shape.rows() * drafting.len() + plain > STEP_ROWS_MAX {
            return 0.0;
        }
        let kappa = match mode(shape) {
            Mode::Plain => 0.0,
            Mode::Chain => self.chain.value(),
            Mode::Tree => self.tree.value(),
        };
        let expected = |average: &&PhiAverage| {
            let known = average.seen.map_or(&self.overall, |_| average);
            1.0 + kappa * predicted(shape, &known.mean)
        };
        let tokens = plain as f64 + drafting.iter().map(expected).sum::<f64>();
        let one_row =
            self.table.step_ms(0, drafting.len() + plain) - self.table.step_ms(0, drafting.len());
        tokens / (self.table.step_ms(index, drafting.len()) + one_row).max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests;

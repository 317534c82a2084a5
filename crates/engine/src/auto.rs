//! Chooses what a step drafts: the most expected tokens per millisecond.
//!
//! `rate = (sequences + kappa * Phi) / T(kind, rows, sequences)`. Phi is what the drafting sequences
//! promise together: running means of what the drafter predicts of each (every draft reports it for
//! all sizes), at the nodes that each gets; where they share rows, those are dealt as the device
//! will, to whoever gains most. Kappa is the running ratio of accepted to predicted nodes of chains
//! or trees, T comes from the start-up timing, corrected by what steps took since. Everything is
//! evaluated: T is a staircase, so the first local maximum need not be the best.
//!
//! What is not run tells nothing, so it is tried now and then, one step each. Such probes may lose a
//! share of the time, by what is known before them: [`PROBE_LOSS`] at first and after one that was
//! faster than expected or changed the choice; half as much after each other one, down to
//! [`PROBE_LOSS_LEAST`], but for n sequences no less than the nth part.

mod averages;
mod outlook;
mod pace;
mod pool;

use model::{Prediction, Shape};

use self::averages::Kappa;
pub(crate) use self::averages::PhiAverage;
use self::outlook::Outlook;
use self::pace::Pace;
use crate::shape::{Kind, STEP_ROWS_MAX, predicted};
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
/// Steps of one sequence between evaluations while the batch stays the same, of several sequences as
/// many fewer; and steps between probes and plain steps' evaluations: an evaluation of 32 sequences
/// takes about 10 microseconds of the host.
const EVALUATE_STEPS: u64 = 8;
/// A change must promise this much more for one sequence; for n, whose chances even out, it is
/// `1 + (HYSTERESIS - 1) / sqrt(n)`.
const HYSTERESIS: f64 = 1.03;
/// Plain must have been best for so many steps of a sequence, and in so many steps at least.
const FALL_BACK_STEPS: (u64, u64) = (16, 4);
/// A mode that was not used for this long is tried for one step.
const PROBE_STEPS: u64 = 64;
/// Share of the time that probes may lose, most and least.
const PROBE_LOSS: f64 = 0.02;
const PROBE_LOSS_LEAST: f64 = 0.0025;
/// What was not lost by probes is kept up to so many steps' time: traffic changes.
const ALLOWANCE_STEPS: f64 = 4.0;
/// A probe that takes at most this share of what was expected says that the table is wrong.
const PROBE_SURPRISE: f64 = 0.9;
/// Plain needs no news of drafts to be rated, but the time of its step: it is tried where it promises
/// at least this share of the current rate.
const PLAIN_NEAR: f64 = 0.6;

/// What the drafting sequences of a step run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// How each drafts, on average.
    pub(crate) shape: Shape,
    /// Rows of all of them.
    pub(crate) rows: usize,
}

impl Choice {
    /// The same shape for each.
    pub(crate) fn uniform(shape: Shape, sequences: usize) -> Self {
        Choice {
            shape,
            rows: shape.rows() * sequences,
        }
    }

    fn kind(self) -> Kind {
        Kind::of(self.shape)
    }
}

/// The chooser of one engine.
#[derive(Debug)]
pub(crate) struct Auto {
    table: TimingTable,
    /// Whether several drafting sequences share rows.
    share: bool,
    current: Choice,
    chain: Kappa,
    tree: Kappa,
    /// Over all sequences: what a new one is expected to do.
    overall: PhiAverage,
    step: u64,
    evaluated: u64,
    /// Sequences that drafted in the last step, and others.
    batch: (usize, usize),
    /// Of those that draft, how many never did, at the last step.
    unknown: usize,
    /// The batch of the last evaluation.
    evaluated_batch: Option<(usize, usize)>,
    /// Since when plain has been the best at every evaluation.
    plain_best_since: Option<u64>,
    plain_used: u64,
    chain_used: u64,
    tree_used: u64,
    pace: Pace,
    /// Milliseconds that the next probe may lose.
    allowance: f64,
    /// Share of the time that is added to them.
    probe_loss: f64,
    /// Milliseconds that the probe that runs now should take.
    probe_ms: Option<f64>,
    /// There was a probe since the last evaluation.
    tried: bool,
    /// The choice for the step that runs now, and the one-row sequences beside it.
    running: Option<(Choice, usize, usize)>,
    /// The last step was a probe from plain: its news is worth an evaluation at once.
    probed: bool,
}

impl Auto {
    /// Starts with the longest chain that was timed.
    ///
    /// # Panics
    /// If the table has no plain shape at its head.
    pub(crate) fn new(table: TimingTable, share: bool) -> Self {
        assert!(
            table
                .shapes
                .first()
                .is_some_and(|timing| timing.shape == Shape::Plain),
            "a timing table begins with the plain shape"
        );
        // The first steps run a chain: its draft predicts every shape, and it is never far off.
        let shapes = table.shapes.iter().map(|timing| timing.shape);
        let longest_chain = shapes.max_by_key(|shape| match *shape {
            Shape::Chain(drafts) => 1 + drafts,
            Shape::Plain => 1,
            Shape::Tree(_) => 0,
        });
        Auto {
            current: Choice::uniform(longest_chain.unwrap_or(Shape::Plain), 1),
            table,
            share,
            chain: Kappa::default(),
            tree: Kappa::default(),
            overall: PhiAverage::default(),
            step: 0,
            evaluated: 0,
            batch: (1, 0),
            unknown: 0,
            evaluated_batch: None,
            plain_best_since: None,
            plain_used: 0,
            chain_used: 0,
            tree_used: 0,
            pace: Pace::default(),
            allowance: 0.0,
            probe_loss: PROBE_LOSS,
            probe_ms: None,
            tried: false,
            running: None,
            probed: false,
        }
    }

    /// What the drafting sequences run in the next step, beside `plain` one-row ones.
    pub(crate) fn choose(&mut self, drafting: &[&PhiAverage], plain: usize) -> Choice {
        self.step += 1;
        self.running = None;
        self.probe_ms = None;
        if drafting.is_empty() {
            return Choice::uniform(Shape::Plain, 0);
        }
        let batch = (drafting.len(), plain);
        let unknown = drafting.iter().filter(|phi| phi.seen.is_none()).count();
        let changed = self.evaluated_batch != Some(batch) || unknown > self.unknown;
        self.unknown = unknown;
        self.current = self.carried(batch);
        // Plain steps say nothing of drafts, so there is nothing new to weigh.
        let pause = match self.current.kind() {
            Kind::Plain => EVALUATE_STEPS,
            _ => (EVALUATE_STEPS / drafting.len() as u64).max(1),
        };
        let due = changed || self.step >= self.evaluated + pause;
        self.batch = batch;
        if self.step > START_STEPS && self.overall.seen.is_some() && (due || self.probed) {
            let outlook = self.outlook(drafting, plain);
            let before = self.current.kind();
            self.evaluate(&outlook);
            if std::mem::take(&mut self.tried) && self.current.kind() != before {
                self.probe_loss = PROBE_LOSS;
            }
            self.evaluated = self.step;
            self.evaluated_batch = Some(batch);
        }
        self.probed = false;
        let probe = (changed || self.step.is_multiple_of(EVALUATE_STEPS))
            .then(|| self.probe(drafting, plain));
        let choice = probe.flatten().unwrap_or(self.current);
        match choice.kind() {
            Kind::Plain => self.plain_used = self.step,
            Kind::Chain => self.chain_used = self.step,
            Kind::Tree => self.tree_used = self.step,
        }
        self.running = Some((choice, drafting.len(), plain));
        choice
    }

    /// The step that was chosen last had so many rows and took `ms`.
    pub(crate) fn took(&mut self, rows: usize, ms: f64) {
        let Some((choice, drafting, plain)) = self.running.take() else {
            return;
        };
        let probe_ms = self.probe_ms.take();
        // A probe of n sequences says n times as much.
        let loss = self.probe_loss.max(PROBE_LOSS / drafting as f64);
        let saved = self.allowance + loss * ms;
        self.allowance = saved.min(ALLOWANCE_STEPS * ms);
        // Shapes of requests' own, or lowered ones, were not rated.
        if rows == choice.rows + plain {
            if probe_ms.is_some_and(|expected| ms <= PROBE_SURPRISE * expected) {
                self.probe_loss = PROBE_LOSS;
            }
            let expected = self.table_ms(choice, drafting, plain);
            self.pace
                .observe(choice.kind(), rows, ms, expected, self.step);
        }
    }

    /// What a step with so many verified nodes did to a sequence.
    pub(crate) fn observe(
        &mut self,
        average: &mut PhiAverage,
        verified: Shape,
        accepted: usize,
        prediction: &Prediction,
    ) {
        average.observe(prediction, self.step, self.batch.0);
        // One after the other, as if they were steps of one sequence.
        self.overall.observe(prediction, self.step, 1);
        let predicted = predicted(verified, prediction);
        match Kind::of(verified) {
            Kind::Plain => {}
            Kind::Chain => self.chain.observe(accepted, predicted),
            Kind::Tree => self.tree.observe(accepted, predicted),
        }
    }

    /// The current choice for a batch that may have changed: as many rows for each sequence.
    fn carried(&self, batch: (usize, usize)) -> Choice {
        let (Choice { shape, rows }, (before, _)) = (self.current, self.batch);
        let ((drafting, plain), kind) = (batch, self.current.kind());
        if kind == Kind::Plain {
            return Choice::uniform(Shape::Plain, drafting);
        }
        if batch == self.batch {
            return self.current;
        }
        if self.shares(drafting) {
            let most = (drafting * self.largest(kind)).min(STEP_ROWS_MAX.saturating_sub(plain));
            // At least one draft, if there is room for any.
            let rows = (rows * drafting).div_ceil(before).max(drafting + 1);
            let rows = rows.min(most.max(drafting));
            let shape = kind.shape(rows / drafting - 1);
            return Choice { shape, rows };
        }
        // A shape of its own steps that was timed.
        let timed = self.table.shapes.iter().map(|timing| timing.shape);
        let timed = timed.filter(|&other| Kind::of(other) == kind);
        let near = timed.min_by_key(|other| other.rows().abs_diff(shape.rows()));
        Choice::uniform(near.unwrap_or(shape), drafting)
    }

    fn evaluate(&mut self, outlook: &Outlook) {
        let any = outlook.best(|_| true);
        let (mut best, mut rate) = any.expect("there is a shape to choose");
        if best.kind() == Kind::Plain {
            let since = *self.plain_best_since.get_or_insert(self.step);
            let steps = self.step - since;
            let (all, least) = FALL_BACK_STEPS;
            let proved = steps * self.batch.0 as u64 >= all && steps >= least;
            // Plain has to prove itself; until it has, the best of the others.
            match outlook.best(|kind| kind != Kind::Plain) {
                Some(other) if self.current.kind() != Kind::Plain && !proved => {
                    (best, rate) = other;
                }
                _ => {
                    self.current = best;
                    return;
                }
            }
        } else {
            self.plain_best_since = None;
        }
        let hysteresis = 1.0 + (HYSTERESIS - 1.0) / (self.batch.0 as f64).sqrt();
        if rate > outlook.now * hysteresis {
            tracing::debug!(
                from = ?self.current,
                to = ?best,
                gain = rate / outlook.now,
                chain = self.chain.value(),
                tree = self.tree.value(),
                "drafts otherwise"
            );
            self.current = best;
        }
    }

    /// What to try once, if a mode was idle for long, or if plain rules a batch of which half was
    /// never drafted for: the next request need not be like the last.
    fn probe(&mut self, drafting: &[&PhiAverage], plain: usize) -> Option<Choice> {
        let idle = |used: u64| self.step >= used + PROBE_STEPS;
        let news = 2 * self.unknown >= drafting.len();
        let kind = self.current.kind();
        let wanted = |other: Kind| match kind {
            Kind::Plain => {
                other != Kind::Plain && (news || idle(self.chain_used.max(self.tree_used)))
            }
            _ => match other {
                Kind::Plain => idle(self.plain_used),
                Kind::Chain => kind == Kind::Tree && idle(self.chain_used),
                Kind::Tree => kind == Kind::Chain && idle(self.tree_used),
            },
        };
        let kinds = [Kind::Plain, Kind::Chain, Kind::Tree];
        if !kinds.into_iter().any(wanted) {
            return None;
        }
        let outlook = self.outlook(drafting, plain);
        let drafts = outlook.best(|kind| kind != Kind::Plain && wanted(kind));
        let batch = self.batch(drafting, plain);
        // By the table where that promises more: plain was perhaps not run for long.
        let one_rows = drafting.len() + plain;
        let slower = self.pace.factor(Kind::Plain, one_rows, self.step).max(1.0);
        let near = |&(_, rate): &(Choice, f64)| rate * slower >= PLAIN_NEAR * outlook.now;
        let one_row = outlook.best(|kind| kind == Kind::Plain && wanted(kind));
        let cost = |(choice, rate): (Choice, f64)| {
            let ms = self.ms(choice, &batch);
            (choice, ms, ms * (1.0 - rate / outlook.now))
        };
        let mut probes = [drafts, one_row.filter(near)]
            .into_iter()
            .flatten()
            .map(cost);
        let (choice, ms, loss) = probes.find(|&(_, _, loss)| loss <= self.allowance)?;
        self.probe_ms = Some(ms);
        self.tried = true;
        self.allowance -= loss.max(0.0);
        self.probe_loss = (self.probe_loss / 2.0).max(PROBE_LOSS_LEAST);
        self.probed = kind == Kind::Plain;
        Some(choice)
    }
}

#[cfg(test)]
mod tests;

//! How long steps take beside what the timing table says.
//!
//! The table was measured once, at start, with a few numbers of sequences, and perhaps on a busy
//! machine. What steps took since is kept as a mean of `ln(ms / table)` for every kind of drafts and
//! row bucket. A time that is asked for is corrected by its own kind's buckets, the near ones most;
//! as far as they know nothing, by all steps, so that a machine that became slower as a whole does
//! not make what was not run lately look fast.

use ops::ROW_BUCKETS;

use crate::shape::Kind;

/// Steps after which an observation counts half.
const HALF_LIFE: f64 = 256.0;
/// Observations of a bucket count as so many at most: later ones go on to move its mean.
const WEIGHT_MAX: f64 = 12.0;
/// What all steps say counts as so many observations of a bucket.
const PRIOR: f64 = 0.5;
/// One step cannot say more than this: it may have been interrupted.
const LOG_MAX: f64 = 1.0;
/// A bucket counts so much less for each bucket between.
const FALLOFF: f64 = 0.25;

/// A fading mean.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    log: f64,
    weight: f64,
    step: u64,
}

impl Mean {
    fn observe(&mut self, log: f64, step: u64) {
        self.weight = self.weight(step).min(WEIGHT_MAX - 1.0) + 1.0;
        self.step = step;
        self.log += (log - self.log) / self.weight;
    }

    fn weight(&self, step: u64) -> f64 {
        self.weight * 0.5f64.powf(step.saturating_sub(self.step) as f64 / HALF_LIFE)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Plain, chain, tree.
    kinds: [[Mean; ROW_BUCKETS.len()]; 3],
    all: Mean,
}

fn bucket(rows: usize) -> usize {
    let bucket = ROW_BUCKETS.partition_point(|&bucket| bucket < rows);
    bucket.min(ROW_BUCKETS.len() - 1)
}

impl Pace {
    /// A step of so many rows took `ms`; the table said `expected`.
    pub(super) fn observe(&mut self, kind: Kind, rows: usize, ms: f64, expected: f64, step: u64) {
        let log = (ms / expected).ln();
        if log.is_finite() {
            let log = log.clamp(-LOG_MAX, LOG_MAX);
            self.kinds[kind as usize][bucket(rows)].observe(log, step);
            self.all.observe(log, step);
        }
    }

    /// What a time of the table has to be multiplied with.
    pub(super) fn factor(&self, kind: Kind, rows: usize, step: u64) -> f64 {
        let own = bucket(rows);
        let (mut sum, mut weights) = (PRIOR * self.all.log, PRIOR);
        for (number, mean) in self.kinds[kind as usize].iter().enumerate() {
            let near = FALLOFF.powi(own.abs_diff(number) as i32);
            let weight = near * mean.weight(step);
            sum += weight * mean.log;
            weights += weight;
        }
        (sum / weights).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_known_changes_nothing() {
        assert_eq!(Pace::default().factor(Kind::Tree, 16, 9), 1.0);
    }

    #[test]
    fn what_was_seen_corrects_its_own_kind_most() {
        let mut pace = Pace::default();
        for step in 0..40 {
            pace.observe(Kind::Chain, 64, 20.0, 10.0, step);
            pace.observe(Kind::Plain, 4, 10.0, 10.0, step);
        }
        let factor = |kind, rows| pace.factor(kind, rows, 40);
        assert!((factor(Kind::Chain, 64) - 2.0).abs() < 0.05);
        assert!((factor(Kind::Plain, 4) - 1.0).abs() < 0.05);
        // A tree was never run: all steps together were slower than the table.
        assert!((1.2..1.7).contains(&factor(Kind::Tree, 64)));
        let far = factor(Kind::Chain, 1);
        assert!(far < factor(Kind::Chain, 32) && far > 1.0, "{far}");
    }

    #[test]
    fn interruptions_count_little_and_old_news_fade() {
        let mut pace = Pace::default();
        for step in 0..20 {
            pace.observe(Kind::Tree, 16, 10.0, 10.0, step);
        }
        pace.observe(Kind::Tree, 16, 5000.0, 10.0, 20);
        let factor = pace.factor(Kind::Tree, 16, 21);
        assert!(factor < 1.12, "{factor}");
        // 2,000 steps later one observation says more than all the old ones.
        pace.observe(Kind::Tree, 16, 15.0, 10.0, 2020);
        let factor = pace.factor(Kind::Tree, 16, 2020);
        assert!((1.3..1.55).contains(&factor), "{factor}");
        pace.observe(Kind::Tree, 16, f64::NAN, 10.0, 2021);
        pace.observe(Kind::Tree, 16, 1.0, 0.0, 2021);
        assert!(pace.factor(Kind::Tree, 16, 2021).is_finite());
    }
}

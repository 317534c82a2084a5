//! Histogram with fixed buckets.

use std::sync::{Mutex, PoisonError};

/// Counts of observations per bucket.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    counts: Mutex<Counts>,
}

/// A consistent copy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counts {
    /// Observations at or below each bound and above the one before; the last entry is the rest.
    pub(crate) buckets: Vec<u64>,
    /// Sum of the observations.
    pub(crate) sum: f64,
}

impl Histogram {
    /// Nothing observed yet; `bounds` ascend.
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        let counts = Counts {
            buckets: vec![0; bounds.len() + 1],
            sum: 0.0,
        };
        Histogram {
            bounds,
            counts: Mutex::new(counts),
        }
    }

    /// `times` observations of `value`.
    pub(crate) fn observe(&self, value: f64, times: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.buckets[bucket] += times;
        counts.sum += value * times as f64;
    }

    /// Upper bounds of all buckets but the last.
    pub(crate) fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// The counts now.
    pub(crate) fn read(&self) -> Counts {
        self.counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 2.0, 2.5] {
            histogram.observe(value, 1);
        }
        histogram.observe(2.0, 3);
        let counts = histogram.read();
        assert_eq!(counts.buckets, [2, 5, 1]);
        assert!((counts.sum - 13.5).abs() < 1e-12);
    }
}

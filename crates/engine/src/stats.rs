//! Counters and gauges of the engine, read by the server for `/metrics`.

use std::time::Duration;

use model::{Shape, StepSequence};
use ops::DEPTH_MAX;

use crate::CacheStats;

/// A consistent copy of all counters. Totals count since start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Requests in a slot.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Tokens of their prompts.
    pub waiting_tokens: usize,
    /// Of those in the queue, the ones that had a slot and gave it up.
    pub preempted: usize,
    /// Pages in use / in the pool.
    pub pages_used: usize,
    /// Pages in the pool.
    pub pages_total: usize,
    /// State slots in use.
    pub slots_used: usize,
    /// State slots.
    pub slots_total: usize,
    /// The prefix cache.
    pub prefix_cache: CacheStats,
    /// Prompt tokens that were prefilled, or spared by the prefix cache; each once.
    pub prompt_tokens: u64,
    /// Tokens emitted and kept. Counted when emitted; what [`crate::EngineHandle::finish`] drops
    /// is taken off again.
    pub generated_tokens: u64,
    /// Requests that took part in verify steps, summed over steps.
    pub drafts: u64,
    /// Verified nodes without roots.
    pub draft_tokens: u64,
    /// Accepted nodes.
    pub accepted_tokens: u64,
    /// `[d]` = steps that accepted more than d nodes; 15 entries.
    pub accepted_per_position: Vec<u64>,
    /// Times that a request gave up its slot, since no page was free, and waited again.
    pub preemptions: u64,
    /// Emitted tokens that were processed again after that.
    pub replayed_tokens: u64,
    /// Per shape that was used.
    pub shapes: Vec<ShapeStats>,
    /// Requests that had a slot and have ended.
    pub ended: u64,
    /// Tokens emitted per second over the last seconds.
    pub tokens_per_second: f64,
    /// Tokens prefilled per second over the last seconds.
    pub prompt_tokens_per_second: f64,
    /// Since the engine last finished a step or an idle second.
    pub heartbeat_age: Duration,
}

/// Counters of one shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShapeStats {
    /// `plain`, `chain-15`, `tree-31`, ...
    pub shape: String,
    /// Sequences times steps.
    pub steps: u64,
    /// Verified nodes without roots.
    pub drafted: u64,
    /// Accepted nodes.
    pub accepted: u64,
    /// `[k]` = sequences times steps with exactly k accepted nodes; 16 entries.
    pub acceptance_histogram: Vec<u64>,
    /// Predicted accepted nodes.
    pub predicted: f64,
}

/// Buckets of the sliding window.
const RATE_BUCKETS: usize = 20;
/// Milliseconds of one of them: the window is five seconds.
const RATE_BUCKET_MS: u64 = 250;

/// Tokens of the last seconds.
#[derive(Debug, Default)]
struct TokenRate {
    tokens: [u64; RATE_BUCKETS],
    /// Number of the newest bucket since start.
    newest: u64,
}

impl TokenRate {
    fn advance(&mut self, now_ms: u64) {
        let bucket = now_ms / RATE_BUCKET_MS;
        let passed = bucket.saturating_sub(self.newest);
        for step in 1..=passed.min(RATE_BUCKETS as u64) {
            self.tokens[((self.newest + step) % RATE_BUCKETS as u64) as usize] = 0;
        }
        if passed > RATE_BUCKETS as u64 {
            self.tokens = [0; RATE_BUCKETS];
        }
        self.newest = self.newest.max(bucket);
    }

    fn record(&mut self, tokens: usize, now_ms: u64) {
        self.advance(now_ms);
        self.tokens[(self.newest % RATE_BUCKETS as u64) as usize] += tokens as u64;
    }

    fn per_second(&mut self, now_ms: u64) -> f64 {
        self.advance(now_ms);
        let whole = (RATE_BUCKETS as u64 - 1) * RATE_BUCKET_MS + now_ms % RATE_BUCKET_MS;
        self.tokens.iter().sum::<u64>() as f64 * 1e3 / whole as f64
    }
}

/// The engine thread's side of [`EngineStats`].
#[derive(Debug)]
pub(crate) struct Counters {
    /// What readers get.
    pub(crate) stats: EngineStats,
    rate: TokenRate,
    prompt_rate: TokenRate,
}

impl Counters {
    /// Zeros, with one entry per depth.
    pub(crate) fn new(pages: usize, slots: usize) -> Self {
        Counters {
            stats: EngineStats {
                pages_total: pages,
                slots_total: slots,
                accepted_per_position: vec![0; DEPTH_MAX],
                ..EngineStats::default()
            },
            rate: TokenRate::default(),
            prompt_rate: TokenRate::default(),
        }
    }

    /// Tokens of a prompt were processed.
    pub(crate) fn prefill(&mut self, tokens: usize, now_ms: u64) {
        self.stats.prompt_tokens += tokens as u64;
        self.prompt_rate.record(tokens, now_ms);
    }

    /// Tokens were emitted.
    pub(crate) fn emit(&mut self, tokens: usize, now_ms: u64) {
        self.stats.generated_tokens += tokens as u64;
        self.rate.record(tokens, now_ms);
    }

    /// A sequence took part in a verify pass, in steps of `shape`, and `verified` is what it got.
    pub(crate) fn count_step(&mut self, shape: Shape, verified: Shape, step: &StepSequence) {
        let stats = &mut self.stats;
        stats.drafts += 1;
        stats.draft_tokens += step.drafted as u64;
        stats.accepted_tokens += step.accepted as u64;
        for count in &mut stats.accepted_per_position[..step.accepted] {
            *count += 1;
        }
        debug_assert_eq!(
            stats.accepted_per_position.iter().sum::<u64>(),
            stats.accepted_tokens
        );
        let name = crate::shape::name(shape);
        let found = stats.shapes.iter().position(|entry| entry.shape == name);
        let index = found.unwrap_or_else(|| {
            stats.shapes.push(ShapeStats {
                shape: name,
                acceptance_histogram: vec![0; DEPTH_MAX + 1],
                ..ShapeStats::default()
            });
            stats.shapes.len() - 1
        });
        let entry = &mut stats.shapes[index];
        entry.steps += 1;
        entry.drafted += step.drafted as u64;
        entry.accepted += step.accepted as u64;
        entry.acceptance_histogram[step.accepted] += 1;
        if let Some(prediction) = &step.prediction {
            entry.predicted += crate::shape::predicted(verified, prediction);
        }
    }

    /// A copy with the rates of now.
    pub(crate) fn read(&mut self, now_ms: u64) -> EngineStats {
        self.stats.tokens_per_second = self.rate.per_second(now_ms);
        self.stats.prompt_tokens_per_second = self.prompt_rate.per_second(now_ms);
        self.stats.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_forgets_what_is_older_than_the_window() {
        let mut rate = TokenRate::default();
        for ms in (0..5000).step_by(50) {
            rate.record(5, ms);
        }
        assert!((rate.per_second(4999) - 100.0).abs() < 1.0);
        let half = rate.per_second(7500);
        assert!((40.0..60.0).contains(&half), "{half}");
        assert_eq!(rate.per_second(10_000), 0.0);
        rate.record(50, 1_000_000);
        assert!((rate.per_second(1_000_249) - 10.0).abs() < 0.1);
    }

    #[test]
    fn positions_count_every_depth_below_the_accepted_length() {
        let mut counters = Counters::new(1, 1);
        for (accepted, shape) in [
            (2, Shape::Tree(15)),
            (0, Shape::Plain),
            (15, Shape::Tree(15)),
        ] {
            counters.count_step(
                shape,
                shape,
                &StepSequence {
                    slot: 0,
                    tokens: Vec::new(),
                    rows: shape.rows(),
                    drafted: shape.rows() - 1,
                    accepted,
                    ended: None,
                    not_finite: None,
                    prediction: None,
                },
            );
        }
        let stats = counters.read(0);
        let mut expected = vec![1; 15];
        expected[..2].fill(2);
        assert_eq!(stats.accepted_per_position, expected);
        assert_eq!(
            (stats.drafts, stats.draft_tokens, stats.accepted_tokens),
            (3, 30, 17)
        );
        let [tree, plain] = &stats.shapes[..] else {
            panic!("two shapes were used: {:?}", stats.shapes)
        };
        let counts = |shape: &ShapeStats| (shape.steps, shape.drafted, shape.accepted);
        assert_eq!((&*tree.shape, counts(tree)), ("tree-15", (2, 30, 17)));
        assert_eq!((&*plain.shape, counts(plain)), ("plain", (1, 0, 0)));
        let mut histogram = vec![0; 16];
        histogram[2] = 1;
        histogram[15] = 1;
        assert_eq!(tree.acceptance_histogram, histogram);
        assert_eq!(plain.acceptance_histogram[0], 1);
    }
}

//! Counters and gauges of the engine, read by the server for `/metrics`.

use std::time::Duration;

/// A consistent copy of all counters. Totals count since start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Requests in a slot.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Pages in use / in the pool.
    pub pages_used: usize,
    /// Pages in the pool.
    pub pages_total: usize,
    /// State slots in use.
    pub slots_used: usize,
    /// State slots.
    pub slots_total: usize,
    /// Tokens prefilled.
    pub prompt_tokens: u64,
    /// Tokens emitted and kept.
    pub generated_tokens: u64,
    /// Requests that took part in verify steps, summed over steps.
    pub drafts: u64,
    /// Verified nodes without roots.
    pub draft_tokens: u64,
    /// Accepted nodes.
    pub accepted_tokens: u64,
    /// `[d]` = steps that accepted more than d nodes; 15 entries.
    pub accepted_per_position: Vec<u64>,
    /// Per shape that was used.
    pub shapes: Vec<ShapeStats>,
    /// Tokens per second over the last seconds.
    pub tokens_per_second: f64,
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
    /// Accepted nodes.
    pub accepted: u64,
    /// Predicted accepted nodes.
    pub predicted: f64,
}

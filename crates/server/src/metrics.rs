//! Counters and histograms of the server, and the text of `/metrics`.
//!
//! Two families of names are written from the same numbers, so that dashboards and benchmarks of
//! either kind work.

mod exposition;
mod histogram;
mod report;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engine::{RequestStats, StepTiming};
use histogram::Histogram;

const TTFT: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0,
    80.0, 160.0, 400.0,
];
const TOKEN_TIME: &[f64] = &[
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4,
    0.6, 0.8, 1.0, 2.0, 4.0, 8.0,
];
const REQUEST_TIME: &[f64] = &[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0,
    1200.0, 2400.0,
];
const QUEUE_TIME: &[f64] = &[
    0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0, 200_000.0,
];
const STEP_TIME: &[f64] = &[
    0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
];
const ACCEPT_LENGTH: &[f64] = &[
    1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0,
];

/// How a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The model's end, a stop id or a stop string.
    Stop,
    /// Its limit.
    Length,
    /// The client went away or the server ends.
    Abort,
    /// The engine failed.
    Error,
}

const ENDINGS: [(Ending, &str); 4] = [
    (Ending::Stop, "stop"),
    (Ending::Length, "length"),
    (Ending::Abort, "abort"),
    (Ending::Error, "error"),
];

/// Phases of a step as they are reported.
const STEP_PHASES: [&str; 5] = ["draft", "build", "verify", "sample", "commit"];

type LabelCounts = Mutex<BTreeMap<Vec<String>, u64>>;

/// Everything the server counts itself.
#[derive(Debug)]
pub(crate) struct Metrics {
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    endings: [AtomicU64; 4],
    disconnected: AtomicU64,
    http_active: AtomicI64,
    rejections: LabelCounts,
    ignored_fields: LabelCounts,
    http_requests: LabelCounts,
    http_responses: LabelCounts,
    first_token: Histogram,
    between_tokens: Histogram,
    per_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompt_size: Histogram,
    output_size: Histogram,
    accept_length: Histogram,
    step_phases: [Histogram; 5],
}

impl Metrics {
    /// All zero.
    pub(crate) fn new() -> Self {
        Metrics {
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            endings: Default::default(),
            disconnected: AtomicU64::new(0),
            http_active: AtomicI64::new(0),
            rejections: LabelCounts::default(),
            ignored_fields: LabelCounts::default(),
            http_requests: LabelCounts::default(),
            http_responses: LabelCounts::default(),
            first_token: Histogram::new(TTFT),
            between_tokens: Histogram::new(TOKEN_TIME),
            per_token: Histogram::new(TOKEN_TIME),
            end_to_end: Histogram::new(REQUEST_TIME),
            queue: Histogram::new(QUEUE_TIME),
            prefill: Histogram::new(REQUEST_TIME),
            decode: Histogram::new(REQUEST_TIME),
            prompt_size: Histogram::new(TOKENS),
            output_size: Histogram::new(TOKENS),
            accept_length: Histogram::new(ACCEPT_LENGTH),
            step_phases: std::array::from_fn(|_| Histogram::new(STEP_TIME)),
        }
    }

    /// Tokens of a prompt were taken in.
    pub(crate) fn count_prompt(&self, tokens: usize) {
        self.prompt_tokens
            .fetch_add(tokens as u64, Ordering::Relaxed);
        self.prompt_size.observe(tokens as f64, 1);
    }

    /// `tokens` output tokens that count.
    pub(crate) fn count_output(&self, tokens: usize) {
        self.generated_tokens
            .fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// The first token came after so many seconds.
    pub(crate) fn observe_first_token(&self, seconds: f64) {
        self.first_token.observe(seconds, 1);
    }

    /// `tokens` tokens came at once, `seconds` after the ones before.
    pub(crate) fn observe_step(&self, tokens: usize, seconds: f64) {
        self.between_tokens
            .observe(seconds / tokens.max(1) as f64, tokens as u64);
    }

    /// A sequence ended as it should, after `seconds` in all and with so many tokens.
    pub(crate) fn observe_request(&self, stats: &RequestStats, tokens: usize, seconds: f64) {
        self.end_to_end.observe(seconds, 1);
        self.queue.observe(stats.queue_ms / 1e3, 1);
        self.prefill.observe(stats.prefill_ms / 1e3, 1);
        self.decode.observe(stats.decode_ms / 1e3, 1);
        self.output_size.observe(tokens as f64, 1);
        if tokens > 1 {
            let mean = stats.decode_ms / 1e3 / (tokens - 1) as f64;
            self.per_token.observe(mean, 1);
        }
        for (accepted, &steps) in stats.acceptance_histogram.iter().enumerate() {
            if steps > 0 {
                self.accept_length
                    .observe(accepted as f64 + 1.0, steps as u64);
            }
        }
    }

    /// A sequence ended.
    pub(crate) fn count_ending(&self, ending: Ending) {
        if let Some(index) = ENDINGS.iter().position(|(known, _)| *known == ending) {
            self.endings[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A client went away before its answer was complete.
    pub(crate) fn count_disconnect(&self) {
        self.disconnected.fetch_add(1, Ordering::Relaxed);
    }

    /// A generation request was refused with this `code`.
    pub(crate) fn count_rejection(&self, code: &str) {
        count(&self.rejections, [code]);
    }

    /// A field was accepted and has no effect.
    pub(crate) fn count_ignored(&self, field: &str) {
        count(&self.ignored_fields, [field]);
    }

    /// A request came in.
    pub(crate) fn count_http_request(&self, endpoint: &str, method: &str) {
        count(&self.http_requests, [endpoint, method]);
    }

    /// Its response went out.
    pub(crate) fn count_http_response(&self, endpoint: &str, method: &str, status: u16) {
        count(
            &self.http_responses,
            [endpoint, method, &status.to_string()],
        );
    }

    /// Where the time of a step went.
    pub(crate) fn observe_timing(&self, timing: &StepTiming) {
        let parts = [
            timing.draft_ms,
            timing.build_ms,
            timing.verify_ms,
            timing.sample_ms,
            timing.commit_ms,
        ];
        for (histogram, ms) in self.step_phases.iter().zip(parts) {
            histogram.observe(ms / 1e3, 1);
        }
    }
}

/// One active HTTP request, as long as this exists.
#[derive(Debug)]
pub(crate) struct ActiveHttp(Arc<Metrics>);

impl ActiveHttp {
    /// Counts it.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        metrics.http_active.fetch_add(1, Ordering::Relaxed);
        ActiveHttp(metrics)
    }
}

impl Drop for ActiveHttp {
    fn drop(&mut self) {
        self.0.http_active.fetch_sub(1, Ordering::Relaxed);
    }
}

fn count<const N: usize>(counts: &LabelCounts, labels: [&str; N]) {
    let key = labels.map(str::to_owned).to_vec();
    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry(key).or_default() += 1;
}

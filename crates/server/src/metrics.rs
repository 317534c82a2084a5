//! Counters and histograms of the server, and the text of `/metrics`.
//!
//! Two families of names are written from the same numbers, so that dashboards and benchmarks of
//! either kind work.

mod families;
pub(crate) mod openmetrics;
mod process;
mod registry;
mod report;

use std::sync::Arc;

use crate::field_rules;
use crate::generation::Outcome;
use engine::StepTiming;
use families::*;
use registry::{Counter, Gauge, Histogram, Labels, Registry};

/// What `/metrics` has.
#[derive(Clone, Debug)]
pub struct MetricsConfig {
    /// Whether it exists.
    pub served: bool,
    /// Families of names besides the server's own.
    pub prefixes: Vec<NamePrefix>,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        MetricsConfig {
            served: true,
            prefixes: vec![NamePrefix::Sglang, NamePrefix::Vllm],
        }
    }
}

/// A family of names that dashboards know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamePrefix {
    /// `sglang:`
    Sglang,
    /// `vllm:`
    Vllm,
}

/// How a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The model's end, a stop id or a stop string.
    Stop,
    /// As [`Ending::Stop`], with a call of a tool in the answer.
    ToolCalls,
    /// Its limit.
    Length,
    /// The client went away, time ran out or the server ends.
    Abort,
    /// The engine failed.
    Error,
}

impl Ending {
    /// `finished_reason`.
    pub(crate) fn name(self) -> &'static str {
        let known = ENDINGS.iter().find(|(known, _)| *known == self);
        known.map_or("error", |(_, name)| name)
    }
}

/// How long a sequence took, in seconds, and what it gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SequenceTimes {
    /// Since its request.
    pub(crate) all: f64,
    /// In the queue.
    pub(crate) queue: f64,
    /// From its slot to its first token and from there to the last; `None` without a first token.
    pub(crate) spans: Option<(f64, f64)>,
    /// Output tokens that count.
    pub(crate) tokens: usize,
}

const ENDINGS: [(Ending, &str); 5] = [
    (Ending::Stop, "stop"),
    (Ending::ToolCalls, "tool_calls"),
    (Ending::Length, "length"),
    (Ending::Abort, "abort"),
    (Ending::Error, "error"),
];

/// Phases of a step as they are reported.
const STEP_PHASES: [&str; 6] = ["draft", "build", "verify", "sample", "commit", "host"];

/// Codes of refusals at the door.
const REFUSALS: [&str; 6] = [
    "queue_full",
    "queue_timeout",
    "model_loading",
    "server_draining",
    "engine_unavailable",
    "rate_limit_exceeded",
];

/// Everything the server counts itself, and the engine's numbers as of the last scrape.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    prompt_tokens: Counter,
    output_tokens: Counter,
    sequences: Counter,
    aborted: Counter,
    endings: [Counter; 5],
    disconnected: Counter,
    http_active: Gauge,
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
    tree_nodes: Histogram,
    undrafted: Counter,
    step: Histogram,
    step_phases: [Histogram; 6],
    masks: Histogram,
}

impl Metrics {
    /// All zero, of the model with this name.
    pub(crate) fn new(model: &str, config: &MetricsConfig) -> Self {
        let registry = Registry::new(model, &config.prefixes);
        report::constants(&registry);
        for code in REFUSALS {
            registry.counter(&REJECTIONS, &[("reason", code)]);
        }
        for field in field_rules::IGNORED {
            registry.counter(&IGNORED_FIELDS, &[("field", field)]);
        }
        let counter = |family| registry.counter(&family, &[]);
        let histogram = |family| registry.histogram(&family, &[]);
        let stage = |name| registry.histogram(&STAGES, &[("stage", name)]);
        let ending = |(_, name)| registry.counter(&ENDED, &[("finished_reason", name)]);
        let phase = |name| registry.histogram(&STEP_PHASE, &[("phase", name)]);
        Metrics {
            prompt_tokens: counter(PROMPT_TOKENS),
            output_tokens: counter(OUTPUT_TOKENS),
            sequences: counter(SEQUENCES),
            aborted: counter(ABORTED),
            endings: ENDINGS.map(ending),
            disconnected: counter(DISCONNECTED),
            http_active: registry.gauge(&HTTP_ACTIVE, &[]),
            first_token: histogram(FIRST_TOKEN),
            between_tokens: histogram(BETWEEN_TOKENS),
            per_token: histogram(PER_TOKEN),
            end_to_end: histogram(END_TO_END),
            queue: histogram(QUEUE),
            prefill: histogram(PREFILL).and(stage("prefill")),
            decode: histogram(DECODE).and(stage("decode")),
            prompt_size: histogram(PROMPT_SIZE),
            output_size: histogram(OUTPUT_SIZE),
            accept_length: histogram(ACCEPT_LENGTH),
            tree_nodes: histogram(TREE_NODES),
            undrafted: registry.counter(&SPEC_DISABLED, &[("reason", "request")]),
            step: histogram(STEP),
            step_phases: STEP_PHASES.map(phase),
            masks: histogram(MASKS),
            registry,
        }
    }

    /// Has to be called now and then: observations take memory until then, or until a scrape.
    pub(crate) fn upkeep(&self) {
        self.registry.upkeep();
    }

    /// Tokens of a prompt were taken in. `speculative`: the request lets the engine draft.
    pub(crate) fn count_prompt(&self, tokens: usize, speculative: bool) {
        self.undrafted.add(u64::from(!speculative));
        self.prompt_tokens.add(tokens as u64);
        self.prompt_size.observe(tokens as f64, 1);
    }

    /// `tokens` output tokens that count.
    pub(crate) fn count_output(&self, tokens: usize) {
        self.output_tokens.add(tokens as u64);
    }

    /// The first token came after so many seconds.
    pub(crate) fn observe_first_token(&self, seconds: f64) {
        self.first_token.observe(seconds, 1);
    }

    /// `tokens` tokens came at once, `seconds` after the ones before.
    pub(crate) fn observe_step(&self, tokens: usize, seconds: f64) {
        self.between_tokens
            .observe(seconds / tokens.max(1) as f64, tokens);
    }

    /// A sequence ended in any way.
    pub(crate) fn observe_sequence(&self, times: &SequenceTimes) {
        self.end_to_end.observe(times.all, 1);
        self.queue.observe(times.queue, 1);
        self.output_size.observe(times.tokens as f64, 1);
        let Some((prefill, decode)) = times.spans else {
            return;
        };
        self.prefill.observe(prefill, 1);
        self.decode.observe(decode, 1);
        if times.tokens > 1 {
            self.per_token
                .observe(decode / (times.tokens - 1) as f64, 1);
        }
    }

    /// The verify passes of a sequence of which the engine has reported.
    pub(crate) fn observe_passes(&self, outcome: &Outcome) {
        let histogram = &outcome.stats.acceptance_histogram;
        for (accepted, &steps) in histogram.iter().enumerate() {
            if steps > 0 {
                self.accept_length.observe(accepted as f64 + 1.0, steps);
            }
        }
        for record in &outcome.records {
            self.tree_nodes.observe(f64::from(record.drafted), 1);
        }
    }

    /// A sequence ended.
    pub(crate) fn count_ending(&self, ending: Ending) {
        if let Some(index) = ENDINGS.iter().position(|(known, _)| *known == ending) {
            self.endings[index].add(1);
        }
        self.sequences.add(1);
        if ending == Ending::Abort {
            self.aborted.add(1);
        }
    }

    /// A client went away before its answer was complete.
    pub(crate) fn count_disconnect(&self) {
        self.disconnected.add(1);
    }

    /// A generation request was refused with this `code`.
    pub(crate) fn count_rejection(&self, code: &str) {
        self.count(&REJECTIONS, &[("reason", code)]);
    }

    /// A field was accepted and has no effect.
    pub(crate) fn count_ignored(&self, field: &str) {
        self.count(&IGNORED_FIELDS, &[("field", field)]);
    }

    /// Requests like this will come: until then there are none.
    pub(crate) fn expect_http(&self, endpoint: &str, method: &str) {
        let labels = [("endpoint", endpoint), ("method", method)];
        self.registry.counter(&HTTP_REQUESTS, &labels);
        let labels = [labels[0], labels[1], ("status_code", "200")];
        self.registry.counter(&HTTP_RESPONSES, &labels);
    }

    /// A request came in.
    pub(crate) fn count_http_request(&self, endpoint: &str, method: &str) {
        let labels = [("endpoint", endpoint), ("method", method)];
        self.count(&HTTP_REQUESTS, &labels);
    }

    /// Its response went out.
    pub(crate) fn count_http_response(&self, endpoint: &str, method: &str, status: u16) {
        let status = status.to_string();
        let labels = [
            ("endpoint", endpoint),
            ("method", method),
            ("status_code", &status),
        ];
        self.count(&HTTP_RESPONSES, &labels);
    }

    fn count(&self, family: &Family, labels: Labels<'_>) {
        self.registry.counter(family, labels).add(1);
    }

    /// The masks of a step's constrained sequences took so many seconds.
    pub(crate) fn observe_masks(&self, seconds: f64) {
        self.masks.observe(seconds, 1);
    }

    /// Where the time of a step went.
    pub(crate) fn observe_timing(&self, timing: &StepTiming) {
        self.step.observe(timing.total_ms / 1e3, 1);
        let Some(parts) = timing.parts else {
            return;
        };
        let parts = [
            parts.draft_ms,
            parts.build_ms,
            parts.verify_ms,
            parts.sample_ms,
            parts.commit_ms,
        ];
        let device: f64 = parts.iter().sum();
        let host = (timing.total_ms - device).max(0.0);
        let parts = parts.into_iter().chain([host]);
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
        metrics.http_active.add(1.0);
        ActiveHttp(metrics)
    }
}

impl Drop for ActiveHttp {
    fn drop(&mut self) {
        self.0.http_active.add(-1.0);
    }
}

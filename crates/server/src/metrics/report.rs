//! What a scrape takes over from the engine.

use engine::{CacheStats, EngineStats, ModelInfo, Phase, Status};

use super::Metrics;
use super::families::*;
use super::process;
use super::registry::Registry;
use crate::introspection::cache_hit_rate;
use crate::log_queue;

/// Tokens of a page of the KV pool.
const PAGE_TOKENS: usize = 64;

impl Metrics {
    /// The text of `/metrics`: everything, under both families of names and our own.
    pub(crate) fn report(&self, info: &ModelInfo, stats: &EngineStats, status: &Status) -> String {
        self.registry.scrape(|registry| {
            pools(registry, info, stats);
            speculation(registry, stats);
            own(registry, info, stats);
            prefix_cache(registry, &stats.prefix_cache);
            start(registry, status);
            memory(registry, info);
        })
    }
}

/// What stays as it is at start.
pub(super) fn constants(registry: &Registry) {
    registry.gauge(&GRAPH_MEMORY, &[]).set(0.0);
}

fn prefix_cache(registry: &Registry, cache: &CacheStats) {
    for (family, total) in [
        (PREFIX_QUERIES, cache.query_tokens),
        (PREFIX_HITS, cache.hit_tokens),
        (CACHED_TOKENS, cache.hit_tokens),
    ] {
        registry.counter(&family, &[]).raise_to(total);
    }
    let rate = registry.gauge(&CACHE_HIT_RATE, &[]);
    rate.set(cache_hit_rate(cache));
    for (memory, count) in [
        ("device", cache.device_snapshots),
        ("host", cache.host_snapshots),
    ] {
        let gauge = registry.gauge(&SNAPSHOTS, &[("memory", memory)]);
        gauge.set(count as f64);
    }
}

fn pools(registry: &Registry, info: &ModelInfo, stats: &EngineStats) {
    let share = |used: usize, total: usize| used as f64 / total.max(1) as f64;
    let tokens_used = stats.pages_used * PAGE_TOKENS;
    for (family, value) in [
        (RUNNING, stats.running as f64),
        (WAITING, stats.waiting as f64),
        (RETRACTED, stats.preempted as f64),
        (PAGE_USAGE, share(stats.pages_used, stats.pages_total)),
        (SLOT_USAGE, share(stats.slots_used, stats.slots_total)),
        (TOKENS_USED, tokens_used as f64),
        (TOKENS_TOTAL, info.tokens_total as f64),
        (THROUGHPUT, stats.tokens_per_second),
    ] {
        registry.gauge(&family, &[]).set(value);
    }
    registry
        .counter(&PREEMPTIONS, &[])
        .raise_to(stats.preemptions);
    let (page, pages) = (PAGE_TOKENS.to_string(), stats.pages_total.to_string());
    let labels: &[_] = &[("page_size", &*page), ("num_pages", &*pages)];
    registry.gauge(&SGLANG_CACHE, labels).set(1.0);
    let labels: &[_] = &[("block_size", &*page), ("num_gpu_blocks", &*pages)];
    registry.gauge(&VLLM_CACHE, labels).set(1.0);
}

fn speculation(registry: &Registry, stats: &EngineStats) {
    for (family, total) in [
        (DRAFTS, stats.drafts),
        (DRAFT_TOKENS, stats.draft_tokens),
        (ACCEPTED_TOKENS, stats.accepted_tokens),
    ] {
        registry.counter(&family, &[]).raise_to(total);
    }
    for (position, &count) in stats.accepted_per_position.iter().enumerate() {
        let position = position.to_string();
        let counter = registry.counter(&ACCEPTED_AT, &[("position", &position)]);
        counter.raise_to(count);
    }
    let drafts = stats.drafts.max(1) as f64;
    let accepted = stats.accepted_tokens as f64;
    for (family, mean) in [
        (MEAN_LENGTH, 1.0 + accepted / drafts),
        (ACCEPT_RATE, accepted / stats.draft_tokens.max(1) as f64),
        (MEAN_DRAFTED, stats.draft_tokens as f64 / drafts),
    ] {
        registry.gauge(&family, &[]).set(mean);
    }
}

fn own(registry: &Registry, info: &ModelInfo, stats: &EngineStats) {
    for shape in &stats.shapes {
        let labels: &[_] = &[("shape", &*shape.shape)];
        registry.counter(&SHAPE_STEPS, labels).raise_to(shape.steps);
        registry
            .counter(&SHAPE_ACCEPTED, labels)
            .raise_to(shape.accepted);
    }
    let lost = registry.counter(&LOG_LOST, &[]);
    lost.raise_to(log_queue::lines_lost());
    let age = stats.heartbeat_age.as_secs_f64();
    registry.gauge(&HEARTBEAT, &[]).set(age);
    let labels: &[_] = &[
        ("version", env!("CARGO_PKG_VERSION")),
        ("git", crate::BUILD),
        ("device", &*info.device),
    ];
    registry.gauge(&BUILD, labels).set(1.0);
}

/// Seconds of the phases that are over; 0 for those that are not.
fn start(registry: &Registry, status: &Status) {
    let phases = [
        (Phase::Init, "init"),
        (Phase::Download, "download"),
        (Phase::Weights, "weights"),
        (Phase::Warmup, "warmup"),
    ];
    for (phase, name) in phases {
        let times = status.phase_times.iter().filter(|(past, _)| *past == phase);
        let seconds: f64 = times.map(|(_, time)| time.as_secs_f64()).sum();
        registry.gauge(&STARTUP, &[("phase", name)]).set(seconds);
        if phase == Phase::Weights {
            registry.gauge(&WEIGHT_LOAD, &[]).set(seconds);
        }
    }
}

fn memory(registry: &Registry, info: &ModelInfo) {
    let lines = &info.plan.lines;
    let pages = lines.iter().filter(|line| line.part.ends_with("KV pages"));
    let pages: u64 = pages.map(|line| line.bytes).sum();
    let weights = info.plan.weight_bytes();
    for (family, bytes) in [(WEIGHT_MEMORY, weights), (KV_MEMORY, pages)] {
        registry.gauge(&family, &[]).set(bytes as f64 / 1e9);
    }
    // Only a GPU has memory of its own.
    if info.memory.is_some() {
        for line in lines {
            let gauge = registry.gauge(&GPU_MEMORY, &[("kind", line.part)]);
            gauge.set(line.bytes as f64);
        }
    }
    if let Some(bytes) = process::resident_bytes() {
        registry.gauge(&RESIDENT, &[]).set(bytes as f64);
    }
    if let Some(count) = process::open_fds() {
        registry.gauge(&OPEN_FDS, &[]).set(count as f64);
    }
}

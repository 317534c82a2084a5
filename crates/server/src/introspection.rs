//! What routers and benchmarks ask about a server: `/model_info`, `/server_info`, `/v1/loads`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use engine::{CacheStats, EngineStats, MemoryPlan, Phase};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::{ApiError, shorten};
use crate::health::condition;
use crate::usage::{algorithm, budget};

/// Tokens of a page of the KV pool.
const PAGE_TOKENS: usize = 64;
/// Bytes of a gigabyte as the other servers count.
const GIGABYTE: f64 = 1e9;

/// Facts about the model.
pub(crate) async fn model_info(State(app): State<Arc<App>>) -> Json<Value> {
    let (config, info) = (&app.config, app.engine.info());
    let sampling = match config.rules.generation_config {
        true => Value::Object(app.files.generation.sampling.clone()),
        false => json!({}),
    };
    Json(json!({
        "model_path": config.model_path,
        "served_model_name": config.served_model_names.first(),
        "tokenizer_path": config.model_path,
        "is_generation": true,
        "has_image_understanding": false,
        "model_type": info.model_type,
        "architectures": info.architectures,
        "reasoning_parser": config.flags.get("reasoning_parser").unwrap_or(&"qwen3".into()),
        "tool_call_parser": config.flags.get("tool_call_parser"),
        "max_model_len": info.context_length,
        "weight_version": "default",
        "preferred_sampling_params": sampling,
        "load_format": config.flags.get("load_format"),
        "dtype": config.flags.get("dtype"),
        "quantization": null,
    }))
}

/// Every flag under its name with underscores, then what came of them.
pub(crate) async fn server_info(State(app): State<Arc<App>>) -> Json<Value> {
    let (config, info) = (&app.config, app.engine.info());
    let (stats, status) = (app.engine.stats(), app.engine.status());
    let mut object = config.flags.clone();
    let startup: Option<f64> = (status.phase == Phase::Ready).then(|| {
        let seconds = status
            .phase_times
            .iter()
            .map(|(_, time)| time.as_secs_f64());
        seconds.sum()
    });
    let memory = info
        .memory
        .map(|memory| json!({"free_bytes_at_start": memory.free, "total_bytes": memory.total}));
    let effective = json!({
        "model_path": config.model_path,
        "tokenizer_path": config.model_path,
        "served_model_name": config.served_model_names.first(),
        "tp_size": 1,
        "dp_size": 1,
        "context_length": info.context_length,
        "max_total_tokens": info.tokens_total,
        "max_running_requests": stats.slots_total,
        "speculative_algorithm": algorithm(info.algorithm),
        "speculative_ddtree_budget": budget(info),
        "speculative_ddtree_topk_cap": info.topk,
        "speculative_num_draft_tokens": info.tree_rows_max,
        "version": env!("CARGO_PKG_VERSION"),
        "build": crate::BUILD,
        "device": info.device,
        "startup_time": startup,
        "uptime_s": app.elapsed().as_secs_f64(),
        "status": condition(&app, &status),
        "step_times_ms": status.step_times_ms.iter().cloned().collect::<HashMap<_, _>>(),
        "memory": {"plan": plan_lines(&info.plan), "device": memory},
        "internal_states": [{
            "avg_spec_accept_length": mean_accept_length(&stats),
            "last_gen_throughput": stats.tokens_per_second,
            "memory_usage": memory_usage(&info.plan, info.tokens_total),
            "effective_max_running_requests_per_dp": stats.slots_total,
        }],
    });
    if let Value::Object(effective) = effective {
        object.extend(effective);
    }
    Json(object.into())
}

fn plan_lines(plan: &MemoryPlan) -> Value {
    let line = |line: &engine::PlanLine| json!({"part": line.part, "bytes": line.bytes});
    plan.lines.iter().map(line).collect()
}

fn memory_usage(plan: &MemoryPlan, tokens: usize) -> Value {
    let gigabytes = |words: &[&str]| -> f64 {
        let found = |part: &str| words.iter().any(|word| part.contains(word));
        let lines = plan.lines.iter().filter(|line| found(line.part));
        lines.map(|line| line.bytes as f64 / GIGABYTE).sum()
    };
    json!({
        "weight": gigabytes(&["target weights"]),
        "draft": gigabytes(&["drafter weights"]),
        "kvcache": gigabytes(&["KV pages"]),
        "state": gigabytes(&["recurrent state", "state snapshots"]),
        "graph": 0.0,
        "token_capacity": tokens,
    })
}

fn mean_accept_length(stats: &EngineStats) -> f64 {
    1.0 + stats.accepted_tokens as f64 / stats.drafts.max(1) as f64
}

/// How busy the server is; `include` adds sections, `format=prometheus` changes the form.
pub(crate) async fn loads(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, ApiError> {
    let stats = app.engine.stats();
    let mut load = core_load(&app, &stats);
    for section in query.get("include").map_or("", String::as_str).split(',') {
        let more = match section.trim() {
            "" | "core" => continue,
            "queues" => json!({"queues": {"waiting": stats.waiting, "retracted": stats.preempted}}),
            "memory" => {
                let info = app.engine.info();
                json!({"memory": memory_usage(&info.plan, info.tokens_total)})
            }
            "spec" => json!({"speculative": {
                "accept_length": mean_accept_length(&stats),
                "accept_rate": stats.accepted_tokens as f64 / stats.draft_tokens.max(1) as f64,
                "verify_steps": stats.drafts,
            }}),
            other => {
                let message = format!(
                    "Invalid 'include': expected core, queues, memory or spec, got '{}'.",
                    shorten(other)
                );
                return Err(ApiError::invalid("invalid_value", "include", message));
            }
        };
        if let Value::Object(more) = more {
            load.extend(more);
        }
    }
    match query.get("format").map(String::as_str) {
        None | Some("json") => Ok(Json(json!({
            "timestamp": humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            "version": env!("CARGO_PKG_VERSION"),
            "accelerator": accelerator(&app.engine.info().device),
            "num_accelerators": 1,
            "loads": [load],
        }))
        .into_response()),
        Some("prometheus") => {
            let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
            Ok((kind, prometheus(&load)).into_response())
        }
        Some(other) => {
            let message = format!(
                "Invalid 'format': expected json or prometheus, got '{}'.",
                shorten(other)
            );
            Err(ApiError::invalid("invalid_value", "format", message))
        }
    }
}

/// Share of the prompt tokens that were found in the prefix cache, since start.
pub(crate) fn cache_hit_rate(cache: &CacheStats) -> f64 {
    cache.hit_tokens as f64 / cache.query_tokens.max(1) as f64
}

fn core_load(app: &App, stats: &EngineStats) -> Map<String, Value> {
    let share = |used: usize, total: usize| used as f64 / total.max(1) as f64;
    let tokens_total = app.engine.info().tokens_total;
    let tokens = (stats.pages_used * PAGE_TOKENS).min(tokens_total);
    let load = json!({
        "dp_rank": 0,
        "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting,
        "num_total_reqs": stats.running + stats.waiting,
        "num_used_tokens": tokens,
        "max_total_num_tokens": tokens_total,
        "token_usage": share(stats.pages_used, stats.pages_total),
        "gen_throughput": stats.tokens_per_second,
        "cache_hit_rate": cache_hit_rate(&stats.prefix_cache),
        "utilization": share(stats.running, stats.slots_total),
        "max_running_requests": stats.slots_total,
    });
    match load {
        Value::Object(load) => load,
        _ => Map::new(),
    }
}

/// Numbers of a load as gauges, those of a section under its name.
fn prometheus(load: &Map<String, Value>) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, value: &Value| {
        if value.is_number() {
            text.push_str(&format!(
                "# TYPE sglang_{name} gauge\nsglang_{name}{{dp_rank=\"0\"}} {value}\n"
            ));
        }
    };
    for (name, value) in load.iter().filter(|(name, _)| *name != "dp_rank") {
        match value {
            Value::Object(section) => {
                for (inner, value) in section {
                    gauge(&format!("{name}_{inner}"), value);
                }
            }
            value => gauge(name, value),
        }
    }
    text
}

fn accelerator(device: &str) -> &'static str {
    match device.to_ascii_lowercase().contains("cpu") {
        true => "cpu",
        false => "cuda",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_gauges_too() {
        let Value::Object(load) = json!({"dp_rank": 0, "num_running_reqs": 2,
            "queues": {"waiting": 1}, "name": "x"})
        else {
            panic!("an object");
        };
        let expected = "# TYPE sglang_num_running_reqs gauge\n\
            sglang_num_running_reqs{dp_rank=\"0\"} 2\n\
            # TYPE sglang_queues_waiting gauge\nsglang_queues_waiting{dp_rank=\"0\"} 1\n";
        assert_eq!(prometheus(&load), expected);
    }
}

//! The numbers of `/metrics` agree with the answers and with each other.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use server::{Server, chat, with};

const CHAT: &str = "/v1/chat/completions";

/// Samples that must exist before anything happened.
const AT_START: &[&str] = &[
    "sglang:num_running_reqs",
    "vllm:num_requests_running",
    "sglang:num_queue_reqs",
    "vllm:num_requests_waiting",
    "sglang:token_usage",
    "sglang:full_token_usage",
    "vllm:kv_cache_usage_perc",
    "sglang:mamba_usage",
    "sglang:num_used_tokens",
    "sglang:max_total_num_tokens",
    "sglang:cache_config_info",
    "vllm:cache_config_info",
    "sglang:gen_throughput",
    "sglang:cache_hit_rate",
    "sglang:cached_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_cached_total",
    "sglang:prompt_tokens_total",
    "vllm:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "vllm:generation_tokens_total",
    "sglang:num_requests_total",
    "sglang:num_aborted_requests_total",
    "vllm:request_success_total",
    "vllm:admission_rejections_total",
    "sglang:num_retracted_reqs",
    "vllm:num_preemptions_total",
    "sglang:time_to_first_token_seconds_count",
    "vllm:time_to_first_token_seconds_count",
    "sglang:inter_token_latency_seconds_count",
    "vllm:inter_token_latency_seconds_count",
    "sglang:request_time_per_output_token_seconds_count",
    "vllm:request_time_per_output_token_seconds_count",
    "sglang:e2e_request_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
    "sglang:queue_time_seconds_count",
    "vllm:request_queue_time_seconds_count",
    "sglang:per_stage_req_latency_seconds_count",
    "vllm:request_prefill_time_seconds_count",
    "vllm:request_decode_time_seconds_count",
    "vllm:request_prompt_tokens_count",
    "vllm:request_generation_tokens_count",
    "sglang:spec_verify_calls_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "sglang:spec_accept_length",
    "sglang:spec_accept_rate",
    "sglang:spec_num_draft_tokens",
    "sglang:startup_time_seconds",
    "sglang:weight_load_duration_seconds",
    "sglang:weight_memory_usage_gb",
    "sglang:kv_cache_memory_usage_gb",
    "sglang:graph_memory_usage_gb",
    "sglang:http_requests_total",
    "sglang:http_responses_total",
    "sglang:http_requests_active",
    "spinney_step_phase_seconds_count",
    "spinney_tree_nodes_count",
    "spinney_accept_length_count",
    "spinney_spec_disabled_total",
    "spinney_ignored_fields_total",
    "spinney_engine_heartbeat_age_seconds",
    "spinney_state_snapshots",
    "spinney_clients_disconnected_total",
    "spinney_log_lines_lost_total",
    "spinney_build_info",
    "process_resident_memory_bytes",
    "process_open_fds",
];

#[test]
fn every_sample_exists_from_the_start() {
    let server = Server::start(&[]);
    let reply = server.get("/metrics");
    assert!(
        reply
            .header("content-type")
            .starts_with("text/plain; version=0.0.4")
    );
    for name in AT_START {
        let start = format!("\n{name}{{model_name=\"spinney-tiny\"");
        assert!(reply.text.contains(&start), "{name}\n{}", reply.text);
    }
    for labels in [
        "position=\"0\"",
        "position=\"14\"",
        "finished_reason=\"tool_calls\"",
        "reason=\"queue_full\"",
        "field=\"user\"",
        "phase=\"weights\"",
        "phase=\"host\"",
        "endpoint=\"/v1/chat/completions\",method=\"POST\"",
    ] {
        assert!(reply.text.contains(labels), "{labels}\n{}", reply.text);
    }
    for name in ["process_resident_memory_bytes", "process_open_fds"] {
        assert!(server.metric(name) > 1.0, "{name}");
    }
    assert!(server.metric("sglang:weight_memory_usage_gb") > 0.001);
    assert!(server.metric("sglang:weight_load_duration_seconds") > 0.0);
}

#[test]
fn families_of_names_are_chosen() {
    for (flag, kept, dropped) in [("sglang", "sglang:", "vllm:"), ("vllm", "vllm:", "sglang:")] {
        let server = Server::start(&["--metrics-prefixes", flag]);
        server
            .post(CHAT, &with(chat("Hi"), json!({"max_tokens": 2})))
            .ok();
        let text = server.get("/metrics").text;
        assert!(
            text.contains(&format!("\n{kept}generation_tokens_total{{")),
            "{text}"
        );
        assert!(!text.contains(dropped), "{text}");
        assert!(text.contains("\nspinney_accept_length_count{"), "{text}");
    }
    let server = Server::start(&["--disable-metrics"]);
    assert_eq!(server.get("/metrics").status, 404);
}

/// All samples by name, summed over labels.
fn samples(server: &Server) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    for line in server.get("/metrics").text.lines() {
        let Some((name, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let value: f64 = rest.rsplit(' ').next().unwrap().parse().unwrap();
        *samples.entry(name.to_owned()).or_insert(0.0) += value;
    }
    samples
}

/// Requests of all kinds, none with an end of its own making.
fn requests() -> Vec<(&'static str, Value)> {
    let question = "What is the capital of France?";
    vec![
        (CHAT, chat(question)),
        (
            CHAT,
            with(chat(question), json!({"n": 3, "temperature": 1, "seed": 2})),
        ),
        (
            CHAT,
            with(chat(question), json!({"stop": ["P"], "max_tokens": 64})),
        ),
        (
            CHAT,
            with(
                chat(question),
                json!({"max_tokens": 1, "speculative": false}),
            ),
        ),
        (
            CHAT,
            with(
                chat("Hi"),
                json!({"max_tokens": 33, "ignore_eos": true, "user": "u"}),
            ),
        ),
        (
            "/v1/completions",
            json!({"model": "", "prompt": ["a", "b"], "max_tokens": 9, "ignore_eos": true}),
        ),
    ]
}

#[test]
fn numbers_agree_with_answers() {
    let server = Server::start(&[]);
    let mut before = samples(&server);
    for (path, body) in requests() {
        let answer = server.post(path, &body).ok();
        let (usage, steps) = (&answer["usage"], &answer["metrics"]["speculative_decoding"]);
        let after = samples(&server);
        let rise = |name: &str| after[name] - before[name];
        let prompts = usage["prompt_tokens"].as_f64().unwrap() * body["n"].as_f64().unwrap_or(1.0);
        for family in ["sglang", "vllm"] {
            let tokens = rise(&format!("{family}:generation_tokens_total"));
            assert_eq!(usage["completion_tokens"].as_f64(), Some(tokens), "{body}");
            assert_eq!(
                rise(&format!("{family}:prompt_tokens_total")),
                prompts,
                "{body}"
            );
        }
        for (name, key) in [
            ("spinney_tree_nodes_count", "num_spec_steps"),
            ("spinney_tree_nodes_sum", "num_draft_tokens"),
            ("spinney_accept_length_count", "num_spec_steps"),
        ] {
            assert_eq!(steps[key].as_f64(), Some(rise(name)), "{name} of {body}");
        }
        before = after;
    }
    assert!(before["spinney_tree_nodes_sum"] > 0.0);
}

#[test]
fn numbers_agree_with_each_other() {
    let server = Server::start(&[]);
    let mut sequences = 0.0;
    for (path, body) in requests() {
        let answer = server.post(path, &body).ok();
        sequences += answer["choices"].as_array().unwrap().len() as f64;
    }
    let now = samples(&server);
    let value = |name: &str| now[name];
    let steps = value("sglang:spec_verify_calls_total");
    assert_eq!(value("vllm:spec_decode_num_drafts_total"), steps);
    let accepted = value("vllm:spec_decode_num_accepted_tokens_total");
    assert!(accepted > 0.0);
    assert_eq!(
        value("vllm:spec_decode_num_accepted_tokens_per_pos_total"),
        accepted
    );
    for name in [
        "sglang:time_to_first_token_seconds_count",
        "vllm:time_to_first_token_seconds_count",
        "sglang:e2e_request_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "sglang:queue_time_seconds_count",
        "vllm:request_queue_time_seconds_count",
        "vllm:request_prefill_time_seconds_count",
        "vllm:request_decode_time_seconds_count",
        "vllm:request_prompt_tokens_count",
        "vllm:request_generation_tokens_count",
        "vllm:request_success_total",
        "sglang:num_requests_total",
    ] {
        assert_eq!(value(name), sequences, "{name}");
    }
    let tokens = value("vllm:generation_tokens_total");
    // Each token but the first of its sequence was waited for once.
    assert_eq!(
        value("vllm:inter_token_latency_seconds_count"),
        tokens - sequences
    );
    assert_eq!(value("vllm:request_generation_tokens_sum"), tokens);
    assert_eq!(value("spinney_spec_disabled_total"), 1.0);
    assert_eq!(value("spinney_ignored_fields_total"), 1.0);
    assert_eq!(value("vllm:admission_rejections_total"), 0.0);
}

/// Shares of accepted drafts fall from position to position.
#[test]
fn positions_fall() {
    let server = Server::start(&["--speculative-algorithm=DFLASH"]);
    server
        .post(
            CHAT,
            &with(chat("Hi"), json!({"max_tokens": 60, "ignore_eos": true})),
        )
        .ok();
    let text = server.get("/metrics").text;
    let mut before = f64::INFINITY;
    for position in 0..15 {
        let label =
            format!("per_pos_total{{model_name=\"spinney-tiny\",position=\"{position}\"}} ");
        let (_, rest) = text.split_once(&label).unwrap();
        let count: f64 = rest.lines().next().unwrap().parse().unwrap();
        assert!(count <= before, "{position}");
        before = count;
    }
}

#[test]
fn aborted_requests_are_counted_apart() {
    let server = Server::start(&[]);
    let extra = json!({"ignore_eos": true, "stream": true, "rid": "a", "speculative": false});
    let mut stream = server.begin(CHAT, &with(chat("Hi"), extra));
    let limit = Duration::from_secs(20);
    server.until_metric("vllm:num_requests_running", 1.0, limit);
    let reply = server.post("/abort_request", &json!({"rid": "a"}));
    assert_eq!(reply.ok()["aborted"], 1);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    let samples = samples(&server);
    assert_eq!(samples["sglang:num_aborted_requests_total"], 1.0);
    assert_eq!(samples["vllm:request_success_total"], 1.0);
    assert_eq!(samples["vllm:e2e_request_latency_seconds_count"], 0.0);
    let label = "finished_reason=\"abort\"} 1\n";
    assert!(server.get("/metrics").text.contains(label));
    server.until_metric("sglang:http_requests_active", 1.0, limit);
    let _: Value = server.get("/health").ok();
}

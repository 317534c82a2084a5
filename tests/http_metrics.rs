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
    assert_eq!(samples["vllm:e2e_request_latency_seconds_count"], 1.0);
    let label = "finished_reason=\"abort\"} 1\n";
    assert!(server.get("/metrics").text.contains(label));
    server.until_metric("sglang:http_requests_active", 1.0, limit);
    let _: Value = server.get("/health").ok();
}

/// Waits until nothing runs or waits, and looks.
fn samples_at_rest(server: &Server) -> BTreeMap<String, f64> {
    let limit = Duration::from_secs(20);
    for gauge in [RUNNING, WAITING, "sglang:mamba_usage"] {
        server.until_metric(gauge, 0.0, limit);
    }
    samples(server)
}

const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";

/// Each sequence is in each of these once, and in the others if it had a first token.
fn check_histograms(now: &BTreeMap<String, f64>, sequences: f64, begun: f64) {
    for name in [
        "sglang:e2e_request_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "sglang:queue_time_seconds_count",
        "vllm:request_queue_time_seconds_count",
        "vllm:request_prompt_tokens_count",
        "vllm:request_generation_tokens_count",
        "vllm:request_success_total",
        "sglang:num_requests_total",
    ] {
        assert_eq!(now[name], sequences, "{name}");
    }
    for name in [
        "sglang:time_to_first_token_seconds_count",
        "vllm:time_to_first_token_seconds_count",
        "vllm:request_prefill_time_seconds_count",
        "vllm:request_decode_time_seconds_count",
    ] {
        assert_eq!(now[name], begun, "{name}");
    }
    let tokens = now["vllm:generation_tokens_total"];
    assert_eq!(now["vllm:request_generation_tokens_sum"], tokens);
    let prompts = now["vllm:prompt_tokens_total"];
    assert_eq!(now["vllm:request_prompt_tokens_sum"], prompts);
}

/// A request for a stream without an end, and one whose prompt takes long.
fn endless() -> (&'static str, Value) {
    let slow = json!({"ignore_eos": true, "stream": true, "speculative": false});
    (CHAT, with(chat("Tell me a story."), slow))
}

fn long() -> (&'static str, Value) {
    let prompt = vec![40; 3_500];
    let body = json!({"model": "spinney-tiny", "prompt": prompt, "max_tokens": 9, "stream": true});
    ("/v1/completions", body)
}

#[test]
fn every_sequence_is_in_every_histogram_once() {
    let flags = ["--max-running-requests=1", "--queue-timeout=2"];
    let server = Server::start(&[&flags[..], &["--chunked-prefill-size=64"]].concat());
    let limit = Duration::from_secs(20);
    let begin = |(path, body): (&str, Value), rid: &str| {
        server.begin(path, &with(body, json!({"rid": rid})))
    };
    let (mut sequences, mut begun) = (0.0, 0.0);
    // How it ends, with somebody in the only slot or not, and whether a token came.
    for leaves in [false, true] {
        let end = |stream: std::net::TcpStream, rid: &str| {
            if leaves {
                return drop(stream);
            }
            let aborted = server.post("/abort_request", &json!({"rid": rid})).ok();
            assert_eq!(aborted["aborted"], 1, "{rid}");
        };
        let mut running = begin(endless(), "decode");
        let mut seen = [0; 4_096];
        // Headers and first token come together.
        assert!(std::io::Read::read(&mut running, &mut seen).unwrap() > 0);
        let waiting = begin(endless(), "queue");
        server.until_metric(WAITING, 1.0, limit);
        end(waiting, "queue");
        server.until_metric(WAITING, 0.0, limit);
        end(running, "decode");
        (sequences, begun) = (sequences + 2.0, begun + 1.0);
        check_histograms(&samples_at_rest(&server), sequences, begun);
        let prefilled = begin(long(), "prefill");
        server.until_metric(RUNNING, 1.0, limit);
        end(prefilled, "prefill");
        sequences += 1.0;
        check_histograms(&samples_at_rest(&server), sequences, begun);
    }
    // One that waits for too long, and three choices that end by themselves.
    let running = begin(endless(), "");
    server.until_metric(RUNNING, 1.0, limit);
    let (path, body) = endless();
    assert_eq!(server.post(path, &body).status, 503);
    drop(running);
    server.until_metric(RUNNING, 0.0, limit);
    let body = json!({"model": "", "prompt": ["a", "b", "c"], "max_tokens": 2, "ignore_eos": true});
    server.post("/v1/completions", &body).ok();
    (sequences, begun) = (sequences + 5.0, begun + 4.0);
    let now = samples_at_rest(&server);
    check_histograms(&now, sequences, begun);
    // Nobody waited for long but the one who waited for too long.
    let queued = now["vllm:request_queue_time_seconds_sum"];
    assert!((2.0..30.0).contains(&queued), "{queued}");
}

#[test]
fn who_asks_for_openmetrics_gets_the_same_numbers() {
    let server = Server::start(&[]);
    for (path, body) in requests() {
        server.post(path, &body).ok();
    }
    let get = |accept: &str| {
        let head =
            format!("GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAccept: {accept}");
        let answer = server.raw(format!("{head}\r\n\r\n").as_bytes());
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_ascii_lowercase(), text.to_owned())
    };
    let (head, text) = get("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    let (plain_head, plain) = get("*/*");
    assert!(
        plain_head.contains("content-type: text/plain; version=0.0.4"),
        "{plain_head}"
    );
    let lines = text.strip_suffix("# EOF\n").unwrap().lines();
    let (mut family, mut kind) = ("", "");
    let mut names = Vec::new();
    for line in lines {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            (family, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# ") {
            let (_, rest) = rest.split_once(' ').unwrap();
            assert!(rest.starts_with(&format!("{family} ")), "{line}");
            continue;
        }
        let (name, labels) = line.split_once('{').unwrap();
        let endings: &[&str] = match kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            _ => &["_bucket", "_sum", "_count"],
        };
        let ending = name.strip_prefix(family).unwrap_or("?");
        assert!(endings.contains(&ending), "{line} in {family}, a {kind}");
        if let Some((_, bound)) = labels.split_once("le=\"").filter(|_| ending == "_bucket") {
            let bound = bound.split('"').next().unwrap();
            assert!(bound == "+Inf" || bound.contains(['.', 'e']), "{line}");
        }
        names.push(name);
    }
    let sample = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let mut expected: Vec<_> = (plain.lines().filter(sample))
        .map(|line| line.split_once('{').unwrap().0)
        .collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let total =
        "\nvllm:request_success_total{model_name=\"spinney-tiny\",finished_reason=\"length\"} ";
    let count = |text: &str| {
        text.split_once(total)
            .unwrap()
            .1
            .lines()
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(count(&text), count(&plain));
}

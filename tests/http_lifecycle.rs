//! Clients that go away, servers that end, and the numbers in between.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{Server, chat, events, mark, with};

const CHAT: &str = "/v1/chat/completions";
const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
/// For things that happen within a step or two.
const SOON: Duration = Duration::from_secs(2);
const LATER: Duration = Duration::from_secs(20);

/// Goes on until the context is full: thousands of tokens.
fn endless() -> Value {
    with(
        chat("Tell me a story."),
        json!({"ignore_eos": true, "stream": true}),
    )
}

/// Reads until a line has `part`.
fn read_until(stream: &mut BufReader<TcpStream>, part: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(part) {
        assert_ne!(stream.read_line(&mut seen).unwrap(), 0, "{seen}");
    }
    seen
}

#[test]
fn a_client_that_goes_away_takes_its_work_with_it() {
    let server = Server::start(&["--max-running-requests=1"]);
    // In the middle of a stream.
    let mut stream = BufReader::new(server.begin(CHAT, &endless()));
    read_until(&mut stream, "\"content\":\"");
    server.until_metric(RUNNING, 1.0, SOON);
    drop(stream);
    server.until_metric(RUNNING, 0.0, SOON);
    // Before a whole answer.
    let whole = server.begin(CHAT, &with(endless(), json!({"stream": false})));
    server.until_metric(RUNNING, 1.0, LATER);
    // In the queue, streamed and not.
    let queued = server.begin(CHAT, &endless());
    let also = server.begin(CHAT, &with(endless(), json!({"stream": false})));
    server.until_metric(WAITING, 2.0, LATER);
    drop((queued, also));
    server.until_metric(WAITING, 0.0, SOON);
    assert_eq!(server.metric(RUNNING), 1.0);
    drop(whole);
    server.until_metric(RUNNING, 0.0, SOON);
    server.until_metric("sglang:token_usage", 0.0, SOON);
    assert_eq!(server.metric("sglang:mamba_usage"), 0.0);
    assert_eq!(server.metric("sglang:num_aborted_requests_total"), 4.0);
    assert_eq!(server.metric("spinney_clients_disconnected_total"), 4.0);
    let answer = server
        .post(CHAT, &with(chat("Hi"), json!({"max_tokens": 3})))
        .ok();
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[test]
fn a_client_that_does_not_read_is_given_up_and_stops_nobody() {
    let server = Server::start(&["--slow-client-timeout=1"]);
    // About 20 MB in 14,000 events: more than socket buffers and the stream's channel hold.
    let body = json!({"model": "", "prompt": [40], "max_tokens": 2_000, "logprobs": 20,
        "stream": true, "stream_options": {"continuous_usage_stats": true}, "ignore_eos": true,
        "n": 7, "speculative": false});
    let lazy = server.begin("/v1/completions", &body);
    server.until_metric(RUNNING, 7.0, LATER);
    for _ in 0..3 {
        let body = with(chat("Hi"), json!({"max_tokens": 4}));
        server.post(CHAT, &body).ok();
    }
    server.until_metric(RUNNING, 0.0, Duration::from_secs(60));
    assert_eq!(server.metric("sglang:num_aborted_requests_total"), 7.0);
    drop(lazy);
}

#[test]
fn hidden_reasoning_is_no_silence() {
    let server = Server::start(&["--sse-keep-alive-interval=1"]);
    let thinking = json!({"enable_thinking": true, "include_reasoning": false,
        "speculative": false, "logit_bias": {(mark("</think>").to_string()): -100}});
    let mut stream = BufReader::new(server.begin(CHAT, &with(endless(), thinking)));
    let seen = read_until(&mut stream, ": keep-alive");
    assert!(!seen.contains("data:"), "{seen}");
}

#[test]
fn http_2_without_tls() {
    let server = Server::shared();
    let mut stream = server.connect();
    // The preface and an empty SETTINGS frame.
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    stream.write_all(&settings).unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!(frame[3..5], [4, 0], "the server's SETTINGS: {frame:?}");
}

#[test]
fn silence_is_filled_with_comments() {
    let server = Server::start(&["--max-running-requests=1", "--sse-keep-alive-interval=1"]);
    let running = server.begin(CHAT, &endless());
    server.until_metric(RUNNING, 1.0, LATER);
    let body = with(chat("Hi"), json!({"stream": true, "max_tokens": 2}));
    let mut waiting = BufReader::new(server.begin(CHAT, &body));
    let head = read_until(&mut waiting, ": keep-alive");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    drop(running);
    let mut rest = String::new();
    waiting.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
    assert!(rest.contains("data: [DONE]"), "{rest}");
}

#[test]
fn a_signal_lets_running_requests_end() {
    let mut server = Server::start(&[]);
    let body = with(endless(), json!({"max_tokens": 300, "speculative": false}));
    let mut stream = BufReader::new(server.begin(CHAT, &body));
    let mut text = read_until(&mut stream, "\"content\":\"");
    let idle = server.connect();
    server.signal("TERM");
    let end = Instant::now() + LATER;
    while server.get("/health").status == 200 {
        assert!(Instant::now() < end);
    }
    let health = server.get("/health");
    assert_eq!(
        (health.status, &health.json()["status"]),
        (503, &json!("draining"))
    );
    let reply = server.post(CHAT, &chat("Hi"));
    reply.refused(503, "server_error", Some("server_draining"), None);
    assert_eq!(reply.header("connection"), "close");
    assert!(reply.header("retry-after").parse::<u64>().unwrap() > 0);
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"finish_reason\":\"length\""), "{text}");
    assert!(text.contains("data: [DONE]"));
    assert_eq!(server.wait(), 0, "{}", server.log());
    drop(idle);
}

#[test]
fn requests_that_outlast_the_drain_are_told() {
    let mut server = Server::start(&["--drain-timeout=1"]);
    let mut stream = BufReader::new(server.begin(CHAT, &endless()));
    read_until(&mut stream, "\"content\":\"");
    let mut whole = server.begin(CHAT, &with(endless(), json!({"stream": false})));
    server.until_metric(RUNNING, 2.0, LATER);
    server.signal("TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    let chunks: Vec<_> = rest
        .split("\r\n")
        .filter(|line| line.contains("\"error\""))
        .collect();
    assert_eq!(chunks.len(), 1, "{rest}");
    assert!(chunks[0].contains("\"code\":\"server_draining\""), "{rest}");
    assert!(chunks[0].ends_with("data: [DONE]\n\n"), "{rest}");
    let mut answer = String::new();
    whole.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(server.wait(), 5, "{}", server.log());
}

#[test]
fn a_second_signal_ends_the_wait() {
    let mut server = Server::start(&[]);
    let mut stream = BufReader::new(server.begin(CHAT, &endless()));
    read_until(&mut stream, "\"content\":\"");
    server.signal("INT");
    let end = Instant::now() + LATER;
    while server.get("/health").status == 200 {
        assert!(Instant::now() < end);
    }
    let began = Instant::now();
    server.signal("TERM");
    assert_eq!(server.wait(), 5, "{}", server.log());
    assert!(began.elapsed() < Duration::from_secs(6));
}

/// A sample of each family that scrapers of either kind look for.
const SAMPLES: &[&str] = &[
    "sglang:num_running_reqs",
    "vllm:num_requests_running",
    "sglang:num_queue_reqs",
    "vllm:num_requests_waiting",
    "sglang:token_usage",
    "vllm:kv_cache_usage_perc",
    "sglang:mamba_usage",
    "sglang:max_total_num_tokens",
    "sglang:gen_throughput",
    "sglang:cache_hit_rate",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "vllm:generation_tokens_total",
    "sglang:num_requests_total",
    "vllm:num_preemptions_total",
    "sglang:time_to_first_token_seconds_count",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_sum",
    "sglang:e2e_request_latency_seconds_count",
    "vllm:request_queue_time_seconds_count",
    "sglang:queue_time_seconds_count",
    "vllm:request_prompt_tokens_count",
    "sglang:spec_verify_calls_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "spinney_accept_length_count",
    "sglang:spec_accept_length",
    "spinney_build_info",
    "vllm:cache_config_info",
    "vllm:request_success_total",
    "spinney_step_phase_seconds_count",
];

#[test]
fn counters_start_at_zero() {
    let server = Server::start(&[]);
    let text = server.get("/metrics").text;
    for name in SAMPLES {
        let start = format!("\n{name}{{model_name=\"spinney-tiny\"");
        assert!(text.contains(&start), "{name}\n{text}");
    }
    let last = "accepted_tokens_per_pos_total{model_name=\"spinney-tiny\",position=\"14\"} 0\n";
    assert!(text.contains(last), "{text}");
    assert!(text.contains("finished_reason=\"stop\"} 0\n"), "{text}");
}

#[test]
fn counters_add_up() {
    let server = Server::start(&[]);
    let mut tokens = 0;
    let mut prompt = 0;
    for extra in [
        json!({}),
        json!({"stop": "Paris"}),
        json!({"max_tokens": 7, "ignore_eos": true}),
        json!({"n": 2, "temperature": 1, "max_tokens": 20}),
    ] {
        let body = with(chat("What is the capital of France?"), extra);
        let usage = &server.post(CHAT, &body).ok()["usage"];
        tokens += usage["completion_tokens"].as_u64().unwrap();
        prompt += usage["prompt_tokens"].as_u64().unwrap() * body["n"].as_u64().unwrap_or(1);
    }
    for family in ["sglang", "vllm"] {
        assert_eq!(
            server.metric(&format!("{family}:generation_tokens_total")),
            tokens as f64
        );
        assert_eq!(
            server.metric(&format!("{family}:prompt_tokens_total")),
            prompt as f64
        );
        for name in [
            "e2e_request_latency_seconds_count",
            "time_to_first_token_seconds_count",
        ] {
            assert_eq!(server.metric(&format!("{family}:{name}")), 5.0);
        }
        // Every token but the first of each sequence.
        let between = server.metric(&format!("{family}:inter_token_latency_seconds_count"));
        assert_eq!(between, tokens as f64 - 5.0);
    }
    assert_eq!(server.metric("vllm:request_success_total"), 5.0);
    let accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total");
    assert!(accepted > 0.0);
    assert_eq!(
        server.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total"),
        accepted
    );
    let steps = server.metric("vllm:spec_decode_num_drafts_total");
    assert_eq!(server.metric("sglang:spec_verify_calls_total"), steps);
    assert!(server.metric("spinney_step_phase_seconds_count") > 0.0);
    assert_eq!(server.metric("sglang:token_usage"), 0.0);
}

#[test]
fn probes_and_lists() {
    let server = Server::shared();
    for path in ["/health", "/ready", "/livez", "/health/"] {
        assert_eq!(server.get(path).ok(), json!({"status": "ok"}), "{path}");
    }
    let root = server.get("/").ok();
    assert_eq!(
        (&root["name"], &root["model"]),
        (&json!("spinney"), &json!("spinney-tiny"))
    );
    let list = server.get("/v1/models").ok();
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert_eq!(
        (&model["id"], &model["object"]),
        (&json!("spinney-tiny"), &json!("model"))
    );
    assert_eq!(model["owned_by"], "local");
    assert_eq!(model["max_model_len"], 4096);
    assert_eq!(server.get("/v1/models/spinney-tiny").ok(), *model);
    let head = server.raw(b"HEAD /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    let reply = server.get("/health");
    assert!(reply.header("x-request-id").starts_with("req_"));
}

#[test]
fn many_clients_at_once_get_their_own_answers() {
    let server = Server::shared();
    let question = "What is the capital of France?";
    let alone = server.post(CHAT, &chat(question)).ok();
    let threads: Vec<_> = (0..24)
        .map(|index| {
            let server = Server::shared();
            let seed = json!({"seed": index, "temperature": 1, "max_tokens": 16});
            std::thread::spawn(move || {
                let body = chat(question);
                if index % 3 == 0 {
                    let text = server.post(CHAT, &with(body, json!({"stream": true}))).text;
                    let chunks = events(&text);
                    let parts = chunks
                        .iter()
                        .filter_map(|c| c["choices"][0]["delta"]["content"].as_str());
                    (index, json!(parts.collect::<String>()))
                } else if index % 3 == 1 {
                    let answer = server.post(CHAT, &body).ok();
                    (index, answer["choices"][0]["message"]["content"].clone())
                } else {
                    let body = with(body, seed);
                    let one = server.post(CHAT, &body).ok();
                    let two = server.post(CHAT, &body).ok();
                    assert_eq!(one["choices"], two["choices"]);
                    (index, Value::Null)
                }
            })
        })
        .collect();
    for thread in threads {
        let (index, text) = thread.join().unwrap();
        if index % 3 != 2 {
            assert_eq!(text, alone["choices"][0]["message"]["content"]);
        }
    }
}

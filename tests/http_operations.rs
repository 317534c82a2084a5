//! What those who run a server ask of it.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{Server, chat, with};

const CHAT: &str = "/v1/chat/completions";
const INVALID: &str = "invalid_request_error";
const RUNNING: &str = "vllm:num_requests_running";
const LATER: Duration = Duration::from_secs(20);

fn endless(extra: Value) -> Value {
    let body = json!({"ignore_eos": true, "stream": true, "speculative": false});
    with(with(chat("Tell me a story."), body), extra)
}

fn read_until(stream: &mut BufReader<TcpStream>, part: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(part) {
        assert_ne!(stream.read_line(&mut seen).unwrap(), 0, "{seen}");
    }
    seen
}

#[test]
fn requests_are_aborted_by_name() {
    let server = Server::start(&["--max-running-requests=2"]);
    let abort = |body: Value| server.post("/abort_request", &body).ok();
    assert_eq!(abort(json!({"rid": "nobody"})), json!({"aborted": 0}));
    let mut named = BufReader::new(server.begin(CHAT, &endless(json!({"rid": "mine"}))));
    read_until(&mut named, "\"content\":\"");
    let mut other = BufReader::new(server.begin(CHAT, &endless(json!({}))));
    let seen = read_until(&mut other, "\"content\":\"");
    let mut waiting = server.begin(CHAT, &endless(json!({"rid": "mine", "stream": false})));
    server.until_metric("vllm:num_requests_waiting", 1.0, LATER);
    assert_eq!(abort(json!({"rid": "mine"})), json!({"aborted": 2}));
    let mut rest = String::new();
    named.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"abort\""), "{rest}");
    assert!(
        rest.contains("data: [DONE]\n\n") && !rest.contains("\"error\""),
        "{rest}"
    );
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("\"finish_reason\":\"abort\""), "{answer}");
    assert!(answer.contains("\"completion_tokens\":0"), "{answer}");
    // The other one has the name that its answer has.
    let id = seen
        .split("\"id\":\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    assert!(id.starts_with("chatcmpl-"), "{id}");
    assert_eq!(abort(json!({"rid": id})), json!({"aborted": 1}));
    assert_eq!(abort(json!({"rid": id})), json!({"aborted": 0}));
    server.until_metric(RUNNING, 0.0, LATER);
    assert_eq!(server.metric("sglang:num_aborted_requests_total"), 3.0);
    assert_eq!(server.metric("spinney_clients_disconnected_total"), 0.0);
    let answer = server
        .post(CHAT, &with(chat("Hi"), json!({"max_tokens": 3})))
        .ok();
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[test]
fn all_requests_are_aborted_at_once() {
    let server = Server::start(&[]);
    let text = json!({"model": "", "prompt": ["a b", "c d"], "max_tokens": 3000,
        "ignore_eos": true, "speculative": false});
    let mut whole = server.begin("/v1/completions", &text);
    let native = json!({"text": "a", "stream": true, "rid": "r",
        "sampling_params": {"max_new_tokens": 3000, "ignore_eos": true}});
    let mut native = server.begin("/generate", &native);
    server.until_metric(RUNNING, 3.0, LATER);
    let reply = server.post("/abort_request", &json!({"abort_all": true}));
    assert_eq!(reply.ok(), json!({"aborted": 2}));
    let mut answer = String::new();
    whole.read_to_string(&mut answer).unwrap();
    assert_eq!(
        answer.matches("\"finish_reason\":\"abort\"").count(),
        2,
        "{answer}"
    );
    let mut events = String::new();
    native.read_to_string(&mut events).unwrap();
    assert!(
        events.contains("\"finish_reason\":{\"type\":\"abort\""),
        "{events}"
    );
    server.until_metric(RUNNING, 0.0, LATER);
    for body in [json!({}), json!({"rid": null}), json!({"abort_all": false})] {
        let reply = server.post("/abort_request", &body);
        let code = Some("missing_required_parameter");
        reply.refused(400, INVALID, code, Some("rid"));
    }
    let large = json!({"rid": "nobody", "unknown": "x".repeat(64 << 10)});
    let reply = server.post("/abort_request", &large);
    reply.refused(413, INVALID, Some("request_too_large"), None);
    let reply = server.post("/abort_request", &json!({"rid": 1}));
    reply.refused(400, INVALID, Some("invalid_type"), Some("rid"));
}

#[test]
fn only_an_idle_cache_is_flushed() {
    let server = Server::start(&[]);
    let cached = || {
        let mut body = chat(&"What is 17 plus 25? ".repeat(20));
        body["max_tokens"] = 1.into();
        let usage = &server.post(CHAT, &body).ok()["usage"];
        usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    for post in [false, true] {
        assert_eq!(cached(), 0);
        assert!(cached() >= 64);
        let reply = match post {
            true => server.post("/flush_cache", &json!({})),
            false => server.get("/flush_cache"),
        };
        let emptied = json!({"success": true, "message": "The prefix cache is empty."});
        assert_eq!(reply.ok(), emptied);
    }
    assert_eq!(cached(), 0);
    let running = server.begin(CHAT, &endless(json!({})));
    server.until_metric(RUNNING, 1.0, LATER);
    let reply = server.get("/flush_cache");
    reply.refused(400, INVALID, Some("invalid_value"), None);
    let began = Instant::now();
    let reply = server.get("/flush_cache?timeout=1");
    reply.refused(400, INVALID, Some("invalid_value"), None);
    assert!(began.elapsed() >= Duration::from_secs(1));
    let reply = server.get("/flush_cache?timeout=soon");
    reply.refused(400, INVALID, Some("invalid_value"), Some("timeout"));
    drop(running);
    server.get("/flush_cache?timeout=20").ok();
}

#[test]
fn administrators_have_a_key_of_their_own() {
    let server = Server::start(&["--api-key=user", "--admin-api-key=boss"]);
    let bearer = |key: &str| [("authorization", format!("Bearer {key}"))];
    let ask = |path: &str, key: &str| {
        let headers = bearer(key);
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, key)| (*name, key.as_str()))
            .collect();
        server.post_with(path, &headers, &json!({"abort_all": true}))
    };
    for path in ["/flush_cache", "/abort_request"] {
        assert_eq!(ask(path, "boss").status, 200);
        let reply = ask(path, "user");
        reply.refused(
            403,
            "permission_error",
            Some("insufficient_permissions"),
            None,
        );
        let reply = ask(path, "nobody");
        reply.refused(401, INVALID, Some("invalid_api_key"), None);
        let reply = server.post(path, &json!({"abort_all": true}));
        reply.refused(401, INVALID, Some("invalid_api_key"), None);
    }
    let users = Server::start(&["--api-key=user"]);
    assert_eq!(users.get("/flush_cache").status, 401);
    let reply = users.post_with("/flush_cache", &[("x-api-key", "user")], &json!({}));
    reply.ok();
    // What is open stays open, everything else is not.
    for path in [
        "/",
        "/health",
        "/livez",
        "/ready",
        "/ping",
        "/health_generate",
        "/metrics",
    ] {
        assert_eq!(users.get(path).status, 200, "{path}");
    }
    assert_eq!(users.get("/openapi.json").status, 200);
    for path in [
        "/v1/models",
        "/model_info",
        "/server_info",
        "/v1/loads",
        "/get_server_info",
    ] {
        assert_eq!(users.get(path).status, 401, "{path}");
    }
}

#[test]
fn a_probe_proves_that_tokens_come_and_counts_as_no_request() {
    let server = Server::start(&["--max-running-requests=1", "--max-queued-requests=1"]);
    let before = server.get("/metrics").text.lines().count();
    for _ in 0..3 {
        assert_eq!(server.get("/health_generate").ok(), json!({"status": "ok"}));
    }
    for name in ["vllm:generation_tokens_total", "vllm:prompt_tokens_total"] {
        assert_eq!(server.metric(name), 0.0, "{name}");
    }
    assert_eq!(server.metric("sglang:num_requests_total"), 0.0);
    server.until_metric(RUNNING, 0.0, LATER);
    assert!(before > 100);
    // Many callers at once take one place in the queue at most.
    let callers: Vec<_> = (0..8)
        .map(|_| server.connect())
        .map(|mut stream| {
            let text = b"GET /health_generate HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            std::io::Write::write_all(&mut stream, text).unwrap();
            stream
        })
        .collect();
    for mut caller in callers {
        let mut answer = String::new();
        caller.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[test]
fn routers_learn_what_they_ask_for() {
    let server = Server::start(&[
        "--served-model-name",
        "a",
        "b",
        "--max-running-requests=3",
        "--api-key=sesame",
        "--admin-api-key=sesame2",
        "--speculative-ddtree-budget=15",
    ]);
    let get = |path: &str| {
        let text = format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nx-api-key: sesame\r\nConnection: close\r\n\r\n"
        );
        let answer = server.raw(text.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        assert!(!body.contains("sesame"), "{body}");
        body
    };
    let object = |path: &str| -> Value { serde_json::from_str(&get(path)).unwrap() };
    let model = object("/model_info");
    assert_eq!(model["served_model_name"], "a");
    assert_eq!(model["is_generation"], true);
    assert_eq!(model["max_model_len"], 4096);
    assert_eq!(object("/get_model_info"), model);
    let info = object("/server_info");
    for (name, value) in [
        ("model_path", json!("spinney-tiny")),
        ("tokenizer_path", json!("spinney-tiny")),
        ("served_model_name", json!("a")),
        ("tp_size", json!(1)),
        ("dp_size", json!(1)),
        ("context_length", json!(4096)),
        ("max_running_requests", json!(3)),
        ("speculative_algorithm", json!("DDTREE")),
        ("speculative_ddtree_budget", json!(15)),
        ("speculative_num_draft_tokens", json!(16)),
        ("max_queued_requests", json!(256)),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(info[name], value, "{name}");
    }
    assert!(info["max_total_tokens"].as_u64().unwrap() > 0);
    assert!(info["startup_time"].as_f64().unwrap() > 0.0);
    let state = &info["internal_states"][0];
    assert_eq!(state["avg_spec_accept_length"], 1.0);
    assert_eq!(state["effective_max_running_requests_per_dp"], 3);
    assert!(state["memory_usage"]["weight"].as_f64().unwrap() > 0.0);
    assert!(object("/get_server_info")["uptime_s"].as_f64() >= info["uptime_s"].as_f64());
    let loads = object("/v1/loads?include=core,queues,memory,spec");
    let load = &loads["loads"][0];
    for name in ["num_running_reqs", "num_waiting_reqs", "num_used_tokens"] {
        assert_eq!(load[name], 0, "{name}");
    }
    assert_eq!(load["max_running_requests"], 3);
    assert!(load["memory"].is_object() && load["speculative"].is_object());
    let stamp = loads["timestamp"].as_str().unwrap();
    assert!(stamp.len() == 20 && stamp.ends_with('Z'), "{stamp}");
    let text = get("/v1/loads?format=prometheus");
    assert!(
        text.contains("\nsglang_num_running_reqs{dp_rank=\"0\"} 0\n"),
        "{text}"
    );
}

#[test]
fn the_root_answers_heads_and_nothing_answers_as_another_server() {
    let server = Server::shared();
    let head = server.raw(b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    for path in ["/version", "/api/tags", "/api/chat", "/v1/rerank"] {
        server
            .get(path)
            .refused(404, INVALID, Some("unknown_url"), None);
    }
    let reply = server.get("/v1/loads?include=everything");
    reply.refused(400, INVALID, Some("invalid_value"), Some("include"));
    let reply = server.get("/v1/loads?format=xml");
    reply.refused(400, INVALID, Some("invalid_value"), Some("format"));
}

#[test]
fn the_access_log_has_one_line_per_request() {
    let server = Server::start(&["--log-format=json"]);
    let body = with(chat("Hi"), json!({"max_tokens": 4, "ignore_eos": true}));
    let id = [("x-request-id", "whole")];
    let whole = server.post_with(CHAT, &id, &body).ok();
    let id = [("x-request-id", "streamed")];
    server.post_with(CHAT, &id, &with(body, json!({"stream": true})));
    server.post_with(CHAT, &[("x-request-id", "refused")], &json!({}));
    server.raw(
        b"HEAD /health HTTP/1.1\r\nHost: a\r\nx-request-id: head\r\nConnection: close\r\n\r\n",
    );
    let gone = with(endless(json!({})), json!({"user": "gone"})).to_string();
    let text = server::post_bytes(CHAT, &gone).replacen("\r\n", "\r\nx-request-id: gone\r\n", 1);
    let mut stream = server.connect();
    std::io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
    read_until(&mut BufReader::new(stream), "\"content\":\"");
    let line = |id: &str| -> Value {
        let end = Instant::now() + LATER;
        loop {
            let log = server.log();
            let lines: Vec<Value> = log
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .map(|line| line["fields"].clone())
                .filter(|line| line["request_id"] == id && line["message"] == "answered")
                .collect();
            assert!(lines.len() < 2, "{lines:?}");
            if let [line] = &lines[..] {
                return line.clone();
            }
            assert!(Instant::now() < end, "no line of {id} in\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for id in ["whole", "streamed"] {
        let line = line(id);
        for (name, value) in [
            ("method", json!("POST")),
            ("path", json!(CHAT)),
            ("status", json!(200)),
            ("prompt_tokens", whole["usage"]["prompt_tokens"].clone()),
            ("cached_tokens", json!(0)),
            ("output_tokens", json!(4)),
            ("finish_reason", json!("length")),
            ("client", json!("127.0.0.1")),
        ] {
            assert_eq!(line[name], value, "{id}: {name} in {line}");
        }
        for name in ["queue_ms", "ttft_ms", "total_ms", "accept_length"] {
            assert!(line[name].as_f64().unwrap() > 0.0, "{id}: {name} in {line}");
        }
        assert!(line["total_ms"].as_f64() > line["ttft_ms"].as_f64());
    }
    assert_eq!(line("whole")["completion_id"], whole["id"]);
    let refused = line("refused");
    let expected = (&json!(400), &json!("missing_required_parameter"));
    assert_eq!((&refused["status"], &refused["code"]), expected);
    assert!(refused.get("output_tokens").is_none(), "{refused}");
    assert_eq!(line("head")["status"], 200);
    let gone = line("gone");
    assert_eq!(
        (&gone["status"], &gone["finish_reason"]),
        (&json!(499), &json!("abort"))
    );
    assert!(gone["output_tokens"].as_u64() >= Some(1), "{gone}");
    for name in ["queue_ms", "ttft_ms"] {
        assert!(gone[name].as_f64() > Some(0.0), "{name} in {gone}");
    }
}

#[test]
fn times_in_the_log_have_two_decimals() {
    let flags = ["--log-format=json", "--speculative-algorithm=DFLASH"];
    let server = Server::start_with(&flags, &[]);
    let log = server.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let times: Vec<String> = lines
        .filter(|line| line["fields"]["message"] == "timed a step")
        .map(|line| line["fields"]["ms"].to_string())
        .collect();
    assert!(times.len() > 1, "{log}");
    for time in times {
        let decimals = time.split_once('.').map_or("", |(_, decimals)| decimals);
        assert!(decimals.len() <= 2, "{time}");
    }
}

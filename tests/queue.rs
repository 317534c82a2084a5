//! Who waits, for how long, and in which order they start.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{Server, chat, with};

const CHAT: &str = "/v1/chat/completions";
const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const SOON: Duration = Duration::from_secs(2);
const LATER: Duration = Duration::from_secs(30);

/// Goes on until the context is full: thousands of tokens.
fn endless() -> Value {
    let slow = json!({"ignore_eos": true, "stream": true, "speculative": false});
    with(chat("Tell me a story."), slow)
}

/// A server with one slot, and what runs there.
fn busy(flags: &[&str]) -> (Server, TcpStream) {
    let server = Server::start(&[&["--max-running-requests=1"], flags].concat());
    let running = server.begin(CHAT, &endless());
    server.until_metric(RUNNING, 1.0, LATER);
    (server, running)
}

#[test]
fn requests_that_wait_for_too_long_are_told_so() {
    let (server, running) = busy(&["--queue-timeout=1"]);
    for stream in [true, false] {
        let began = Instant::now();
        let reply = server.post(CHAT, &with(chat("Hi"), json!({"stream": stream})));
        reply.refused(503, "server_error", Some("queue_timeout"), None);
        assert!(began.elapsed() >= Duration::from_millis(900));
        let seconds: u64 = reply.header("retry-after").parse().unwrap();
        assert!((1..=60).contains(&seconds), "{seconds}");
    }
    assert_eq!(server.metric(WAITING), 0.0);
    assert_eq!(server.metric(RUNNING), 1.0, "what runs is not touched");
    drop(running);
    server.until_metric(RUNNING, 0.0, SOON);
    let answer = server.post(CHAT, &with(chat("Hi"), json!({"max_tokens": 3})));
    assert_eq!(answer.ok()["usage"]["completion_tokens"], 3);
}

#[test]
fn a_request_of_which_a_part_runs_has_started() {
    let (server, running) = busy(&["--queue-timeout=1", "--sse-keep-alive-interval=1"]);
    // Three prompts wait; one of them starts before their time is up, the others long after it.
    let body = json!({"model": "spinney-tiny", "prompt": [[40], [41], [42]], "ignore_eos": true,
        "max_tokens": 600, "speculative": false});
    let mut waiting = server.begin("/v1/completions", &body);
    server.until_metric(WAITING, 3.0, LATER);
    drop(running);
    server.until_metric(WAITING, 2.0, LATER);
    let began = Instant::now();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("\"completion_tokens\":1800"), "{answer}");
    assert!(began.elapsed() > Duration::from_secs(1), "the limit passed");
}

#[test]
fn an_event_tells_those_who_were_kept_waiting() {
    let (server, _running) = busy(&["--queue-timeout=2", "--sse-keep-alive-interval=1"]);
    let mut stream = server.begin(CHAT, &with(chat("Hi"), json!({"stream": true})));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains(": keep-alive"), "{answer}");
    assert!(answer.contains("\"code\":\"queue_timeout\""), "{answer}");
    assert!(answer.contains("data: [DONE]"), "{answer}");
}

#[test]
fn an_event_tells_those_whose_first_output_is_late() {
    let (server, _running) = busy(&["--request-timeout=2", "--sse-keep-alive-interval=1"]);
    let mut stream = server.begin(CHAT, &with(chat("Hi"), json!({"stream": true})));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("\"code\":\"request_timeout\""), "{answer}");
    server.until_metric(WAITING, 0.0, SOON);
}

#[test]
fn a_group_takes_places_in_the_queue_only_as_a_whole() {
    let (server, _running) = busy(&["--max-queued-requests=3", "--queue-full-status=503"]);
    let group = |prompts: usize| {
        let prompts = vec!["Hi"; prompts];
        json!({"model": "spinney-tiny", "prompt": prompts, "max_tokens": 1})
    };
    let _two = server.begin("/v1/completions", &group(2));
    server.until_metric(WAITING, 2.0, LATER);
    let reply = server.post("/v1/completions", &group(2));
    reply.refused(503, "rate_limit_error", Some("queue_full"), None);
    assert_eq!(server.metric(WAITING), 2.0, "no part of it was taken");
    assert_eq!(server.metric("sglang:num_aborted_requests_total"), 0.0);
    let _one = server.begin("/v1/completions", &group(1));
    server.until_metric(WAITING, 3.0, LATER);
}

/// Who gets an answer first: the number of the stream that says something.
fn first(streams: Vec<TcpStream>) -> usize {
    let (sender, receiver) = std::sync::mpsc::channel();
    for (index, stream) in streams.into_iter().enumerate() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            if BufReader::new(stream).read_line(&mut line).is_ok() {
                // Only the first one matters.
                let _ = sender.send(index);
            }
        });
    }
    receiver.recv_timeout(LATER).unwrap()
}

#[test]
fn urgent_requests_start_first_where_the_policy_says_so() {
    for (policy, winner) in [("priority", 1), ("fcfs", 0)] {
        let (server, running) = busy(&["--schedule-policy", policy]);
        let ask = |priority: Value| {
            let extra = json!({"priority": priority, "max_tokens": 400});
            server.begin(CHAT, &with(endless(), extra))
        };
        let mut streams = Vec::new();
        for (waiting, priority) in [json!(5), json!(-5), json!(null)].into_iter().enumerate() {
            streams.push(ask(priority));
            server.until_metric(WAITING, waiting as f64 + 1.0, LATER);
        }
        drop(running);
        assert_eq!(first(streams), winner, "{policy}");
    }
    let server = Server::start(&["--schedule-policy=priority"]);
    let reply = server.post(CHAT, &with(chat("Hi"), json!({"priority": "high"})));
    reply.refused(
        400,
        "invalid_request_error",
        Some("invalid_type"),
        Some("priority"),
    );
}

//! Clients that leave at any point of a request take its work with them.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{Server, chat, with};

const CHAT: &str = "/v1/chat/completions";
const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
/// Within which the gauges have to be back.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(30);
/// Resident memory that may come and go without being a leak.
const SLACK_KIB: u64 = 4 << 10;

/// Where a client leaves.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Queue,
    Prefill,
    FirstToken,
    Decode,
    Whole,
}

const PHASES: [Phase; 5] = [
    Phase::Queue,
    Phase::Prefill,
    Phase::FirstToken,
    Phase::Decode,
    Phase::Whole,
];

fn endless(extra: Value) -> Value {
    let body = json!({"ignore_eos": true, "stream": true, "speculative": false});
    with(with(chat("Tell me a story."), body), extra)
}

/// Reads events until `count` of them had text.
fn read_events(stream: &mut BufReader<TcpStream>, count: usize) {
    let mut line = String::new();
    let mut seen = 0;
    while seen < count {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream ended");
        seen += usize::from(line.contains("\"content\":\""));
    }
}

/// One request whose client leaves.
fn leave(server: &Server, phase: Phase) {
    match phase {
        Phase::Queue => {
            let running = server.begin(CHAT, &endless(json!({})));
            server.until_metric(RUNNING, 1.0, LATER);
            let waiting = server.begin(CHAT, &endless(json!({})));
            server.until_metric(WAITING, 1.0, LATER);
            drop(waiting);
            server.until_metric(WAITING, 0.0, SOON);
            assert_eq!(server.metric(RUNNING), 1.0, "the other one goes on");
            drop(running);
        }
        Phase::Prefill => {
            let body = json!({"model": "spinney-tiny", "prompt": vec![40; 3_500]});
            let stream = server.begin("/v1/completions", &body);
            server.until_metric(RUNNING, 1.0, LATER);
            drop(stream);
        }
        Phase::FirstToken | Phase::Decode => {
            let mut stream = BufReader::new(server.begin(CHAT, &endless(json!({}))));
            let events = match phase {
                Phase::FirstToken => 1,
                _ => 20,
            };
            read_events(&mut stream, events);
        }
        Phase::Whole => {
            let stream = server.begin(CHAT, &endless(json!({"stream": false})));
            server.until_metric(RUNNING, 1.0, LATER);
            drop(stream);
        }
    }
    server.until_metric(RUNNING, 0.0, SOON);
}

/// Everything that a request owns is free again.
fn check_free(server: &Server) {
    for gauge in [
        RUNNING,
        WAITING,
        "sglang:token_usage",
        "sglang:mamba_usage",
        "sglang:num_queue_reqs",
    ] {
        assert_eq!(server.metric(gauge), 0.0, "{gauge}");
    }
}

/// Resident memory in KiB.
fn resident(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.id());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap().trim_end_matches("kB").trim().parse().unwrap()
}

/// So many rounds of all phases; the first ones bring memory to what it stays at.
fn rounds(first: usize, count: usize) {
    // A small pool, all of which is used at once: pages that are first touched late look like a leak.
    let flags = [
        "--max-running-requests=1",
        "--chunked-prefill-size=128",
        "--max-total-tokens=4096",
    ];
    let server = Server::start(&[&flags[..], &["--log-level=warn"]].concat());
    let all = json!({"model": "spinney-tiny", "prompt": vec![40; 4_000], "max_tokens": 90});
    server
        .post("/v1/completions", &with(all, json!({"ignore_eos": true})))
        .ok();
    let round = || PHASES.iter().for_each(|&phase| leave(&server, phase));
    (0..first).for_each(|_| round());
    let before = resident(&server);
    let began = Instant::now();
    (0..count).for_each(|_| round());
    let after = resident(&server);
    check_free(&server);
    println!(
        "{} clients left in {:.1} s; resident memory {before} KiB before, {after} KiB after",
        PHASES.len() * (first + count),
        began.elapsed().as_secs_f64()
    );
    assert!(after <= before + SLACK_KIB, "{before} KiB grew to {after}");
    let left = server.metric("spinney_clients_disconnected_total");
    // In the queue two clients leave: the one that waits and the one it waits for.
    assert_eq!(left, ((PHASES.len() + 1) * (first + count)) as f64);
    let body = with(chat("Hi"), json!({"max_tokens": 3}));
    assert_eq!(
        server.post(CHAT, &body).ok()["usage"]["completion_tokens"],
        3
    );
}

#[test]
fn clients_that_leave_leave_nothing() {
    rounds(3, 7);
}

#[test]
#[ignore = "takes minutes; the same as above a thousand times, for changes to cancellation"]
fn a_thousand_clients_that_leave_leave_nothing() {
    rounds(20, 180);
}

#[test]
fn a_client_that_closes_its_half_is_gone() {
    let server = Server::start(&[]);
    for stream in [true, false] {
        let half = server.begin(CHAT, &endless(json!({"stream": stream})));
        server.until_metric(RUNNING, 1.0, LATER);
        half.shutdown(Shutdown::Write).unwrap();
        server.until_metric(RUNNING, 0.0, SOON);
    }
}

/// A frame of HTTP/2; stream 0 is the connection.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header with a name of HPACK's table and a value spelled out.
fn header(name: &[u8], value: &str) -> Vec<u8> {
    let mut bytes = name.to_vec();
    bytes.push(u8::try_from(value.len()).unwrap());
    bytes.extend(value.as_bytes());
    bytes
}

#[test]
fn a_stream_that_is_reset_ends_alone() {
    let (data, headers, reset, settings) = (0, 1, 3, 4);
    let (end_stream, end_headers, cancel) = (1, 4, 8_u32);
    let server = Server::start(&[]);
    let mut connection = server.connect();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(settings, 0, 0, &[]));
    // `:method: POST`, `:scheme: http`, then path, authority and type of the body.
    let mut block = vec![0x83, 0x86];
    block.extend(header(&[0x04], CHAT));
    block.extend(header(&[0x01], "spinney"));
    block.extend(header(&[0x0f, 0x10], "application/json"));
    for (stream, streaming) in [(1, true), (3, false)] {
        let body = endless(json!({"stream": streaming})).to_string();
        bytes.extend(frame(headers, end_headers, stream, &block));
        bytes.extend(frame(data, end_stream, stream, body.as_bytes()));
    }
    connection.write_all(&bytes).unwrap();
    server.until_metric(RUNNING, 2.0, LATER);
    for (stream, left) in [(1, 1.0), (3, 0.0)] {
        let frame = frame(reset, 0, stream, &cancel.to_be_bytes());
        connection.write_all(&frame).unwrap();
        server.until_metric(RUNNING, left, SOON);
    }
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let server = Server::start(&["--slow-client-timeout=1"]);
    // About 20 MB of events: more than socket buffers and the stream's channel hold.
    let body = json!({"model": "", "prompt": [40], "max_tokens": 2_000, "logprobs": 20,
        "stream": true, "stream_options": {"continuous_usage_stats": true}, "ignore_eos": true,
        "n": 7, "speculative": false});
    let mut lazy = server.begin("/v1/completions", &body);
    server.until_metric(RUNNING, 7.0, LATER);
    server.until_metric(RUNNING, 0.0, Duration::from_secs(60));
    // What was sent before can still be read; then the connection is gone, in mid-stream.
    let mut bytes = Vec::new();
    let end = lazy.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    assert!(!text.contains("[DONE]"), "the stream did not end");
    assert!(!text.ends_with("\r\n0\r\n\r\n"), "nor did its body");
    assert!(end.is_ok() || !matches!(end.unwrap_err().kind(), std::io::ErrorKind::WouldBlock));
}

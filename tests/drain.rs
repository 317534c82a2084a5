//! Signals: servers that leave, end and read their keys again.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{Server, chat, with};

const CHAT: &str = "/v1/chat/completions";
const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const LATER: Duration = Duration::from_secs(30);

fn endless() -> Value {
    let slow = json!({"ignore_eos": true, "stream": true, "speculative": false});
    with(chat("Tell me a story."), slow)
}

fn until_unhealthy(server: &Server) {
    let end = Instant::now() + LATER;
    while server.get("/health").status == 200 {
        assert!(Instant::now() < end, "still healthy");
    }
}

/// Sends a request on a connection that stays open, and reads the answer to its end.
fn exchange(connection: &mut BufReader<TcpStream>, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: spinney\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes()).unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(connection.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let length = head.to_ascii_lowercase();
    let length = length.split("content-length: ").nth(1).unwrap();
    let length: usize = length.lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    connection.read_exact(&mut body).unwrap();
    head
}

#[test]
fn a_server_that_leaves_says_so_before_it_refuses() {
    let mut server = Server::start(&["--drain-delay=3"]);
    let mut idle = BufReader::new(server.connect());
    exchange(&mut idle, "/livez");
    std::thread::sleep(Duration::from_millis(600));
    let began = Instant::now();
    server.signal("TERM");
    until_unhealthy(&server);
    for path in ["/health", "/ready"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 503);
        let body = reply.json();
        assert_eq!(body["status"], "draining");
        assert_eq!(body["error"]["code"], "server_draining");
    }
    server.get("/livez").ok();
    // Whoever has not heard of it yet is served.
    let answer = server.post(CHAT, &with(chat("Hi"), json!({"max_tokens": 3})));
    assert_eq!(answer.ok()["usage"]["completion_tokens"], 3);
    exchange(&mut idle, "/livez");
    assert!(began.elapsed() < Duration::from_secs(3), "within the delay");
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "an idle connection is closed");
    assert!(began.elapsed() >= Duration::from_secs(3));
    assert_eq!(server.wait(), 0, "{}", server.log());
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[test]
fn what_waits_is_served_to_its_end() {
    let mut server = Server::start(&["--max-running-requests=1"]);
    let limited = |tokens| with(endless(), json!({"max_tokens": tokens}));
    let mut running = server.begin(CHAT, &limited(300));
    server.until_metric(RUNNING, 1.0, LATER);
    let whole = with(limited(5), json!({"stream": false}));
    let mut waiting = [server.begin(CHAT, &limited(5)), server.begin(CHAT, &whole)];
    server.until_metric(WAITING, 2.0, LATER);
    server.signal("INT");
    until_unhealthy(&server);
    let mut answer = String::new();
    running.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"finish_reason\":\"length\""), "{answer}");
    for stream in &mut waiting {
        answer.clear();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("\"finish_reason\":\"length\""), "{answer}");
    }
    assert_eq!(server.wait(), 0, "{}", server.log());
}

#[test]
fn what_still_waits_at_the_limit_is_told() {
    let mut server = Server::start(&["--max-running-requests=1", "--drain-timeout=1"]);
    let _running = server.begin(CHAT, &endless());
    server.until_metric(RUNNING, 1.0, LATER);
    let mut waiting = server.begin(CHAT, &endless());
    server.until_metric(WAITING, 1.0, LATER);
    server.signal("TERM");
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("server_draining"), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("connection: close"));
    assert_eq!(server.wait(), 5, "{}", server.log());
}

#[test]
fn a_stream_that_is_cut_off_is_logged_as_what_it_was() {
    let mut server = Server::start(&["--drain-timeout=1", "--log-format=json"]);
    let mut running = server.begin(CHAT, &endless());
    server.until_metric(RUNNING, 1.0, LATER);
    server.signal("TERM");
    let mut answer = String::new();
    running.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("\"code\":\"server_draining\""), "{answer}");
    assert!(!answer.contains("\"finish_reason\":\""), "{answer}");
    assert_eq!(server.wait(), 5, "{}", server.log());
    let log = server.log();
    let lines = (log.lines()).filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines: Vec<Value> = lines
        .map(|line| line["fields"].clone())
        .filter(|line| line["message"] == "answered" && line["path"] == CHAT)
        .collect();
    let [line] = &lines[..] else {
        panic!("{log}");
    };
    for (name, value) in [
        ("status", json!(200)),
        ("code", json!("server_draining")),
        ("finish_reason", json!("abort")),
    ] {
        assert_eq!(line[name], value, "{name} in {line}");
    }
    // Of the tokens at the end there may be some that were not shown.
    let shown = answer.matches("\"content\":\"").count() as u64;
    assert!(
        line["output_tokens"].as_u64().unwrap() + 1 >= shown,
        "{line}"
    );
    assert!(line["ttft_ms"].as_f64().unwrap() > 0.0, "{line}");
}

#[test]
fn a_second_signal_does_not_wait_for_clients_that_do_not_read() {
    let mut server = Server::start(&["--drain-delay=60"]);
    let _unread = server.begin(CHAT, &endless());
    server.until_metric(RUNNING, 1.0, LATER);
    server.signal("INT");
    until_unhealthy(&server);
    let began = Instant::now();
    server.signal("INT");
    assert_eq!(server.wait(), 5, "{}", server.log());
    assert!(began.elapsed() < Duration::from_secs(4));
}

#[test]
fn keys_can_be_changed_while_it_serves() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "old\n").unwrap();
    let server = Server::start(&["--api-key-file", file.to_str().unwrap(), "--api-key=always"]);
    let status = |key: &str| {
        let bearer = format!("Bearer {key}");
        let body = with(chat("Hi"), json!({"max_tokens": 1}));
        server
            .post_with(CHAT, &[("authorization", &bearer)], &body)
            .status
    };
    let until = |key: &str, expected: u16| {
        let end = Instant::now() + LATER;
        while status(key) != expected {
            assert!(Instant::now() < end, "{key}: {}", server.log());
        }
    };
    assert_eq!(
        (status("old"), status("new"), status("always")),
        (200, 401, 200)
    );
    std::fs::write(&file, "# fresh\nnew\n").unwrap();
    assert_eq!(status("new"), 401, "not before it is told");
    server.signal("HUP");
    until("new", 200);
    assert_eq!((status("old"), status("always")), (401, 200));
    let administrate = |key: &str| {
        let keys = [("x-api-key", key)];
        server
            .post_with("/abort_request", &keys, &json!({"rid": "nobody"}))
            .status
    };
    let found = ["new", "old", "always"].map(administrate);
    assert_eq!(found, [200, 401, 200], "of administrators, too");
    // A file that cannot be read changes nothing.
    std::fs::remove_file(&file).unwrap();
    server.signal("HUP");
    let end = Instant::now() + LATER;
    while !server.log().contains("the keys are what they were") {
        assert!(Instant::now() < end, "{}", server.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((status("new"), status("old")), (200, 401));
}

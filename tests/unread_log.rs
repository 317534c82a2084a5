//! A server whose log nobody reads serves and ends all the same.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;
use server::{Server, chat, with};

const CHAT: &str = "/v1/chat/completions";
/// Each one is a line in the log; a pipe holds some 350 of them.
const REQUESTS: usize = 3_000;
/// What an end takes at most: the drain of an idle server, then a second for the log.
const SECONDS: Duration = Duration::from_secs(15);

/// Sends requests, each with its number as its id, on one connection.
fn ask_often(server: &Server) {
    let mut stream = server.connect();
    let mut answer = Vec::new();
    for number in 0..REQUESTS {
        let head = format!("GET /livez HTTP/1.1\r\nHost: spinney\r\nX-Request-Id: n{number}\r\n");
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // An answer of this path is one packet with one id in its head.
        let (id, mut bytes) = (format!("n{number}\r\n"), [0; 2048]);
        while !contains(&answer, &id) {
            let length = stream.read(&mut bytes).unwrap();
            assert!(length > 0, "the connection ends at {number}");
            answer.extend_from_slice(&bytes[..length]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{number}");
        while !answer.ends_with(b"}") {
            let length = stream.read(&mut bytes).unwrap();
            answer.extend_from_slice(&bytes[..length]);
        }
        answer.clear();
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

fn assert_ends(server: &mut Server, code: i32) {
    let began = Instant::now();
    assert_eq!(server.wait(), code);
    assert!(began.elapsed() < SECONDS, "{:?}", began.elapsed());
}

#[test]
fn requests_are_answered_and_the_server_drains() {
    for level in ["info", "debug"] {
        let mut server = Server::start_unread(&["--log-level", level]);
        ask_often(&server);
        assert_eq!(server.get("/livez").status, 200, "{level}");
        let talk = with(chat("What is 2+2?"), json!({"max_tokens": 8}));
        server.post(CHAT, &talk).ok();
        assert_eq!(server.get("/health").status, 200, "{level}");
        server.signal("TERM");
        assert_ends(&mut server, 0);
    }
}

#[test]
fn a_second_signal_ends_it() {
    let mut server = Server::start_unread(&["--drain-delay", "100"]);
    ask_often(&server);
    let endless = json!({"max_tokens": 4000, "ignore_eos": true, "stream": true});
    let mut stream = server.begin(CHAT, &with(chat("What is 2+2?"), endless));
    stream.read_exact(&mut [0; 12]).unwrap();
    server.signal("TERM");
    let until = Instant::now() + SECONDS;
    while server.get("/health").status == 200 {
        assert!(Instant::now() < until, "the first signal has no effect");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.signal("TERM");
    assert_ends(&mut server, 5);
}

#[test]
fn a_log_that_is_read_has_every_line_in_order() {
    let mut server = Server::start(&[]);
    ask_often(&server);
    assert_eq!(server.metric("spinney_log_lines_lost_total"), 0.0);
    server.signal("TERM");
    assert_ends(&mut server, 0);
    let log = server.log();
    let ids: Vec<_> = log
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once("request_id=\"n")?;
            rest.split('"').next()?.parse::<usize>().ok()
        })
        .collect();
    assert_eq!(ids, (0..REQUESTS).collect::<Vec<_>>());
    let last = log.lines().next_back().unwrap();
    assert!(last.contains("drained"), "{last}");
}

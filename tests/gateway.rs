//! HAProxy with the configuration of this repository, in front of two servers.
//!
//! Runs the command in `SPINNEY_HAPROXY`, else `haproxy`; without either the tests say so and pass.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{Server, chat, post_bytes, with};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";
const RUNNING: &str = "vllm:num_requests_running";
const SENT: &str = "sglang:num_requests_total";
const LATER: Duration = Duration::from_secs(30);

/// A balancer in front of some servers.
struct Gateway {
    child: Child,
    address: String,
    _folder: TempDir,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Either may fail only because it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn haproxy() -> Option<Command> {
    let program = std::env::var_os("SPINNEY_HAPROXY").unwrap_or_else(|| "haproxy".into());
    let named = std::env::var_os("SPINNEY_HAPROXY").is_some();
    match Command::new(&program).arg("-v").output() {
        Ok(_) => Some(Command::new(program)),
        Err(error) => {
            assert!(!named, "SPINNEY_HAPROXY: {error}");
            eprintln!("skipped: there is no haproxy ({error})");
            None
        }
    }
}

impl Gateway {
    /// The committed configuration with the addresses of these servers.
    fn start(servers: [&str; 2]) -> Option<Self> {
        let mut command = haproxy()?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/haproxy/haproxy.cfg");
        let mut text = std::fs::read_to_string(path).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        for (old, new) in [
            ("bind :8080", format!("bind {address}")),
            ("127.0.0.1:30000", servers[0].to_owned()),
            ("127.0.0.1:30001", servers[1].to_owned()),
        ] {
            assert!(text.contains(old), "{old}");
            text = text.replace(old, &new);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("haproxy.cfg");
        std::fs::write(&path, text).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = command
            .arg("-db")
            .arg("-f")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut gateway = Gateway {
            child,
            address,
            _folder: folder,
        };
        let end = Instant::now() + LATER;
        while TcpStream::connect(&gateway.address).is_err() {
            assert!(gateway.child.try_wait().unwrap().is_none(), "it has ended");
            assert!(Instant::now() < end, "it does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(gateway)
    }

    /// Sends a POST of JSON and leaves the answer to the caller.
    fn begin(&self, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LATER)).unwrap();
        let bytes = post_bytes(CHAT, &body.to_string());
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    }

    fn ask(&self, body: &Value) -> String {
        let mut answer = String::new();
        self.begin(body).read_to_string(&mut answer).unwrap();
        answer
    }
}

fn quick() -> Value {
    with(chat("Hi"), json!({"max_tokens": 4}))
}

fn pair(flags: &[&str]) -> [Server; 2] {
    [Server::start(flags), Server::start(flags)]
}

#[test]
fn events_pass_as_they_come_and_a_client_that_leaves_is_noticed() {
    let servers = pair(&[]);
    let Some(gateway) = Gateway::start(servers.each_ref().map(Server::address)) else {
        return;
    };
    let slow = json!({"ignore_eos": true, "stream": true, "speculative": false});
    let endless = with(chat("Tell me a story."), slow);
    let running = |expected: f64| {
        let end = Instant::now() + Duration::from_secs(5);
        while servers.iter().map(|one| one.metric(RUNNING)).sum::<f64>() != expected {
            assert!(Instant::now() < end, "expected {expected} running");
        }
    };
    // The first events are here long before the last ones are made.
    let mut stream = BufReader::new(gateway.begin(&endless));
    let mut seen = String::new();
    while seen.matches("data: ").count() < 3 {
        assert_ne!(stream.read_line(&mut seen).unwrap(), 0, "{seen}");
    }
    assert!(seen.starts_with("HTTP/1.1 200 "), "{seen}");
    assert!(!seen.contains("[DONE]"), "{seen}");
    running(1.0);
    drop(stream);
    running(0.0);
    let whole = gateway.begin(&with(endless, json!({"stream": false})));
    running(1.0);
    drop(whole);
    running(0.0);
}

#[test]
fn administration_is_left_to_those_at_the_servers() {
    let servers = pair(&[]);
    let Some(gateway) = Gateway::start(servers.each_ref().map(Server::address)) else {
        return;
    };
    let all = json!({"abort_all": true});
    let through = |path: &str| {
        let mut stream = TcpStream::connect(&gateway.address).unwrap();
        let bytes = post_bytes(path, &all.to_string());
        stream.write_all(bytes.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for path in ["/abort_request", "/abort_request/", "/flush_cache"] {
        assert!(through(path).starts_with("HTTP/1.1 403 "), "{path}");
        assert_eq!(servers[0].post(path, &all).status, 200, "{path}");
    }
    for path in [
        "//abort_request",
        "/%61bort_request",
        "/v1/../abort_request",
    ] {
        let answer = through(path);
        assert!(answer.starts_with("HTTP/1.1 4"), "{path}: {answer}");
    }
}

#[test]
fn a_server_that_is_drained_loses_no_request() {
    let [mut leaves, stays] = pair(&["--drain-delay=4"]);
    let Some(gateway) = Gateway::start([leaves.address(), stays.address()]) else {
        return;
    };
    let (done, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for stream in [true, false, true, false] {
            let (gateway, done, ended) = (&gateway, &done, &ended);
            scope.spawn(move || {
                let body = with(quick(), json!({"stream": stream}));
                while !ended.load(Ordering::Relaxed) {
                    let answer = gateway.ask(&body);
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                    assert!(answer.contains("\"finish_reason\":\""), "{answer}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let end = Instant::now() + LATER;
        while leaves.metric(SENT) < 3.0 || stays.metric(SENT) < 3.0 {
            assert!(Instant::now() < end, "both get requests");
        }
        leaves.signal("TERM");
        assert_eq!(leaves.wait(), 0, "{}", leaves.log());
        let before = (done.load(Ordering::Relaxed), stays.metric(SENT));
        std::thread::sleep(Duration::from_secs(2));
        ended.store(true, Ordering::Relaxed);
        let after = (done.load(Ordering::Relaxed), stays.metric(SENT));
        assert!(after.0 > before.0 && after.1 > before.1, "traffic moved");
    });
}

#[test]
fn a_refusal_by_a_server_that_ends_is_tried_elsewhere() {
    // Without a delay there is a time in which the balancer still sends requests to the first one.
    let [leaves, stays] = pair(&["--max-running-requests=4"]);
    let Some(gateway) = Gateway::start([leaves.address(), stays.address()]) else {
        return;
    };
    let slow = json!({"ignore_eos": true, "stream": true, "speculative": false});
    let endless = with(chat("Tell me a story."), slow);
    // Keeps the first server in its drain.
    let held = leaves.begin(CHAT, &endless);
    leaves.until_metric(RUNNING, 1.0, LATER);
    leaves.signal("TERM");
    let end = Instant::now() + LATER;
    while leaves.post(CHAT, &quick()).status != 503 {
        assert!(Instant::now() < end, "it drains");
    }
    for _ in 0..6 {
        let answer = gateway.ask(&quick());
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert!(stays.metric(SENT) >= 6.0);
    drop(held);
}

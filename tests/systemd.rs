//! The unit file, and what a service manager hears.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use server::{Server, chat, with};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";
const LATER: Duration = Duration::from_secs(60);

/// A service manager's end of the socket.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _folder: TempDir,
}

/// The assignments of one message.
type Message = Vec<String>;

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Manager {
            socket,
            path,
            _folder: folder,
        }
    }

    /// Starts a server that it manages.
    fn start(&self, flags: &[&str], watchdog_usec: &str) -> Server {
        let socket = self.path.to_str().unwrap();
        let variables = [("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", watchdog_usec)];
        Server::start_with(flags, &variables)
    }

    fn next(&self, limit: Duration) -> Option<Message> {
        let mut bytes = [0; 4096];
        self.socket.set_read_timeout(Some(limit)).unwrap();
        let length = self.socket.recv(&mut bytes).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        Some(text.lines().map(str::to_owned).collect())
    }

    /// Everything up to the message that has `line`.
    fn until(&self, line: &str) -> Vec<Message> {
        let end = Instant::now() + LATER;
        let mut seen = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Some(message) = self.next(left.max(Duration::from_millis(1))) else {
                panic!("no {line} in {seen:?}");
            };
            let found = message.iter().any(|found| found.starts_with(line));
            seen.push(message);
            if found {
                return seen;
            }
        }
    }
}

fn flat(messages: &[Message]) -> Vec<&str> {
    messages.iter().flatten().map(String::as_str).collect()
}

#[test]
fn a_service_manager_hears_of_every_stage() {
    let manager = Manager::new();
    let flags = ["--speculative-ddtree-budget=15", "--drain-timeout=40"];
    let mut server = manager.start(&flags, "1000000");
    let port = server.address().rsplit(':').next().unwrap().to_owned();
    let start = manager.until("READY=1");
    let (ready, loading) = start.split_last().unwrap();
    let serving = format!("STATUS=Serving spinney-tiny DDTREE b=15 on :{port}");
    assert_eq!(ready[..2], ["READY=1".to_owned(), serving]);
    let loading = flat(loading);
    assert!(
        loading.iter().any(|line| line.starts_with("STATUS=")),
        "{loading:?}"
    );
    assert!(
        loading.contains(&"EXTEND_TIMEOUT_USEC=60000000"),
        "{loading:?}"
    );
    assert!(!loading.contains(&"WATCHDOG=1"), "{loading:?}");
    // Signs of life come twice in every period.
    let began = Instant::now();
    for _ in 0..4 {
        manager.until("WATCHDOG=1");
    }
    let seconds = began.elapsed().as_secs_f64();
    assert!((1.0..4.0).contains(&seconds), "{seconds}");
    let slow = json!({"ignore_eos": true, "stream": true, "speculative": false});
    let slow = with(chat("Tell me a story."), slow);
    let eight = server.begin(CHAT, &with(slow.clone(), json!({"n": 8})));
    let work = manager.until("STATUS=8 running, 0 waiting, ");
    let line = &work.last().unwrap()[0];
    assert!(line.contains(" tok/s"), "{line}");
    drop(eight);
    server.until_metric("vllm:num_requests_running", 0.0, LATER);
    let mut stream = server.begin(CHAT, &with(slow, json!({"max_tokens": 600})));
    server.until_metric("vllm:num_requests_running", 1.0, LATER);
    server.signal("TERM");
    let end = manager.until("STATUS=Draining, 1 request left");
    let lines = flat(&end);
    let at = |text: &str| lines.iter().position(|line| *line == text);
    let (stopping, extended) = (at("STOPPING=1"), at("EXTEND_TIMEOUT_USEC=55000000"));
    assert!(stopping.is_some() && stopping < extended, "{lines:?}");
    manager.until("WATCHDOG=1");
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    assert_eq!(server.wait(), 0, "{}", server.log());
    let mut rest = Vec::new();
    while let Some(message) = manager.next(Duration::from_millis(50)) {
        rest.push(message);
    }
    let rest = flat(&rest);
    assert!(
        !rest.contains(&"READY=1") && !rest.contains(&"STOPPING=1"),
        "{rest:?}"
    );
}

#[test]
fn a_server_that_does_not_answer_shows_no_sign_of_life() {
    let manager = Manager::new();
    let server = manager.start(&["--skip-server-warmup"], "1000000");
    manager.until("WATCHDOG=1");
    // Stopped, so neither thread runs; the socket holds what was sent before.
    server.signal("STOP");
    std::thread::sleep(Duration::from_millis(300));
    while manager.next(Duration::from_millis(20)).is_some() {}
    assert_eq!(manager.next(Duration::from_secs(2)), None);
    server.signal("CONT");
    manager.until("WATCHDOG=1");
}

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/systemd")
}

/// Variables of a file as systemd reads it.
fn variables(name: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(configs().join(name)).unwrap();
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with("# "))
        .map(|line| {
            let line = line.strip_prefix('#').unwrap_or(line);
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

#[test]
fn the_example_variables_are_flags() {
    let help = Command::new(env!("CARGO_BIN_EXE_spinney"))
        .args(["serve", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let mut ports = Vec::new();
    for file in ["common.env", "gpu-0.env", "gpu-1.env"] {
        for (name, value) in variables(file) {
            let Some(flag) = name.strip_prefix("SPINNEY_") else {
                assert_eq!(name, "HF_TOKEN", "{file}");
                continue;
            };
            let flag = format!("--{} ", flag.to_ascii_lowercase().replace('_', "-"));
            assert!(help.contains(&flag), "{file}: {flag}");
            if name == "SPINNEY_PORT" {
                ports.push(value);
            }
        }
    }
    assert_eq!(ports, ["30000", "30001"], "every instance has its own");
}

/// The time of the unit's limit is longer than the drain of the example takes.
#[test]
fn a_stop_has_time_for_the_drain() {
    let unit = std::fs::read_to_string(configs().join("spinney@.service")).unwrap();
    let seconds = |text: &str| text.parse::<u64>().unwrap();
    let limit = unit
        .lines()
        .find_map(|line| line.strip_prefix("TimeoutStopSec="));
    let common = variables("common.env");
    let drain = seconds(&common["SPINNEY_DRAIN_DELAY"]) + seconds(&common["SPINNEY_DRAIN_TIMEOUT"]);
    assert!(seconds(limit.unwrap()) > drain + 10);
}

/// Runs systemd's own checks. Only outside of CI may the tool be missing.
fn analyze(arguments: &[&str]) -> Option<String> {
    let run = Command::new("systemd-analyze").args(arguments).output();
    let output = match run {
        Ok(output) => output,
        Err(error) => {
            let must = std::env::var_os("REQUIRE_SYSTEMD").is_some();
            assert!(!must, "systemd-analyze: {error}");
            eprintln!("skipped: systemd-analyze cannot be run: {error}");
            return None;
        }
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    Some(text)
}

/// The unit with the binary of this build.
fn unit(folder: &Path, change: impl Fn(String) -> String) -> String {
    let text = std::fs::read_to_string(configs().join("spinney@.service")).unwrap();
    let text = change(text.replace("/usr/bin/spinney", env!("CARGO_BIN_EXE_spinney")));
    let path = folder.join("spinney@.service");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn systemd_finds_no_fault_with_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let path = unit(folder.path(), |text| text);
    let Some(complaints) = analyze(&["verify", "--man=no", &path]) else {
        return;
    };
    assert_eq!(complaints.trim(), "");
    // The check is able to fail.
    let path = unit(folder.path(), |text| {
        text.replace("WatchdogSec", "WatchdogSeconds")
    });
    let complaints = analyze(&["verify", "--man=no", &path]).unwrap_or_default();
    assert!(complaints.contains("WatchdogSeconds"), "{complaints}");
}

#[test]
fn the_unit_exposes_little() {
    let folder = tempfile::tempdir().unwrap();
    let path = unit(folder.path(), |text| text);
    // Ten times the level of exposure; a unit without any protection has 96.
    analyze(&["security", "--offline=true", "--threshold=25", &path]);
}

//! An engine that hangs in a step, and what becomes of its server.
//!
//! The hang is a real one: a model whose attention makes one prefill call last for minutes.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::Server;
use tempfile::TempDir;

const RUNNING: &str = "vllm:num_requests_running";
const LATER: Duration = Duration::from_secs(60);
/// Positions of the context: a call reads 2,048 of them, and all before.
const CONTEXT: usize = 32_768;

/// The bundled model's files with a configuration that has very many heads.
fn slow_model() -> TempDir {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/server/spinney-tiny");
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ] {
        std::fs::copy(bundled.join(name), folder.path().join(name)).unwrap();
    }
    let text = std::fs::read_to_string(bundled.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["num_attention_heads"] = 32.into();
    config["max_position_embeddings"] = CONTEXT.into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn flags(model: &TempDir) -> [&str; 8] {
    [
        "--model-path",
        model.path().to_str().unwrap(),
        "--served-model-name=slow",
        "--load-format=dummy",
        "--device=cpu",
        "--max-running-requests=1",
        "--health-stale-timeout=2",
        "--watchdog-timeout=3",
    ]
}

fn start(model: &TempDir, variables: &[(&str, &str)]) -> Server {
    let flags = [&flags(model)[..], &["--skip-server-warmup"]].concat();
    Server::start_with(&flags, variables)
}

/// Sends a prompt that takes minutes to read.
fn hang(server: &Server) -> std::net::TcpStream {
    let body = json!({"model": "slow", "prompt": vec![40; CONTEXT - 8], "max_tokens": 1});
    let stream = server.begin("/v1/completions", &body);
    server.until_metric(RUNNING, 1.0, LATER);
    stream
}

#[test]
fn a_log_that_nobody_reads_does_not_keep_a_server_that_hangs() {
    let model = slow_model();
    let mut server = Server::start_unread(&flags(&model));
    // More lines than a pipe holds.
    for _ in 0..600 {
        server.get("/livez").ok();
    }
    let _stream = hang(&server);
    assert_eq!(server.wait(), 6);
}

#[test]
fn a_server_whose_engine_hangs_ends_by_itself() {
    let mut server = start(&slow_model(), &[]);
    // An idle engine shows that it is alive.
    std::thread::sleep(Duration::from_secs(4));
    server.get("/livez").ok();
    let _stream = hang(&server);
    assert_eq!(server.wait(), 6, "{}", server.log());
    assert!(
        server.log().contains("the engine hangs"),
        "{}",
        server.log()
    );
    assert!(
        server
            .log()
            .contains("error: the engine has been silent for")
    );
}

#[test]
fn under_a_watchdog_it_only_falls_silent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let receives = |limit: Duration| {
        let mut bytes = [0; 4096];
        socket.set_read_timeout(Some(limit)).unwrap();
        let length = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    };
    let variables = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "1000000"),
    ];
    let server = start(&slow_model(), &variables);
    let _stream = hang(&server);
    // First the routers are told, then whoever restarts processes.
    let end = Instant::now() + LATER;
    let until = |path: &str| {
        while server.get(path).status == 200 {
            assert!(Instant::now() < end, "{path}");
            std::thread::sleep(Duration::from_millis(20));
        }
        server.get(path).json()
    };
    let health = until("/health");
    assert_eq!(health["status"], "stalled");
    assert_eq!(health["error"]["code"], "engine_unavailable");
    assert_eq!(server.get("/server_info").json()["status"], "stalled");
    assert!(server.metric("spinney_engine_heartbeat_age_seconds") > 2.0);
    let body = json!({"model": "slow", "prompt": [40], "max_tokens": 1});
    let probe = server.get("/health_generate");
    probe.refused(503, "server_error", Some("engine_unavailable"), None);
    let refused = server.post("/v1/completions", &body);
    refused.refused(503, "server_error", Some("engine_unavailable"), None);
    server.get("/livez").ok();
    assert_eq!(until("/livez")["error"]["code"], "engine_unavailable");
    while receives(Duration::from_millis(20)).is_some() {}
    let silent = Instant::now() + Duration::from_secs(2);
    while Instant::now() < silent {
        if let Some(text) = receives(Duration::from_millis(500)) {
            assert!(!text.contains("WATCHDOG=1"), "{text}");
        }
    }
    assert_eq!(server.get("/livez").status, 503, "it has not ended");
    assert_eq!(server.log().matches("the engine hangs").count(), 1);
}

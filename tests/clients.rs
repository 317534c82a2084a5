//! Clients as people install them, against the running server: each asks for plain answers, streams,
//! calls of tools, JSON of a schema, logprobs and two choices as far as it can, and gets the errors of
//! the server as its own exceptions.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::process::Command;

use server::Server;

/// The variable that says where a client is, and the client's script.
const CLIENTS: [(&str, &str); 7] = [
    ("SPINNEY_OPENAI_PYTHON", "use_openai.py"),
    ("SPINNEY_OPENAI_PYTHON", "use_litellm.py"),
    ("SPINNEY_OPENAI_PYTHON", "use_langchain.py"),
    ("SPINNEY_OPENAI_PYTHON", "use_llm.py"),
    ("SPINNEY_OPENAI_PYTHON", "use_prometheus.py"),
    ("SPINNEY_INSTRUCTOR_PYTHON", "use_instructor.py"),
    ("SPINNEY_NODE_MODULES", "node/use_openai.mjs"),
];

/// One after the other, since each fills slots and queue.
#[test]
fn clients_get_what_they_expect() {
    let clients: Vec<_> = CLIENTS
        .into_iter()
        .filter_map(|(variable, script)| {
            let place = std::env::var_os(variable);
            if place.is_none() {
                println!("skipped: {script}, {variable} does not say where its client is");
            }
            Some((place?, script))
        })
        .collect();
    if clients.is_empty() {
        return;
    }
    let server = Server::start(&[
        "--api-key=user-key",
        "--admin-api-key=admin-key",
        "--max-running-requests=2",
        "--max-queued-requests=1",
        "--queue-timeout=2",
    ]);
    let base_url = format!("http://{}/v1", server.address());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/");
    for (place, script) in clients {
        let began = std::time::Instant::now();
        let program = match script.ends_with(".mjs") {
            true => "node".into(),
            false => place,
        };
        let output = Command::new(program)
            .args([&format!("{folder}{script}"), &base_url])
            .args(["user-key", "spinney-tiny"])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap_or_else(|error| panic!("{script}: {error}"));
        assert!(
            output.status.success(),
            "{script}\n{}{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            server.log()
        );
        println!("{script}: {:.1} s", began.elapsed().as_secs_f64());
        server.until_metric(
            "vllm:num_requests_running",
            0.0,
            std::time::Duration::from_secs(10),
        );
    }
}

//! The Anthropic Python client against the running server.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::process::Command;

use server::Server;

/// `SPINNEY_ANTHROPIC_PYTHON` names a Python that has the `anthropic` package.
#[test]
fn the_anthropic_client_gets_what_it_expects() {
    let Some(python) = std::env::var_os("SPINNEY_ANTHROPIC_PYTHON") else {
        println!("skipped: SPINNEY_ANTHROPIC_PYTHON names no Python with the anthropic package");
        return;
    };
    let server = Server::start(&[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/anthropic/client.py");
    let base_url = format!("http://{}", server.address());
    let output = Command::new(python)
        .args([script, &base_url, "spinney-tiny"])
        .output()
        .unwrap();
    let (out, err) = (&output.stdout, &output.stderr);
    assert!(
        output.status.success(),
        "{}{}\n{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err),
        server.log()
    );
}

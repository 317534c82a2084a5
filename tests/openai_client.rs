//! The OpenAI Python client against the running server.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::process::Command;

use server::Server;

/// `SPINNEY_OPENAI_PYTHON` names a Python that has the `openai` package.
#[test]
fn the_openai_client_gets_what_it_expects() {
    let Some(python) = std::env::var_os("SPINNEY_OPENAI_PYTHON") else {
        println!("skipped: SPINNEY_OPENAI_PYTHON does not name a Python with the openai package");
        return;
    };
    let server = Server::start(&[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai/client.py");
    let base_url = format!("http://{}/v1", server.address());
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

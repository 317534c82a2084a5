//! Requests that schemathesis makes of `/openapi.json`, fitting and unfitting: none ends in a 5xx, and
//! every answer is one that the document describes.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::path::Path;
use std::process::Command;

use server::Server;

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance";

/// `SPINNEY_INSTRUCTOR_PYTHON` is a Python that has schemathesis beside it.
#[test]
fn a_fuzzer_finds_no_answer_that_is_not_described() {
    let Some(python) = std::env::var_os("SPINNEY_INSTRUCTOR_PYTHON") else {
        println!("skipped: SPINNEY_INSTRUCTOR_PYTHON does not name a Python with schemathesis");
        return;
    };
    let server = Server::start(&["--context-length=256"]);
    let output = Command::new("timeout")
        .arg("170")
        .arg(Path::new(&python).with_file_name("schemathesis"))
        .arg("run")
        .arg(format!("http://{}/openapi.json", server.address()))
        .args(["--checks", CHECKS, "--max-examples=15"])
        .args(["--generation-deterministic"])
        .args(["--phases=examples,coverage,fuzzing"])
        .args(["--request-timeout=60", "--no-color"])
        // Paths without /v1 have the same handlers.
        .args([
            "--exclude-path-regex",
            "^/(chat|completions|models|(de)?tokenize)",
        ])
        .env("SCHEMATHESIS_HOOKS", "fuzz_hooks")
        .env(
            "PYTHONPATH",
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients"),
        )
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{report}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Whether it got as far as the model.
    assert!(server.metric("vllm:generation_tokens_total") > 20.0);
    println!("{report}");
}

//! A model whose numbers break: what its clients hear.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::path::Path;

use serde_json::{Value, json};
use server::{Server, chat, with};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";
const NAN: [u8; 2] = [0xc0, 0x7f];

/// The bundled model with a final norm of bf16 numbers that are none.
fn broken_model() -> TempDir {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/server/spinney-tiny");
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ] {
        std::fs::copy(bundled.join(name), folder.path().join(name)).unwrap();
    }
    let mut bytes = std::fs::read(bundled.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = header.as_object().unwrap();
    let name = tensors
        .keys()
        .find(|name| name.ends_with("norm.weight") && !name.contains("layers"));
    let norm = &tensors[name.unwrap()];
    assert_eq!(norm["dtype"], "BF16");
    let at = |index: usize| 8 + length + norm["data_offsets"][index].as_u64().unwrap() as usize;
    for number in bytes[at(0)..at(1)].chunks_exact_mut(2) {
        number.copy_from_slice(&NAN);
    }
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

#[test]
fn a_request_that_breaks_is_not_to_be_sent_again() {
    let folder = broken_model();
    let path = folder.path().to_str().unwrap();
    let names = ["--served-model-name", "spinney-tiny"];
    let server = Server::start(&[&["--model-path", path], &names[..]].concat());
    for stream in [false, true] {
        let body = with(chat("Hi"), json!({"stream": stream}));
        let reply = server.post(CHAT, &body);
        let message = reply.refused(500, "server_error", Some("internal_error"), None);
        assert_eq!(reply.header("x-should-retry"), "false");
        let id = reply.header("x-request-id");
        assert!(message.contains(id), "{message}");
        assert!(
            !message.contains("finite"),
            "the detail is the log's: {message}"
        );
        assert!(server.log().contains("finite"), "{}", server.log());
    }
    // They are in the histograms as any other, without a first token.
    for (name, count) in [
        ("vllm:e2e_request_latency_seconds_count", 2.0),
        ("vllm:request_queue_time_seconds_count", 2.0),
        ("vllm:request_prompt_tokens_count", 2.0),
        ("vllm:request_generation_tokens_count", 2.0),
        ("vllm:request_generation_tokens_sum", 0.0),
        ("vllm:time_to_first_token_seconds_count", 0.0),
        ("vllm:request_prefill_time_seconds_count", 0.0),
    ] {
        assert_eq!(server.metric(name), count, "{name}");
    }
    let ended = "finished_reason=\"error\"} 2\n";
    assert!(server.get("/metrics").text.contains(ended));
    // It is the request's fault, not the server's.
    server.get("/health").ok();
}

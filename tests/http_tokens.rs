//! Text to tokens and back, beside the engine.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::time::Duration;

use serde_json::{Value, json};
use server::{Server, chat, mark, with};

const INVALID: &str = "invalid_request_error";

#[test]
fn texts_become_tokens_and_texts_again() {
    let server = Server::shared();
    let text = "The naïve 🦀 says <|im_end|> twice.";
    let body = json!({"prompt": text, "return_token_strs": true});
    let answer = server.post("/tokenize", &body).ok();
    assert_eq!(server.post("/v1/tokenize", &body).ok(), answer);
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!(answer["count"], tokens.len());
    assert_eq!(answer["max_model_len"], 4096);
    assert_eq!(answer["token_strs"].as_array().unwrap().len(), tokens.len());
    assert!(tokens.contains(&json!(mark("<|im_end|>"))));
    let back = json!({"tokens": tokens, "skip_special_tokens": false});
    for path in ["/detokenize", "/v1/detokenize"] {
        let expected = json!({"text": text, "prompt": text});
        assert_eq!(server.post(path, &back).ok(), expected);
    }
    let plain = server.post("/detokenize", &json!({"tokens": tokens})).ok();
    assert_eq!(plain["text"], text.replace("<|im_end|>", ""));
    let lists = server
        .post("/tokenize", &json!({"prompt": [text, ""]}))
        .ok();
    assert_eq!(lists["tokens"], json!([tokens, []]));
    assert_eq!(
        (&lists["count"], &lists["token_strs"]),
        (&json!(tokens.len()), &Value::Null)
    );
    let body = json!({"tokens": [tokens, []], "skip_special_tokens": false});
    assert_eq!(
        server.post("/detokenize", &body).ok()["text"],
        json!([text, ""])
    );
    let none = server.post("/detokenize", &json!({"tokens": []})).ok();
    assert_eq!(none["text"], "");
}

#[test]
fn conversations_are_what_the_model_reads() {
    let server = Server::shared();
    let body = with(chat("Hi"), json!({"max_tokens": 1}));
    let usage = &server.post("/v1/chat/completions", &body).ok()["usage"];
    let answer = server.post("/tokenize", &chat("Hi")).ok();
    assert_eq!(answer["count"], usage["prompt_tokens"]);
    let prompt = server.post("/apply-template", &chat("Hi")).ok();
    let text = prompt["prompt"].as_str().unwrap();
    assert!(text.contains("<|im_start|>user\nHi<|im_end|>"), "{text}");
    let raw = server.post("/tokenize", &json!({"prompt": text})).ok();
    assert_eq!(raw["tokens"], answer["tokens"]);
    let bare = with(chat("Hi"), json!({"add_generation_prompt": false}));
    let bare = server.post("/tokenize", &bare).ok();
    assert!(bare["count"].as_u64() < answer["count"].as_u64());
}

#[test]
fn refusals_name_the_field() {
    let server = Server::shared();
    let (missing, kind) = ("missing_required_parameter", "invalid_type");
    for (path, body, code, param) in [
        ("/tokenize", json!({}), missing, "prompt"),
        ("/tokenize", json!({"prompt": 1}), kind, "prompt"),
        ("/tokenize", json!({"prompt": ["a", 1]}), kind, "prompt.[1]"),
        (
            "/tokenize",
            json!({"prompt": "a", "return_token_strs": 1}),
            kind,
            "return_token_strs",
        ),
        (
            "/tokenize",
            json!({"messages": []}),
            "empty_array",
            "messages",
        ),
        (
            "/tokenize",
            json!({"prompt": "a", "messages": []}),
            "invalid_value",
            "prompt",
        ),
        (
            "/tokenize",
            json!({"prompt": vec!["a"; 65]}),
            "array_above_max_length",
            "prompt",
        ),
        ("/detokenize", json!({}), missing, "tokens"),
        ("/detokenize", json!({"tokens": "a"}), kind, "tokens"),
        (
            "/detokenize",
            json!({"tokens": [1, 1e9]}),
            "invalid_value",
            "tokens.[1]",
        ),
        (
            "/detokenize",
            json!({"tokens": [[1], 1]}),
            kind,
            "tokens.[1]",
        ),
        ("/apply-template", json!({}), missing, "messages"),
    ] {
        let reply = server.post(path, &body);
        reply.refused(400, INVALID, Some(code), Some(param));
    }
    let reply = server.post("/tokenize", &json!({"model": "x", "prompt": "a"}));
    reply.refused(404, INVALID, Some("model_not_found"), Some("model"));
    let huge = json!({"prompt": "1 2 3 4 5 6 ".repeat(20_000)});
    let reply = server.post("/tokenize", &huge);
    reply.refused(
        400,
        INVALID,
        Some("context_length_exceeded"),
        Some("prompt"),
    );
}

#[test]
fn a_full_queue_does_not_matter() {
    let server = Server::start(&["--max-running-requests=1", "--max-queued-requests=1"]);
    let endless = with(chat("Hi"), json!({"ignore_eos": true, "stream": true}));
    let path = "/v1/chat/completions";
    let _running = server.begin(path, &endless);
    server.until_metric("vllm:num_requests_running", 1.0, Duration::from_secs(20));
    let _waiting = server.begin(path, &endless);
    server.until_metric("vllm:num_requests_waiting", 1.0, Duration::from_secs(20));
    assert_eq!(server.post(path, &chat("Hi")).status, 429);
    server.post("/tokenize", &json!({"prompt": "a"})).ok();
    server.post("/detokenize", &json!({"tokens": [40]})).ok();
    server.post("/apply-template", &chat("Hi")).ok();
    assert_eq!(
        server.get("/health_generate").status,
        200,
        "others get tokens"
    );
}

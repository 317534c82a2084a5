//! Point 8: prompts about as long as the context.

use serde_json::{Value, json};

use crate::CHAT;
use crate::server::{Server, chat, with};

const CODE: Option<&str> = Some("context_length_exceeded");

/// The text that clients look for.
fn overflow(most: usize, prompt: usize) -> String {
    format!(
        "This model's maximum context length is {most} tokens. However, your messages resulted \
         in {prompt} tokens. Please reduce the length of the messages."
    )
}

fn count(server: &Server, body: &Value) -> usize {
    server.post("/tokenize", body).ok()["count"]
        .as_u64()
        .unwrap() as usize
}

/// Each path with a body whose prompt has 63, 64 or 65 tokens, and the field at fault.
fn bodies(server: &Server, prompt: usize) -> Vec<(&'static str, Value, &'static str)> {
    let mut text = String::from("a");
    while count(server, &chat(&text)) < prompt {
        text.push_str(" a");
    }
    assert_eq!(
        count(server, &chat(&text)),
        prompt,
        "a token more each time"
    );
    let ids = vec![40; prompt];
    vec![
        (
            CHAT,
            with(chat(&text), json!({"ignore_eos": true})),
            "messages",
        ),
        (
            "/v1/completions",
            json!({"model": "", "prompt": ids, "max_tokens": 9, "ignore_eos": true}),
            "prompt",
        ),
        (
            "/generate",
            json!({"input_ids": ids, "sampling_params": {"ignore_eos": true}}),
            "input_ids",
        ),
    ]
}

fn tokens(answer: &Value) -> &Value {
    let usage = match answer.get("usage") {
        Some(usage) => usage,
        None => &answer["meta_info"],
    };
    &usage["completion_tokens"]
}

/// 400 with the exact text, for a stream as well: before any other status.
fn check_overflow(server: &Server, most: usize, prompt: usize) {
    for (path, body, field) in bodies(server, prompt) {
        for stream in [false, true] {
            let reply = server.post(path, &with(body.clone(), json!({"stream": stream})));
            let message = reply.refused(400, "invalid_request_error", CODE, Some(field));
            assert_eq!(message, overflow(most, prompt), "{path}");
        }
    }
}

#[test]
fn point_08_the_last_prompt_that_fits_leaves_one_token() {
    let server = Server::start(&["--context-length=64"]);
    for (path, body, _) in bodies(&server, 63) {
        let answer = server.post(path, &body).ok();
        assert_eq!(tokens(&answer), 1, "{path}: {answer}");
        let length = answer["choices"][0]["finish_reason"] == "length"
            || answer["meta_info"]["finish_reason"] == json!({"type": "length", "length": 1});
        assert!(length, "{path}: {answer}");
    }
    check_overflow(&server, 64, 64);
    check_overflow(&server, 64, 65);
}

#[test]
fn point_08_the_pool_is_the_context_where_it_is_smaller() {
    let server = Server::start(&["--context-length=4096", "--max-total-tokens=128"]);
    let pool = server.post("/tokenize", &chat("a")).ok()["max_model_len"].clone();
    let pool = pool.as_u64().unwrap() as usize;
    assert!(pool <= 4096, "{pool}");
    check_overflow(&server, pool.min(128), 130);
    let (path, body, _) = bodies(&server, 127).remove(0);
    assert_eq!(tokens(&server.post(path, &body).ok()), 1);
}

#[test]
fn point_08_asking_for_more_than_fits_is_told_apart() {
    let server = Server::start(&["--context-length=64", "--strict-max-tokens"]);
    let (path, body, _) = bodies(&server, 60).remove(0);
    let reply = server.post(path, &with(body.clone(), json!({"max_tokens": 5})));
    let message = reply.refused(400, "invalid_request_error", CODE, Some("messages"));
    let expected = "This model's maximum context length is 64 tokens. However, you requested 65 \
                    tokens (60 in the messages, 5 in the completion). Please reduce the length \
                    of the messages or completion.";
    assert_eq!(message, expected);
    let answer = server
        .post(path, &with(body, json!({"max_tokens": 4})))
        .ok();
    assert_eq!(tokens(&answer), 4);
}

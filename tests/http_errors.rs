//! Everything a client can do wrong, and what it is told.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};
use server::{Server, chat, post_bytes, with};

const CHAT: &str = "/v1/chat/completions";
const INVALID: &str = "invalid_request_error";

/// A chat request with these fields is refused with this code about this field.
fn refused(cases: &[(Value, &str, &str)]) {
    let server = Server::shared();
    for (extra, code, param) in cases {
        let reply = server.post(CHAT, &with(chat("a"), extra.clone()));
        let message = reply.refused(400, INVALID, Some(code), Some(param));
        assert!(
            !message.is_empty() && message.len() < 400,
            "{extra}: {message}"
        );
    }
}

#[test]
fn messages_of_the_wrong_kind() {
    let message = |message: Value| json!({"messages": [{"role": "user", "content": "a"}, message]});
    let (missing, kind) = ("missing_required_parameter", "invalid_type");
    refused(&[
        (json!({"model": null}), missing, "model"),
        (json!({"model": 1}), kind, "model"),
        (json!({"messages": null}), missing, "messages"),
        (json!({"messages": []}), "empty_array", "messages"),
        (json!({"messages": "a"}), kind, "messages"),
        (
            json!({"messages": [{"role": "system", "content": "a"}]}),
            "invalid_messages",
            "messages",
        ),
        (
            message(json!({"role": "user", "content": 1})),
            kind,
            "messages.[1].content",
        ),
        (
            message(json!({"role": "x", "content": ""})),
            "invalid_value",
            "messages.[1].role",
        ),
        (
            message(json!({"role": "user", "content": [{"type": "image_url"}]})),
            "unsupported_value",
            "messages.[1].content.[0].type",
        ),
        (
            json!({"continue_final_message": true}),
            "invalid_value",
            "continue_final_message",
        ),
        (
            json!({"reasoning_effort": "vast"}),
            "invalid_value",
            "reasoning_effort",
        ),
    ]);
}

#[test]
fn numbers_out_of_range() {
    let kind = "invalid_type";
    refused(&[
        (
            json!({"temperature": 2.5}),
            "decimal_above_max_value",
            "temperature",
        ),
        (json!({"temperature": "hot"}), kind, "temperature"),
        (json!({"top_p": -1}), "decimal_below_min_value", "top_p"),
        (
            json!({"max_tokens": 0}),
            "integer_below_min_value",
            "max_tokens",
        ),
        (json!({"max_tokens": 1.5}), kind, "max_tokens"),
        (json!({"n": 100}), "integer_above_max_value", "n"),
        (
            json!({"logit_bias": {"999999": 1}}),
            "invalid_value",
            "logit_bias",
        ),
        (
            json!({"stop_token_ids": [-1]}),
            "invalid_value",
            "stop_token_ids.[0]",
        ),
        (json!({"seed": 1e30}), kind, "seed"),
        (json!({"top_logprobs": 2}), "invalid_value", "top_logprobs"),
    ]);
}

#[test]
fn options_that_cannot_be_honoured() {
    let (field, value) = ("unsupported_parameter", "unsupported_value");
    refused(&[
        (
            json!({"stop": ["a", "b", "c", "d", "e"]}),
            "array_above_max_length",
            "stop",
        ),
        (json!({"stop": ""}), "invalid_value", "stop.[0]"),
        (
            json!({"stream_options": {}}),
            "invalid_value",
            "stream_options",
        ),
        (json!({"stream": "yes"}), "invalid_type", "stream"),
        (
            json!({"response_format": {"type": "regex"}}),
            "invalid_value",
            "response_format.type",
        ),
        (json!({"chat_template": "{{ 1 }}"}), field, "chat_template"),
        (
            json!({"tools": [{"type": "web_search"}]}),
            value,
            "tools.[0].type",
        ),
        (
            json!({"tool_choice": "required"}),
            "invalid_value",
            "tool_choice",
        ),
        (json!({"audio": {}}), field, "audio"),
    ]);
}

#[test]
fn bodies_that_are_no_json_objects() {
    let server = Server::shared();
    for body in ["", "{", "[]", "1", "{\"a\":NaN}", "nonsense"] {
        let answer = server.raw(post_bytes(CHAT, body).as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("\"code\":null"), "{answer}");
    }
    let mut bytes = post_bytes(CHAT, "{\"model\":\"??\"}").into_bytes();
    let length = bytes.len();
    bytes[length - 4] = 0xff;
    let answer = server.raw(&bytes);
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("not UTF-8"),
        "{answer}"
    );
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(500), "]".repeat(500));
    let answer = server.raw(post_bytes(CHAT, &deep).as_bytes());
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let answer = server.raw(b"NONSENSE\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn paths_methods_and_types() {
    let server = Server::shared();
    for path in ["/v1/embeddings", "/version", "/v1", "/nothing"] {
        server
            .get(path)
            .refused(404, INVALID, Some("unknown_url"), None);
    }
    let reply = server.get(CHAT);
    reply.refused(405, INVALID, Some("method_not_supported"), None);
    assert!(reply.header("allow").contains("POST"), "{reply:?}");
    let reply = server.post("/health", &json!({}));
    reply.refused(405, INVALID, Some("method_not_supported"), None);
    assert!(reply.header("allow").contains("GET"), "{reply:?}");
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        let request = post_bytes(CHAT, "{}").replace("application/json", kind);
        let answer = server.raw(request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 415 "), "{answer}");
        assert!(answer.contains("unsupported_media_type"), "{answer}");
    }
}

#[test]
fn unknown_models() {
    let server = Server::shared();
    let body = with(chat("a"), json!({"model": "gpt-9"}));
    let reply = server.post(CHAT, &body);
    reply.refused(404, INVALID, Some("model_not_found"), Some("model"));
    let reply = server.get("/v1/models/gpt-9");
    reply.refused(404, INVALID, Some("model_not_found"), Some("model"));
    let any = Server::start(&["--allow-any-model-name", "--served-model-name", "a/b", "c"]);
    let body = with(body, json!({"max_tokens": 1}));
    assert_eq!(any.post(CHAT, &body).ok()["model"], "a/b");
    let body = with(body, json!({"model": "c"}));
    assert_eq!(any.post(CHAT, &body).ok()["model"], "c");
    assert_eq!(any.get("/v1/models/a/b").ok()["id"], "a/b");
    assert_eq!(
        any.get("/models/").ok()["data"].as_array().unwrap().len(),
        2
    );
}

#[test]
fn prompts_longer_than_the_context() {
    let server = Server::start(&["--context-length", "64", "--strict-max-tokens"]);
    let ids = |count: usize| json!({"model": "", "prompt": vec![40; count], "max_tokens": 1});
    let reply = server.post("/v1/completions", &ids(64));
    let message = reply.refused(
        400,
        INVALID,
        Some("context_length_exceeded"),
        Some("prompt"),
    );
    let expected = "This model's maximum context length is 64 tokens. However, your messages \
                    resulted in 64 tokens. Please reduce the length of the messages.";
    assert_eq!(message, expected);
    let answer = server.post("/v1/completions", &ids(63)).ok();
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    let reply = server.post("/v1/completions", &with(ids(60), json!({"max_tokens": 5})));
    let message = reply.refused(
        400,
        INVALID,
        Some("context_length_exceeded"),
        Some("prompt"),
    );
    let expected = "This model's maximum context length is 64 tokens. However, you requested 65 \
                    tokens (60 in the messages, 5 in the completion). Please reduce the length \
                    of the messages or completion.";
    assert_eq!(message, expected);
    let reply = server.post(
        CHAT,
        &with(chat(&"word ".repeat(100)), json!({"stream": true})),
    );
    reply.refused(
        400,
        INVALID,
        Some("context_length_exceeded"),
        Some("messages"),
    );
}

#[test]
fn limits_that_do_not_fit_are_lowered() {
    let server = Server::start(&["--context-length", "64"]);
    let extra = json!({"max_tokens": 1_000_000, "ignore_eos": true});
    let answer = server.post(CHAT, &with(chat("Hi"), extra)).ok();
    assert_eq!(answer["usage"]["total_tokens"], 64);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn keys() {
    let server = Server::start(&["--api-key", "one", "--api-key=two"]);
    let body = with(chat("Hi"), json!({"max_tokens": 1}));
    for headers in [
        &[][..],
        &[("authorization", "Bearer three")],
        &[("authorization", "Basic one")],
        &[("x-api-key", "")],
    ] {
        let reply = server.post_with(CHAT, headers, &body);
        reply.refused(401, INVALID, Some("invalid_api_key"), None);
        assert_eq!(reply.header("www-authenticate"), "Bearer");
    }
    for header in [
        ("authorization", "Bearer one"),
        ("x-api-key", "two"),
        ("api-key", "two"),
    ] {
        server.post_with(CHAT, &[header], &body).ok();
    }
    assert_eq!(server.get("/v1/models").status, 401);
    for path in ["/", "/health", "/livez", "/ready", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}

#[test]
fn bodies_too_large_or_too_slow() {
    let server = Server::start(&["--max-body-size", "1000", "--body-timeout", "1"]);
    let fitting = |length: usize| {
        let body = with(chat(""), json!({"max_tokens": 1}));
        let missing = length - body.to_string().len();
        with(body, json!({"user": "x".repeat(missing - 10)}))
    };
    assert_eq!(fitting(1000).to_string().len(), 1000);
    server.post(CHAT, &fitting(1000)).ok();
    let reply = server.post(CHAT, &fitting(1001));
    reply.refused(413, INVALID, Some("request_too_large"), None);
    // Without a length the limit holds while the body arrives.
    let mut chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    for _ in 0..3 {
        chunked.push_str(&format!("1f4\r\n{}\r\n", " ".repeat(500)));
    }
    let answer = server.raw(chunked.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let mut slow = server.connect();
    let request = post_bytes(CHAT, &chat("Hi").to_string());
    slow.write_all(&request.as_bytes()[..request.len() - 5])
        .unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
}

#[test]
fn a_full_queue() {
    let server = Server::start(&["--max-running-requests=1", "--max-queued-requests=1"]);
    let long = with(chat("Hi"), json!({"ignore_eos": true, "stream": true}));
    let _running = server.begin(CHAT, &long);
    server.until_metric("vllm:num_requests_running", 1.0, Duration::from_secs(20));
    let _waiting = server.begin(CHAT, &long);
    server.until_metric("vllm:num_requests_waiting", 1.0, Duration::from_secs(20));
    let reply = server.post(CHAT, &chat("Hi"));
    reply.refused(429, "rate_limit_error", Some("queue_full"), None);
    let seconds: u64 = reply.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&seconds));
    assert!(reply.header("retry-after-ms").parse::<u64>().unwrap() >= 1000);
    assert_eq!(server.metric("vllm:admission_rejections_total"), 1.0);
    let two = server.post(CHAT, &with(chat("Hi"), json!({"n": 2})));
    two.refused(400, INVALID, Some("integer_above_max_value"), Some("n"));
}

#[test]
fn more_sequences_than_slots_and_queue_hold() {
    let server = Server::start(&["--max-running-requests=2", "--max-queued-requests=1"]);
    let body = |prompts: usize, n: usize| {
        let prompts = vec!["Hi"; prompts];
        json!({"model": "spinney-tiny", "prompt": prompts, "n": n, "max_tokens": 1})
    };
    for (prompts, n) in [(4, 1), (2, 2)] {
        let reply = server.post("/v1/completions", &body(prompts, n));
        let code = Some("array_above_max_length");
        reply.refused(400, INVALID, code, Some("prompt"));
        assert!(reply.text.contains("at most 3 at a time"), "{}", reply.text);
    }
    server.post("/v1/completions", &body(1, 1)).ok();
    let server = Server::start(&["--max-running-requests=1", "--max-queued-requests=0"]);
    server.post("/v1/completions", &body(4, 1)).ok();
}

#[test]
fn requests_that_take_too_long_to_begin() {
    let server = Server::start(&["--max-running-requests=1", "--request-timeout=1"]);
    let long = with(chat("Hi"), json!({"ignore_eos": true, "stream": true}));
    let _running = server.begin(CHAT, &long);
    server.until_metric("vllm:num_requests_running", 1.0, Duration::from_secs(20));
    for stream in [true, false] {
        let body = with(chat("Hi"), json!({"stream": stream}));
        let reply = server.post(CHAT, &body);
        reply.refused(504, "server_error", Some("request_timeout"), None);
    }
    server.until_metric("vllm:num_requests_waiting", 0.0, Duration::from_secs(2));
}

#[test]
fn strict_servers_refuse_unknown_fields() {
    let server = Server::start(&["--strict-request-fields"]);
    let reply = server.post(CHAT, &with(chat("a"), json!({"never_heard_of": 1})));
    reply.refused(
        400,
        INVALID,
        Some("unsupported_parameter"),
        Some("never_heard_of"),
    );
    let known = json!({"max_tokens": 1, "user": "u"});
    server.post(CHAT, &with(chat("a"), known)).ok();
}

#[test]
fn pages_of_other_origins() {
    let preflight = "OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\nOrigin: https://page.example\r\n\
        Access-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: authorization\r\n\
        Connection: close\r\n\r\n";
    let closed = Server::shared();
    let answer = closed.raw(preflight.as_bytes()).to_ascii_lowercase();
    assert!(!answer.contains("access-control-allow-origin"), "{answer}");
    let server = Server::start(&["--allowed-origins", "https://page.example", "--api-key=k"]);
    let answer = server.raw(preflight.as_bytes()).to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 20"), "{answer}");
    assert!(
        answer.contains("access-control-allow-origin: https://page.example"),
        "{answer}"
    );
    assert!(
        answer.contains("access-control-allow-headers: authorization"),
        "{answer}"
    );
    let get = preflight.replace("OPTIONS", "GET");
    let answer = server.raw(get.as_bytes()).to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 401 "), "{answer}");
    assert!(
        answer.contains("access-control-allow-origin"),
        "errors too: {answer}"
    );
}

/// No message repeats more than a little of what was sent.
#[test]
fn long_values_are_not_repeated() {
    let server = Server::shared();
    let long = "x".repeat(5_000);
    for extra in [
        json!({"model": long}),
        json!({"tool_choice": long}),
        json!({"reasoning_effort": long}),
        json!({"messages": [{"role": long, "content": "a"}]}),
        json!({"logit_bias": {(long.clone()): 1}}),
        json!({"response_format": {"type": long}}),
        json!({"tools": [{"type": long}]}),
        json!({"chat_template_kwargs": {(long.clone()): 1, "tools": 1}}),
    ] {
        let reply = server.post(CHAT, &with(chat("a"), extra));
        assert!(
            reply.status >= 400 && reply.text.len() < 1_000,
            "{}",
            reply.text
        );
        let _: Value = reply.json();
    }
    let path = format!("/v1/{long}");
    assert!(server.get(&path).text.len() < 1_000);
    let answer =
        server.raw(format!("{long} {path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes());
    assert!(
        answer.starts_with("HTTP/1.1 404 ") && answer.len() < 1_000,
        "{answer}"
    );
}

/// Bytes in a URL that are no text get an error object like all others.
#[test]
fn addresses_that_are_no_text() {
    let server = Server::shared();
    for path in ["/v1/models/%ff", "/models/a%C3/b", "/v1/models/%00"] {
        let reply = server.get(path);
        let message = reply.refused(404, INVALID, Some("model_not_found"), Some("model"));
        assert!(message.starts_with("The model '"), "{message}");
    }
    for path in ["/%ff", "/v1/%ff/models"] {
        let reply = server.get(path);
        reply.refused(404, INVALID, Some("unknown_url"), None);
    }
    for query in ["/v1/loads?include=%ff", "/flush_cache?timeout=%ff"] {
        let param = query.split(['?', '=']).nth(1);
        server
            .get(query)
            .refused(400, INVALID, Some("invalid_value"), param);
    }
}

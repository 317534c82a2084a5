//! Bodies at the limits of what JSON and HTTP allow.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::io::Read;

use serde_json::{Map, Value, json};
use server::{Server, chat, post_bytes, with};

const CHAT: &str = "/v1/chat/completions";
const INVALID: &str = "invalid_request_error";

/// Every path that takes a body, with one that it takes.
fn bodies() -> Vec<(&'static str, Value)> {
    vec![
        (CHAT, with(chat("Hi"), json!({"max_tokens": 1}))),
        (
            "/v1/completions",
            json!({"model": "", "prompt": "Hi", "max_tokens": 1}),
        ),
        (
            "/generate",
            json!({"text": "Hi", "sampling_params": {"max_new_tokens": 1}}),
        ),
        ("/tokenize", json!({"prompt": "Hi"})),
        ("/detokenize", json!({"tokens": [40]})),
        ("/apply-template", chat("Hi")),
        ("/abort_request", json!({"rid": "nobody"})),
    ]
}

#[test]
fn null_is_nothing_in_every_field() {
    let server = Server::shared();
    let document = server.get("/openapi.json").ok();
    for (path, body) in bodies() {
        let content = &document["paths"][path]["post"]["requestBody"]["content"];
        let reference = content["application/json"]["schema"]["$ref"]
            .as_str()
            .unwrap();
        let properties = &document.pointer(&reference[1..]).unwrap()["properties"];
        let nulls: Map<String, Value> = properties
            .as_object()
            .unwrap()
            .keys()
            .map(|name| (name.clone(), Value::Null))
            .collect();
        let mut plain = server.post(path, &body).ok();
        let mut nulled = server.post(path, &with(Value::Object(nulls), body)).ok();
        for answer in [&mut plain, &mut nulled] {
            for name in ["id", "created", "metrics", "meta_info"] {
                answer.as_object_mut().unwrap().remove(name);
            }
        }
        assert_eq!(plain, nulled, "{path}");
    }
}

#[test]
fn every_path_reads_bodies_the_same_way() {
    let server = Server::start(&["--max-body-size=2000"]);
    for (path, body) in bodies() {
        let text = body.to_string();
        let send = |body: &str| post_bytes(path, body);
        for (request, status, part) in [
            (send(""), "400", "\"code\":null"),
            (send("[1]"), "400", "expected an object"),
            (send("{\"a\":"), "400", "not JSON"),
            (
                send(&text).replace("application/json", "text/plain"),
                "415",
                "Content-Type",
            ),
            (
                send(&text).replace("Content-Type: application/json\r\n", ""),
                "415",
                "Content-Type",
            ),
            (
                send(&text).replacen("Host", "Content-Encoding: gzip\r\nHost", 1),
                "415",
                "Content-Encoding",
            ),
            (
                send(&format!("{text}{}", " ".repeat(2000))),
                "413",
                "request_too_large",
            ),
            (
                send(&text).replace(
                    "application/json",
                    "application/vnd.api+json; charset=utf-8",
                ),
                "200",
                "{",
            ),
        ] {
            let answer = server.raw(request.as_bytes());
            let start = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&start), "{path}: {request}\n{answer}");
            assert!(answer.contains(part), "{path}: {request}\n{answer}");
        }
    }
}

#[test]
fn the_last_of_equal_keys_counts() {
    let server = Server::shared();
    let body = "{\"model\":\"nothing\",\"prompt\":\"Hi\",\"max_tokens\":9,\"max_tokens\":2,\
        \"ignore_eos\":true,\"model\":\"\"}";
    let answer = server.raw(post_bytes("/v1/completions", body).as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("\"completion_tokens\":2"), "{answer}");
}

#[test]
fn deep_and_long_conversations_are_refused() {
    let server = Server::shared();
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{}1{}", open.repeat(130), close.repeat(130));
        for field in ["messages", "metadata", "chat_template_kwargs"] {
            let body = format!("{{\"{field}\":{deep}}}");
            let answer = server.raw(post_bytes(CHAT, &body).as_bytes());
            assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
            assert!(answer.contains("recursion limit"), "{answer}");
        }
    }
    let message = json!({"role": "user", "content": "a"});
    let many = json!({"messages": vec![message.clone(); 10_000]});
    let reply = server.post(CHAT, &with(chat("a"), many));
    reply.refused(
        400,
        INVALID,
        Some("array_above_max_length"),
        Some("messages"),
    );
    let parts =
        json!([{"role": "user", "content": vec![json!({"type": "text", "text": ""}); 10_000]}]);
    let reply = server.post(CHAT, &with(chat("a"), json!({"messages": parts})));
    let param = Some("messages.[0].content");
    reply.refused(400, INVALID, Some("array_above_max_length"), param);
    let reply = server.post(CHAT, &with(chat("a"), json!({"stop": "x".repeat(1_025)})));
    reply.refused(
        400,
        INVALID,
        Some("string_above_max_length"),
        Some("stop.[0]"),
    );
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn bytes_that_are_no_text_are_refused_everywhere() {
    let server = Server::shared();
    for (path, _) in bodies() {
        for bytes in [&b"\xff\xfe"[..], b"\xed\xa0\x80", b"\xc0\xaf"] {
            let mut request = post_bytes(path, "{\"a\":\"????????\"}").into_bytes();
            let at = request.len() - 10;
            request[at..at + bytes.len()].copy_from_slice(bytes);
            let answer = server.raw(&request);
            assert!(answer.starts_with("HTTP/1.1 400 "), "{path}: {answer}");
            assert!(answer.contains("not UTF-8"), "{path}: {answer}");
        }
    }
    // Half of a pair is valid UTF-8 and no character.
    let body = "{\"model\":\"\",\"prompt\":\"\\ud83d\"}";
    let answer = server.raw(post_bytes("/v1/completions", body).as_bytes());
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[test]
fn pages_ask_first_and_get_no_content() {
    let server = Server::start(&["--allowed-origins=*", "--api-key=k"]);
    for path in [CHAT, "/generate", "/flush_cache", "/nothing"] {
        let preflight = format!(
            "OPTIONS {path} HTTP/1.1\r\nHost: a\r\nOrigin: https://page.example\r\n\
             Access-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: content-type, authorization\r\n\
             Connection: close\r\n\r\n"
        );
        let answer = server.raw(preflight.as_bytes()).to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 204 "), "{answer}");
        for part in [
            "access-control-allow-origin: *\r\n",
            "access-control-allow-methods: get,post,options\r\n",
            "access-control-allow-headers: content-type, authorization\r\n",
            "access-control-max-age: 600\r\n",
            "x-request-id: req_",
        ] {
            assert!(answer.contains(part), "{part}{answer}");
        }
        assert!(!answer.contains("allow-credentials") && answer.ends_with("\r\n\r\n"));
    }
    let mut stream = server.connect();
    let request =
        post_bytes(CHAT, "{}").replacen("Host", "Origin: https://page.example\r\nHost", 1);
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let answer = answer.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 401 "), "{answer}");
    assert!(
        answer.contains("access-control-allow-origin: *"),
        "{answer}"
    );
    assert!(
        answer.contains("access-control-expose-headers: x-request-id,retry-after,retry-after-ms"),
        "{answer}"
    );
}

#[test]
fn whole_answers_say_how_long_they_took() {
    let server = Server::shared();
    let reply = server.post(CHAT, &with(chat("Hi"), json!({"max_tokens": 2})));
    assert!(reply.header("openai-processing-ms").parse::<u64>().is_ok());
    let body = with(chat("Hi"), json!({"max_tokens": 2, "stream": true}));
    let reply = server.post(CHAT, &body);
    for (name, value) in [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
    ] {
        assert_eq!(reply.header(name), value, "{name}");
    }
}

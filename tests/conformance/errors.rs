//! Point 5: every row of the table of errors that a request alone can reach, from one server. What
//! needs an engine that is not there, or a broken one, is in the files that `index` names.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::CHAT;
use crate::server::{Reply, Server, chat, post_bytes, with};

const INVALID: &str = "invalid_request_error";
const USER: (&str, &str) = ("authorization", "Bearer user");
const LATER: Duration = Duration::from_secs(30);

/// Status, type and code of the rows below.
pub const ROWS: &[(u16, &str, &str)] = &[
    (400, INVALID, "null"),
    (400, INVALID, "missing_required_parameter"),
    (400, INVALID, "invalid_type"),
    (400, INVALID, "invalid_value"),
    (400, INVALID, "integer_below_min_value"),
    (400, INVALID, "integer_above_max_value"),
    (400, INVALID, "decimal_below_min_value"),
    (400, INVALID, "decimal_above_max_value"),
    (400, INVALID, "string_above_max_length"),
    (400, INVALID, "array_above_max_length"),
    (400, INVALID, "empty_array"),
    (400, INVALID, "unsupported_parameter"),
    (400, INVALID, "unsupported_value"),
    (400, INVALID, "invalid_json_schema"),
    (400, INVALID, "invalid_messages"),
    (400, INVALID, "context_length_exceeded"),
    (401, INVALID, "invalid_api_key"),
    (403, "permission_error", "insufficient_permissions"),
    (404, INVALID, "model_not_found"),
    (404, INVALID, "unknown_url"),
    (405, INVALID, "method_not_supported"),
    (408, INVALID, "request_timeout"),
    (413, INVALID, "request_too_large"),
    (415, INVALID, "unsupported_media_type"),
    (429, "rate_limit_error", "queue_full"),
    (503, "server_error", "queue_timeout"),
    (503, "server_error", "server_draining"),
    (504, "server_error", "request_timeout"),
];

/// The rows that were reached.
#[derive(Default)]
struct Seen(Vec<(u16, String, String)>);

impl Seen {
    /// An answer that must be an error object.
    fn add(&mut self, status: u16, body: &str) {
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{status} {body}"));
        let error = body["error"].as_object().unwrap();
        let keys: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["message", "type", "param", "code"], "{body}");
        assert!(!error["message"].as_str().unwrap().is_empty());
        let code = error["code"].as_str().unwrap_or("null").to_owned();
        let kind = error["type"].as_str().unwrap().to_owned();
        self.0.push((status, kind, code));
    }

    fn reply(&mut self, reply: &Reply) {
        assert!(!reply.header("x-request-id").is_empty(), "{reply:?}");
        match reply.status {
            401 => assert_eq!(reply.header("www-authenticate"), "Bearer"),
            405 => assert_eq!(reply.header("allow"), "POST"),
            429 | 503 => {
                let seconds: u64 = reply.header("retry-after").parse().unwrap();
                let ms: u64 = reply.header("retry-after-ms").parse().unwrap();
                assert_eq!(seconds, ms.div_ceil(1_000));
            }
            _ => {}
        }
        self.add(reply.status, &reply.text);
    }

    /// What was written on a bare connection.
    fn raw(&mut self, answer: &str) {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        self.add(status, body);
    }
}

/// Chat requests that are refused at once.
fn refused(seen: &mut Seen, server: &Server) {
    let strange =
        json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "x"}}});
    for extra in [
        json!({"messages": null}),
        json!({"temperature": "0"}),
        json!({"stop": ""}),
        json!({"max_tokens": 0}),
        json!({"n": 1_000}),
        json!({"top_p": -1}),
        json!({"temperature": 3}),
        json!({"rid": "x".repeat(200)}),
        json!({"stop": ["a", "b", "c", "d", "e"]}),
        json!({"messages": []}),
        json!({"audio": {}}),
        json!({"modalities": ["audio"]}),
        json!({"response_format": strange}),
        json!({"messages": [{"role": "system", "content": "a"}]}),
        json!({"messages": [{"role": "user", "content": "a ".repeat(6_000)}]}),
        json!({"model": "gpt-9"}),
    ] {
        seen.reply(&server.post_with(CHAT, &[USER], &with(chat("a"), extra)));
    }
}

/// What goes wrong before a body is read, or while it is.
fn around_the_body(seen: &mut Seen, server: &Server) {
    seen.reply(&server.post(CHAT, &chat("a")));
    seen.reply(&server.post_with("/flush_cache", &[USER], &json!({})));
    seen.reply(&server.get("/v1/nothing"));
    seen.reply(&server.get(CHAT));
    let key = "\r\nAuthorization: Bearer user\r\n";
    let send = |body: &str| post_bytes(CHAT, body).replacen("\r\n", key, 1);
    seen.raw(&server.raw(send("{").as_bytes()));
    seen.raw(&server.raw(send(&" ".repeat(100_001)).as_bytes()));
    let plain = send("{}").replace("application/json", "text/plain");
    seen.raw(&server.raw(plain.as_bytes()));
    // A byte of the body never comes.
    let slow = send("{}");
    seen.raw(&server.raw(&slow.as_bytes()[..slow.len() - 1]));
}

/// The only slot and the only place in the queue are taken.
fn under_load(seen: &mut Seen, server: &Server) {
    let endless = json!({"ignore_eos": true, "stream": true, "speculative": false});
    let body = with(chat("a"), endless).to_string();
    let begin = || {
        let mut stream = server.connect();
        let bytes = post_bytes(CHAT, &body).replacen("\r\n", "\r\nX-Api-Key: user\r\n", 1);
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    };
    let running = begin();
    server.until_metric("vllm:num_requests_running", 1.0, LATER);
    let mut waiting = begin();
    server.until_metric("vllm:num_requests_waiting", 1.0, LATER);
    seen.reply(&server.post_with(CHAT, &[USER], &chat("a")));
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    seen.raw(&answer);
    drop(running);
    server.until_metric("vllm:num_requests_running", 0.0, LATER);
    let endless = json!({"ignore_eos": true, "speculative": false});
    seen.reply(&server.post_with(CHAT, &[USER], &with(chat("a"), endless)));
    let _running = begin();
    server.until_metric("vllm:num_requests_running", 1.0, LATER);
    server.signal("TERM");
    while server.get("/health").status == 200 {
        std::thread::sleep(Duration::from_millis(5));
    }
    seen.reply(&server.post_with(CHAT, &[USER], &chat("a")));
}

#[test]
fn point_05_every_row_that_a_request_reaches_is_reached() {
    let server = Server::start(&[
        "--api-key=user",
        "--admin-api-key=admin",
        "--max-running-requests=1",
        "--max-queued-requests=1",
        "--queue-timeout=2",
        "--request-timeout=6",
        "--body-timeout=1",
        "--max-body-size=100000",
    ]);
    let mut seen = Seen::default();
    refused(&mut seen, &server);
    around_the_body(&mut seen, &server);
    under_load(&mut seen, &server);
    for &(status, kind, code) in ROWS {
        let found = (seen.0.iter()).any(|(a, b, c)| (*a, &**b, &**c) == (status, kind, code));
        assert!(found, "no {status} {kind} {code} in {:?}", seen.0);
    }
    for (status, kind, code) in &seen.0 {
        let row = ROWS.contains(&(*status, kind, code));
        assert!(row, "{status} {kind} {code} is no row");
    }
}

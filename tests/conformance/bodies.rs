//! Point 15: the default limit of a body.

use std::io::{Read, Write};

use serde_json::json;

use crate::CHAT;
use crate::server::{Server, chat, post_bytes, with};

const MOST: usize = 32 << 20;

#[test]
fn point_15_32_mib_are_read_and_one_byte_more_is_not() {
    let server = Server::shared();
    let body = |bytes: usize| {
        let text = with(chat("Hi"), json!({"max_tokens": 1})).to_string();
        let spaces = " ".repeat(bytes - text.len());
        post_bytes(CHAT, &format!("{text}{spaces}"))
    };
    let answer = server.raw(body(MOST).as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // The length alone is reason enough: the refusal may come before the body has gone out.
    let mut stream = server.connect();
    let _ = stream.write_all(body(MOST + 1).as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("request_too_large"), "{answer}");
}

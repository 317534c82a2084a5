//! Point 2: the bytes of a stream.

use serde_json::{Value, json};

use crate::CHAT;
use crate::server::{Server, chat, post_bytes, with};

/// The payloads of the chunks of a chunked body.
fn unchunk(mut text: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, rest) = text.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&rest[..size]);
        text = rest[size..].strip_prefix("\r\n").unwrap();
        if size == 0 {
            assert_eq!(text, "", "bytes after the last chunk");
            return body;
        }
    }
}

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn point_02_raw_stream_has_the_documented_order_and_keys() {
    let server = Server::shared();
    let options = json!({"stream": true, "stream_options": {"include_usage": true},
        "max_tokens": 24, "ignore_eos": true});
    let body = with(chat("What is the capital of France?"), options);
    let raw = server.raw(post_bytes(CHAT, &body.to_string()).as_bytes());
    let (head, rest) = raw.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("content-type: text/event-stream; charset=utf-8"),
        "{head}"
    );
    assert!(!head.to_lowercase().contains("content-encoding"), "{head}");
    let text = unchunk(rest);
    // A comment may stand anywhere: while the request waits for others, say.
    let events: Vec<&str> = (text.split_terminator("\n\n"))
        .filter(|event| !event.starts_with(':'))
        .collect();
    assert!(text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
    let data = |event: &&str| -> Value {
        let json = event.strip_prefix("data: ").unwrap();
        let value: Value = serde_json::from_str(json).unwrap();
        // Parsing may move the last digit of a number.
        let form = |json: &str| json.replace(|c: char| c.is_ascii_digit(), "");
        assert_eq!(form(&value.to_string()), form(json), "compact, on one line");
        value
    };
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(data).collect();
    let outer = [
        "id",
        "object",
        "created",
        "model",
        "system_fingerprint",
        "choices",
        "usage",
    ];
    let last = chunks.len() - 1;
    for (index, chunk) in chunks.iter().enumerate() {
        assert_eq!(keys(chunk)[..7], outer, "{chunk}");
        assert_eq!(
            keys(chunk).len() == 8,
            index == last,
            "metrics come at the end: {chunk}"
        );
    }
    let choice = |index: usize| &chunks[index]["choices"][0];
    let inner = ["index", "delta", "logprobs", "finish_reason"];
    for index in 0..last {
        assert_eq!(keys(choice(index))[..4], inner);
    }
    assert_eq!(
        choice(0)["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert!((1..last - 1).all(|index| keys(&choice(index)["delta"]) == ["content"]));
    assert_eq!(choice(last - 1)["delta"], json!({}));
    assert_eq!(choice(last - 1)["finish_reason"], "length");
    assert_eq!(keys(choice(last - 1))[4..], ["matched_stop", "stop_reason"]);
    assert_eq!(chunks[last]["choices"], json!([]));
    assert_eq!(chunks[last]["usage"]["completion_tokens"], 24);
}

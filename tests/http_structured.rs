//! Answers of a form that the client chose, from the real server with the bundled pair.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use server::{Server, chat, events, with};

const CHAT: &str = "/v1/chat/completions";
const QUESTION: &str = "What is the capital of France?";

/// Plain, chain and tree.
fn modes() -> Vec<Server> {
    [
        &["--speculative-algorithm=NONE"][..],
        &["--speculative-algorithm=DFLASH"],
        &[
            "--speculative-algorithm=DDTREE",
            "--speculative-ddtree-budget=15",
        ],
    ]
    .map(Server::start)
    .into()
}

fn format(schema: Value) -> Value {
    json!({"type": "json_schema",
        "json_schema": {"name": "answer", "strict": true, "schema": schema}})
}

/// Properties that are not in alphabetical order, of all the usual types.
fn nested() -> Value {
    json!({
        "type": "object",
        "properties": {
            "kind": {"type": "string", "enum": ["city", "river"]},
            "count": {"type": "integer", "minimum": -5, "maximum": 120},
            "name": {"type": "string", "maxLength": 12},
            "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
            "at": {
                "type": "object",
                "properties": {"y": {"type": ["integer", "null"], "maximum": 9, "minimum": 0},
                    "x": {"const": "here"}},
                "required": ["y", "x"],
                "additionalProperties": false
            }
        },
        "required": ["kind", "count", "name", "flags", "at"],
        "additionalProperties": false
    })
}

fn check_nested(text: &str) {
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text:?}"));
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(keys(&value), ["kind", "count", "name", "flags", "at"]);
    assert!(["city", "river"].contains(&value["kind"].as_str().unwrap()));
    assert!((-5..=120).contains(&value["count"].as_i64().unwrap()));
    assert!(value["name"].as_str().unwrap().chars().count() <= 12);
    let flags = value["flags"].as_array().unwrap();
    assert!((1..=3).contains(&flags.len()) && flags.iter().all(Value::is_boolean));
    assert_eq!(keys(&value["at"]), ["y", "x"]);
    let y = &value["at"]["y"];
    assert!(y.is_null() || (0..=9).contains(&y.as_i64().unwrap()));
    assert_eq!(value["at"]["x"], "here");
}

/// Texts of all choices; every one ended as it should.
fn contents(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap();
    let content = |choice: &Value| {
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        choice["message"]["content"].as_str().unwrap().to_owned()
    };
    choices.iter().map(content).collect()
}

/// The same of a stream.
fn streamed(server: &Server, body: &Value, count: usize) -> Vec<String> {
    let reply = server.post(CHAT, &with(body.clone(), json!({"stream": true})));
    assert_eq!(reply.status, 200, "{}", reply.text);
    let mut texts = vec![String::new(); count];
    let mut ends = 0;
    for chunk in events(&reply.text) {
        for choice in chunk["choices"].as_array().unwrap() {
            let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
            texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            ends += usize::from(choice["finish_reason"] == "stop");
        }
    }
    assert_eq!(ends, count);
    texts
}

#[test]
fn every_mode_writes_the_same_json_of_the_schema() {
    let modes = modes();
    for sampling in [
        json!({"temperature": 0}),
        json!({"temperature": 1, "seed": 1}),
        json!({"temperature": 1, "seed": 2, "n": 2}),
        json!({"temperature": 1.3, "seed": 3, "n": 2, "spec_decode": false}),
    ] {
        let body = with(chat(QUESTION), json!({"response_format": format(nested())}));
        let body = with(with(body, json!({"max_tokens": 300})), sampling);
        let expected = contents(&modes[0].post(CHAT, &body).ok());
        expected.iter().for_each(|text| check_nested(text));
        for server in &modes {
            let answer = server.post(CHAT, &body).ok();
            assert_eq!(contents(&answer), expected, "{body}");
            assert_eq!(streamed(server, &body, expected.len()), expected);
        }
    }
    for server in &modes {
        assert!(server.metric("spinney_grammar_mask_seconds_count") > 20.0);
    }
}

#[test]
fn bound_and_free_requests_run_beside_each_other() {
    let server = Arc::new(Server::start(&["--speculative-ddtree-budget=15"]));
    let bodies: Vec<Value> = (0..6)
        .map(|index| {
            let sampled = json!({"temperature": 1, "seed": index, "max_tokens": 100});
            let body = with(chat(QUESTION), sampled);
            match index % 3 {
                0 => body,
                1 => with(
                    body,
                    json!({"response_format": format(nested()), "max_tokens": 500}),
                ),
                _ => with(body, json!({"response_format": {"type": "json_object"}})),
            }
        })
        .collect();
    let ask = |server: &Server, body: &Value| {
        let choice = server.post(CHAT, body).ok()["choices"][0].clone();
        let text = choice["message"]["content"].as_str().unwrap().to_owned();
        (text, choice["finish_reason"].clone())
    };
    let alone: Vec<_> = bodies.iter().map(|body| ask(&server, body)).collect();
    let threads: Vec<_> = (bodies.iter().cycle().take(12).cloned())
        .map(|body| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || ask(&server, &body))
        })
        .collect();
    for (index, thread) in threads.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap(), alone[index % 6], "{}", index % 6);
    }
    check_nested(&alone[1].0);
    for (text, end) in [&alone[2], &alone[5]] {
        assert!(text.starts_with('{'), "{text}");
        if end == "stop" {
            let value: Value = serde_json::from_str(text).unwrap();
            assert!(value.is_object());
        }
    }
}

#[test]
fn the_limit_cuts_json_and_says_so() {
    let server = Server::shared();
    let bound = json!({"response_format": format(nested()), "max_tokens": 5});
    let answer = server.post(CHAT, &with(chat(QUESTION), bound)).ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.starts_with('{') && !text.ends_with('}'), "{text}");
    assert_eq!(answer["usage"]["completion_tokens"], 5);
}

#[test]
fn the_end_of_the_text_needs_no_token() {
    let server = Server::shared();
    let bound = json!({"response_format": format(json!({"const": {"a": 1}})), "logprobs": true});
    let answer = server.post(CHAT, &with(chat(QUESTION), bound)).ok();
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(text).unwrap(),
        json!({"a": 1})
    );
    assert_eq!(
        (&choice["finish_reason"], &choice["matched_stop"]),
        (&json!("stop"), &Value::Null)
    );
    let lines = choice["logprobs"]["content"].as_array().unwrap();
    let spelled: String = lines
        .iter()
        .map(|line| line["token"].as_str().unwrap())
        .collect();
    assert_eq!(spelled, text);
    assert_eq!(answer["usage"]["completion_tokens"], lines.len());
}

#[test]
fn json_comes_behind_the_reasoning() {
    let modes = modes();
    let mut seen = Vec::new();
    for server in &modes {
        let mut texts = Vec::new();
        for sampling in [
            json!({"temperature": 0}),
            json!({"temperature": 1, "seed": 4}),
        ] {
            let bound = json!({"response_format": format(nested()), "enable_thinking": true,
                "max_tokens": 600});
            let answer = server
                .post(CHAT, &with(with(chat(QUESTION), bound), sampling))
                .ok();
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "stop", "{answer}");
            let message = &choice["message"];
            let reasoning = message["reasoning_content"].as_str().unwrap();
            assert!(!reasoning.is_empty(), "{answer}");
            check_nested(message["content"].as_str().unwrap());
            texts.push(message.clone());
        }
        seen.push(texts);
    }
    assert!(seen.iter().all(|texts| *texts == seen[0]), "{seen:?}");
}

#[test]
fn completions_are_bound_too() {
    let server = Server::shared();
    let body = json!({"model": "spinney-tiny", "prompt": ["As JSON: ", "{} "], "max_tokens": 300,
        "response_format": format(nested())});
    let answer = server.post("/v1/completions", &body).ok();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        check_nested(choice["text"].as_str().unwrap());
    }
}

#[test]
fn objects_may_have_thousands_of_properties() {
    let server = Server::shared();
    let names = (0..2_000).map(|index| (format!("p{index}"), json!({"type": "integer"})));
    let wide = json!({"type": "object", "properties": names.collect::<Map<_, _>>(),
        "additionalProperties": false});
    let body = with(
        chat(QUESTION),
        json!({"response_format": format(wide), "max_tokens": 12}),
    );
    let answer = server.post(CHAT, &body).ok();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(
        text.starts_with('{') && answer["usage"]["completion_tokens"] != 1,
        "{text}"
    );
}

#[test]
fn schemas_that_cannot_be_obeyed_are_refused() {
    let server = Server::shared();
    let kind = "invalid_request_error";
    let invalid = Some("invalid_json_schema");
    let param = Some("response_format.json_schema.schema");
    for (schema, word) in [
        (json!({"type": "strange"}), "strange"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"$ref": "#/nowhere"}), "nowhere"),
        (json!({"type": "string", "pattern": "("}), "unclosed"),
        (json!({"$ref": "#"}), "itself"),
        (
            json!({"$ref": "#/$defs/a", "$defs": {
                "a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
            "itself",
        ),
    ] {
        let body = with(chat(QUESTION), json!({"response_format": format(schema)}));
        let message = server.post(CHAT, &body).refused(400, kind, invalid, param);
        assert!(message.contains(word), "{message}");
    }
    // What is not strict leaves out what cannot be enforced, and that is counted.
    let loose = json!({"name": "a", "schema": {"enum": [[1]], "uniqueItems": true}});
    let loose = json!({"type": "json_schema", "json_schema": loose});
    let body = with(chat(QUESTION), json!({"response_format": loose}));
    contents(&server.post(CHAT, &body).ok());
    assert!(server.metric("spinney_ignored_fields_total") >= 1.0);
    let none = Server::start(&["--grammar-backend=none"]);
    for bound in [json!({"type": "json_object"}), format(nested())] {
        let body = with(chat(QUESTION), json!({"response_format": bound}));
        let unsupported = Some("unsupported_value");
        let reply = none.post(CHAT, &body);
        reply.refused(400, kind, unsupported, Some("response_format"));
    }
    let body = with(chat(QUESTION), json!({"response_format": {"type": "text"}}));
    contents(&none.post(CHAT, &body).ok());
}

fn tools() -> Value {
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"query": {"type": "string"}}}}})
    };
    json!([tool("look_up"), tool("look_around"), tool("wait")])
}

/// The name that was called, be it in the text or beside it.
fn called(choice: &Value) -> String {
    let message = &choice["message"];
    if let Some(name) = message.pointer("/tool_calls/0/function/name") {
        return name.as_str().unwrap().to_owned();
    }
    let text = message["content"].as_str().unwrap_or_default();
    let rest = text
        .trim_start()
        .strip_prefix("<tool_call>\n<function=")
        .unwrap_or_else(|| panic!("no call in {message}"));
    rest.split(">\n").next().unwrap().to_owned()
}

#[test]
fn calls_can_be_forced_and_their_names_restricted() {
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [function("wait"), function("look_around")]}});
    let modes = modes();
    let none = Server::start(&["--grammar-backend=none"]);
    for thinking in [false, true] {
        for (choice, names) in [
            (json!("required"), &["look_up", "look_around", "wait"][..]),
            (function("look_around"), &["look_around"]),
            (function("wait"), &["wait"]),
            (allowed.clone(), &["wait", "look_around"]),
        ] {
            for sampling in [
                json!({"temperature": 0}),
                json!({"temperature": 1, "seed": 5}),
            ] {
                let body = json!({"tools": tools(), "tool_choice": choice, "max_tokens": 120,
                    "enable_thinking": thinking});
                let body = with(with(chat(QUESTION), body), sampling);
                let ask = |server: &Server| server.post(CHAT, &body).ok()["choices"][0].clone();
                let expected = called(&ask(&none));
                assert!(names.contains(&&*expected), "{expected} for {choice}");
                for server in &modes {
                    assert_eq!(called(&ask(server)), expected, "{body}");
                }
            }
        }
    }
}

#[test]
fn choices_of_calls_that_make_no_sense_are_refused() {
    let server = Server::shared();
    let named = json!({"type": "function", "function": {"name": "fly"}});
    for extra in [
        json!({"tool_choice": "required"}),
        json!({"tool_choice": named, "tools": tools()}),
        json!({"tool_choice": "required", "tools": tools(),
            "response_format": {"type": "json_object"}}),
    ] {
        let reply = server.post(CHAT, &with(chat(QUESTION), extra));
        let (kind, code) = ("invalid_request_error", Some("invalid_value"));
        reply.refused(400, kind, code, Some("tool_choice"));
    }
}

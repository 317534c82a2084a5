//! Anthropic's API.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/named_events.rs"]
mod named_events;
#[path = "common/server.rs"]
mod server;

use named_events::named_events;
use serde_json::{Value, json};
use server::{Server, chat, post_bytes, with};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn ask(text: &str) -> Value {
    with(chat(text), json!({"max_tokens": 200, "temperature": 0}))
}

fn tools() -> Value {
    json!([
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "get_weather", "description": "Weather for a city", "input_schema": {
            "type": "object", "required": ["city"],
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}},
        {"name": "set_timer", "description": "Starts a timer", "input_schema": {
            "type": "object", "required": ["minutes"],
            "properties": {"minutes": {"type": "integer"}}}},
    ])
}

/// The message that the events add up to. Checks their order.
fn gather(events: &[Value]) -> Value {
    let kind = |event: &Value| event["type"].as_str().unwrap().to_owned();
    let (first, rest) = events.split_first().unwrap();
    assert_eq!(kind(first), "message_start");
    let mut message = first["message"].clone();
    assert_eq!(message["content"], json!([]));
    let mut content: Vec<Value> = Vec::new();
    let mut open: Option<(Value, String)> = None;
    let (last, rest) = rest.split_last().unwrap();
    assert_eq!(*last, json!({"type": "message_stop"}));
    let (end, rest) = rest.split_last().unwrap();
    assert_eq!(kind(end), "message_delta");
    for event in rest {
        assert_eq!(event["index"], content.len());
        match kind(event).as_str() {
            "content_block_start" => {
                assert!(open.is_none());
                open = Some((event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                let (block, json) = open.as_mut().unwrap();
                let (delta, field) = (&event["delta"], block["type"].clone());
                let field = field.as_str().unwrap();
                match delta["type"].as_str().unwrap() {
                    "input_json_delta" => json.push_str(delta["partial_json"].as_str().unwrap()),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    kind => {
                        assert_eq!(kind, format!("{field}_delta"));
                        assert_eq!(block["signature"].as_str().unwrap_or(""), "");
                        let text = block[field].as_str().unwrap().to_owned();
                        block[field] = (text + delta[field].as_str().unwrap()).into();
                    }
                }
            }
            "content_block_stop" => {
                let (mut block, json) = open.take().unwrap();
                if !json.is_empty() {
                    block["input"] = serde_json::from_str(&json).unwrap();
                }
                content.push(block);
            }
            other => panic!("{other}"),
        }
    }
    assert!(open.is_none());
    message["content"] = content.into();
    for name in ["stop_reason", "stop_sequence"] {
        message[name] = end["delta"][name].clone();
    }
    assert_eq!(
        message["usage"]["input_tokens"],
        end["usage"]["input_tokens"]
    );
    message["usage"] = end["usage"].clone();
    message
}

fn without_ids(message: &Value) -> Value {
    let mut message = message.clone();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    message.as_object_mut().unwrap().remove("id");
    for block in message["content"].as_array_mut().unwrap() {
        if let Some(id) = block.as_object_mut().unwrap().remove("id") {
            assert!(id.as_str().unwrap().starts_with("toolu_"));
        }
    }
    message
}

/// The answer, after checking that a stream of it and the count of its prompt say the same.
fn answer(server: &Server, body: &Value) -> Value {
    let whole = server.post(MESSAGES, body).ok();
    let streamed = server.post(MESSAGES, &with(body.clone(), json!({"stream": true})));
    assert_eq!(streamed.status, 200, "{}", streamed.text);
    let message = gather(&named_events(&streamed.text));
    assert_eq!(without_ids(&message), without_ids(&whole));
    let mut conversation = body.clone();
    conversation.as_object_mut().unwrap().remove("max_tokens");
    let count = server.post(COUNT, &conversation).ok();
    assert_eq!(
        count,
        json!({"input_tokens": whole["usage"]["input_tokens"]})
    );
    assert_eq!(
        (&whole["type"], &whole["role"]),
        (&json!("message"), &json!("assistant"))
    );
    whole
}

#[test]
fn a_question_is_answered() {
    let server = Server::shared();
    let question = "What is 2+2? Answer with just the number.";
    let whole = answer(&server, &ask(question));
    let body = with(chat(question), json!({"temperature": 0}));
    let plain = server.post("/v1/chat/completions", &body).ok();
    let text = &plain["choices"][0]["message"]["content"];
    assert_eq!(whole["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(
        (&whole["stop_reason"], &whole["stop_sequence"]),
        (&json!("end_turn"), &json!(null))
    );
    assert_eq!(
        whole["usage"],
        json!({"input_tokens": plain["usage"]["prompt_tokens"],
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": plain["usage"]["completion_tokens"]})
    );
    assert_eq!(whole["model"], "spinney-tiny");
    let stop = text.as_str().unwrap().trim();
    let stopped = answer(
        &server,
        &with(ask(question), json!({"stop_sequences": [stop]})),
    );
    assert_eq!(stopped["stop_reason"], "stop_sequence");
    assert_eq!(stopped["stop_sequence"], stop);
    let cut = answer(
        &server,
        &with(ask("Tell me a story."), json!({"max_tokens": 2})),
    );
    assert_eq!(cut["stop_reason"], "max_tokens");
    assert_eq!(cut["usage"]["output_tokens"], 2);
}

#[test]
fn tools_are_called_and_results_are_answered() {
    let server = Server::shared();
    let mut body = with(
        ask("What is the weather in Oslo?"),
        json!({"tools": tools()}),
    );
    let first = answer(&server, &body);
    assert_eq!(first["stop_reason"], "tool_use");
    let call = first["content"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("tool_use"), &json!("get_weather"))
    );
    assert_eq!(call["input"], json!({"city": "Oslo"}));
    let result = json!({"type": "tool_result", "tool_use_id": call["id"],
        "content": [{"type": "text", "text": "{\"t\": 3, \"sky\": \"rainy\"}"}]});
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": first["content"]}));
    messages.push(json!({"role": "user", "content": [result]}));
    let second = answer(&server, &body);
    assert_eq!(
        second["content"][0]["text"],
        "It is rainy in Oslo with 3 degrees."
    );
    assert_eq!(second["stop_reason"], "end_turn");
    let single = json!({"tools": tools(),
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
    let both = answer(
        &server,
        &with(ask("Weather in Oslo and Rome?"), json!({"tools": tools()})),
    );
    assert_eq!(both["content"].as_array().unwrap().len(), 2);
    let single = answer(&server, &with(ask("Weather in Oslo and Rome?"), single));
    assert_eq!(single["content"].as_array().unwrap().len(), 1);
    let named = json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "set_timer"}});
    let named = server
        .post(MESSAGES, &with(ask("Weather in Oslo?"), named))
        .ok();
    assert_eq!(named["content"][0]["name"], "set_timer");
    let none = json!({"tools": tools(), "tool_choice": {"type": "none"}});
    let none = answer(&server, &with(ask("Weather in Oslo?"), none));
    assert_eq!(none["content"][0]["type"], "text");
}

#[test]
fn thoughts_are_shown_to_those_who_asked() {
    let flag = r#"--default-chat-template-kwargs={"enable_thinking": true}"#;
    let server = Server::start(&[flag, "--disable-radix-cache"]);
    let body = with(ask("Weather in Oslo?"), json!({"tools": tools()}));
    let kinds = |message: &Value| -> Vec<String> {
        let content = message["content"].as_array().unwrap().iter();
        content
            .map(|block| block["type"].as_str().unwrap().to_owned())
            .collect()
    };
    let enabled = json!({"thinking": {"type": "enabled", "budget_tokens": 1_024}});
    let shown = answer(&server, &with(body.clone(), enabled));
    assert_eq!(kinds(&shown), ["thinking", "tool_use"]);
    assert_eq!(
        shown["content"][0]["thinking"],
        "I should call get_weather."
    );
    assert!(
        !shown["content"][0]["signature"]
            .as_str()
            .unwrap()
            .is_empty()
    );
    let unsaid = answer(&server, &body);
    assert_eq!(kinds(&unsaid), ["tool_use"]);
    assert_eq!(unsaid["usage"], shown["usage"], "it thought all the same");
    let off = answer(
        &server,
        &with(body, json!({"thinking": {"type": "disabled"}})),
    );
    assert_eq!(kinds(&off), ["tool_use"]);
    assert!(off["usage"]["output_tokens"].as_u64() < shown["usage"]["output_tokens"].as_u64());
}

#[test]
fn an_answer_that_was_begun_is_gone_on_with() {
    let server = Server::shared();
    let mut body = ask("What is 2+2? Answer with just the number.");
    let list = body["messages"].as_array_mut().unwrap();
    list.push(json!({"role": "assistant", "content": "The answer is"}));
    let begun = server.post(COUNT, &body).ok();
    let chat = with(body.clone(), json!({"continue_final_message": true}));
    let same = server
        .post(
            "/v1/chat/completions",
            &with(chat, json!({"max_tokens": 1})),
        )
        .ok();
    assert_eq!(begun["input_tokens"], same["usage"]["prompt_tokens"]);
}

#[test]
fn what_clients_add_for_another_server_is_left_out() {
    let count = |server: &Server, system: Value| {
        let body = with(ask("Hi"), json!({"system": system}));
        server.post(COUNT, &body).ok()["input_tokens"]
            .as_u64()
            .unwrap()
    };
    let plain = json!("Be brief.");
    let marked = json!([
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.0; cch=a1b2c"},
        {"type": "text", "text": "Be brief.\n<total_tokens>99</total_tokens>",
            "cache_control": {"type": "ephemeral"}},
    ]);
    let server = Server::shared();
    assert_eq!(
        count(&server, plain.clone()),
        count(&server, marked.clone())
    );
    let server = Server::start(&["--no-strip-client-markers"]);
    assert!(count(&server, plain) < count(&server, marked));
}

/// Checks the form of an error; returns its message.
fn refused(reply: &server::Reply, status: u16, kind: &str) -> String {
    assert_eq!(reply.status, status, "{}", reply.text);
    let body = reply.json();
    let keys: Vec<_> = body.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["type", "error", "request_id"]);
    assert_eq!(
        (&body["type"], &body["error"]["type"]),
        (&json!("error"), &json!(kind))
    );
    assert_eq!(body["request_id"], reply.header("x-request-id"));
    assert_eq!(body["request_id"], reply.header("request-id"));
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn errors_have_a_form_of_their_own() {
    let server = Server::start(&["--api-key=k", "--max-body-size=4KiB", "--context-length=64"]);
    let key = [("x-api-key", "k"), ("anthropic-version", "2023-06-01")];
    let post = |body: &Value| server.post_with("/v1/messages?beta=true", &key, body);
    let invalid = "invalid_request_error";
    assert_eq!(post(&ask("Hi")).status, 200);
    refused(
        &server.post(MESSAGES, &ask("Hi")),
        401,
        "authentication_error",
    );
    refused(&server.post(COUNT, &ask("Hi")), 401, "authentication_error");
    refused(&server.get(MESSAGES), 405, invalid);
    refused(&server.get("/v1/messages/batches"), 404, "not_found_error");
    refused(
        &post(&with(ask("Hi"), json!({"model": "claude"}))),
        404,
        "not_found_error",
    );
    let message = refused(
        &post(&with(ask("Hi"), json!({"max_tokens": null}))),
        400,
        invalid,
    );
    assert!(message.contains("max_tokens"), "{message}");
    refused(
        &post(&with(ask("Hi"), json!({"temperature": 1.5}))),
        400,
        invalid,
    );
    refused(&post(&ask(&"x".repeat(5_000))), 413, "request_too_large");
    let message = refused(&post(&ask(&"word ".repeat(300))), 400, invalid);
    let (prompt, context) = message
        .strip_prefix("prompt is too long: ")
        .and_then(|rest| rest.strip_suffix(" maximum"))
        .and_then(|rest| rest.split_once(" tokens > "))
        .unwrap_or_else(|| panic!("{message}"));
    assert!(
        prompt.parse::<u64>().unwrap() > 64 && context == "64",
        "{message}"
    );
    let text = post_bytes(MESSAGES, "{}").replace("application/json", "text/plain");
    let text = text.replace("Host:", "x-api-key: k\r\nHost:");
    let answer = server.raw(text.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 415"), "{answer}");
    assert!(answer.contains(r#"{"type":"error","error":{"type":"invalid_request_error""#));
    // Other paths keep their own form.
    assert!(
        server.get("/v1/models").json()["error"]
            .get("code")
            .is_some()
    );
}

#[test]
fn an_aborted_message_has_no_end_but_an_error() {
    let server = Server::start(&["--log-format=json"]);
    let body = with(
        ask("Tell me a story."),
        json!({"ignore_eos": true, "max_tokens": 3_000, "speculative": false, "rid": "a",
            "thinking": {"type": "adaptive"}}),
    );
    let limit = std::time::Duration::from_secs(20);
    for stream in [true, false] {
        let mut connection = server.begin(MESSAGES, &with(body.clone(), json!({"stream": stream})));
        server.until_metric("vllm:num_requests_running", 1.0, limit);
        let aborted = server.post("/abort_request", &json!({"rid": "a"})).ok();
        assert_eq!(aborted["aborted"], 1);
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut connection, &mut answer).unwrap();
        assert!(!answer.contains("end_turn"), "{answer}");
        assert!(answer.contains("\"type\":\"api_error\""), "{answer}");
        if stream {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(
                answer.contains("event: error\ndata: {\"type\":\"error\""),
                "{answer}"
            );
            assert!(!answer.contains("message_stop"), "{answer}");
            assert!(!answer.contains("event: message_delta"), "{answer}");
        } else {
            assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
            assert!(answer.contains("x-should-retry: false"), "{answer}");
        }
    }
}

#[test]
fn a_stream_says_at_its_start_what_was_cached() {
    let server = Server::start(&["--prefix-cache-interval=64"]);
    let body = with(
        ask(&"What is the weather in Oslo? ".repeat(20)),
        json!({"max_tokens": 2}),
    );
    let first = answer_of(&server, &body);
    assert_eq!(first["cache_read_input_tokens"], 0, "{first}");
    let streamed = with(body.clone(), json!({"stream": true}));
    let events = named_events(&server.post(MESSAGES, &streamed).text);
    let (start, end) = (
        &events[0]["message"]["usage"],
        &events[events.len() - 2]["usage"],
    );
    assert!(
        start["cache_read_input_tokens"].as_u64() >= Some(64),
        "{start}"
    );
    for name in ["input_tokens", "cache_read_input_tokens"] {
        assert_eq!(start[name], end[name], "{name}");
    }
    let sum = |usage: &Value| {
        let count = |name: &str| usage[name].as_u64().unwrap();
        count("input_tokens") + count("cache_read_input_tokens")
    };
    assert_eq!(sum(start), sum(&first));
    // The same of the usage in every chunk of the other APIs.
    let usage = json!({"continuous_usage_stats": true, "include_usage": true});
    let chat = json!({"model": "", "messages": body["messages"], "max_tokens": 5, "stream": true,
        "stream_options": usage, "ignore_eos": true});
    let chunks = server::events(&server.post("/v1/chat/completions", &chat).text);
    let native = json!({"text": "What is the weather in Oslo? ".repeat(20), "stream": true,
        "sampling_params": {"max_new_tokens": 5, "ignore_eos": true}});
    server.post("/generate", &native);
    let pieces = server::events(&server.post("/generate", &native).text);
    let cached: [Vec<_>; 2] = [
        chunks
            .iter()
            .map(|chunk| &chunk["usage"]["prompt_tokens_details"]["cached_tokens"])
            .collect(),
        pieces
            .iter()
            .map(|piece| &piece["meta_info"]["cached_tokens"])
            .collect(),
    ];
    for counts in cached {
        assert!(
            counts.len() > 1 && counts[0].as_u64() >= Some(64),
            "{counts:?}"
        );
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    }
}

fn answer_of(server: &Server, body: &Value) -> Value {
    server.post(MESSAGES, body).ok()["usage"].clone()
}

#[test]
fn fields_of_other_apis_are_refused_by_the_names_they_have_here() {
    let server = Server::shared();
    for (extra, name, here) in [
        (json!({"stop": "a"}), "'stop'", "'stop_sequences'"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "'response_format'",
            "'output_config.format'",
        ),
        (json!({"logprobs": true}), "'logprobs'", "nothing here"),
    ] {
        for path in [MESSAGES, COUNT] {
            let reply = server.post(path, &with(ask("Hi"), extra.clone()));
            assert_eq!(reply.status, 400, "{}", reply.text);
            let error = reply.json()["error"].clone();
            assert_eq!(error["type"], "invalid_request_error");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains(name) && message.contains(here),
                "{message}"
            );
        }
    }
}

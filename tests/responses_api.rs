//! OpenAI's newer API.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/named_events.rs"]
mod named_events;
#[path = "common/server.rs"]
mod server;

use named_events::named_events;
use serde_json::{Value, json};
use server::{Server, with};

const RESPONSES: &str = "/v1/responses";

fn ask(text: &str) -> Value {
    json!({"model": "spinney-tiny", "input": text, "temperature": 0, "max_output_tokens": 200})
}

fn weather() -> Value {
    json!({"type": "function", "name": "get_weather", "description": "Weather for a city",
        "parameters": {"type": "object", "required": ["city"],
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}})
}

fn tools() -> Value {
    let timer = json!({"type": "function", "name": "set_timer", "description": "Starts a timer",
        "parameters": {"type": "object", "required": ["minutes"],
        "properties": {"minutes": {"type": "integer"}}}});
    json!([{"type": "web_search"}, weather(), timer])
}

#[test]
fn fields_of_the_other_api_are_refused_by_the_names_they_have_here() {
    let server = Server::shared();
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {}}});
    for (extra, param, here) in [
        (
            json!({"max_tokens": 5}),
            "max_tokens",
            "'max_output_tokens'",
        ),
        (
            json!({"max_completion_tokens": 5}),
            "max_completion_tokens",
            "'max_output_tokens'",
        ),
        (
            json!({"response_format": format}),
            "response_format",
            "'text.format'",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}]}),
            "messages",
            "'input'",
        ),
        (json!({"guided_json": {}}), "guided_json", "not supported"),
        (json!({"n": 2}), "n", "nothing here"),
    ] {
        for path in [RESPONSES, "/v1/responses/input_tokens"] {
            // Beside its own field a foreign one asks for nothing more.
            let mut body = with(ask("Hi"), extra.clone());
            for own in ["max_output_tokens", "input"] {
                if here.contains(own) {
                    body.as_object_mut().unwrap().remove(own);
                }
            }
            let reply = server.post(path, &body);
            let code = Some("unsupported_parameter");
            let message = reply.refused(400, "invalid_request_error", code, Some(param));
            assert!(message.contains(here), "{message}");
        }
    }
    let harmless = json!({"response_format": {"type": "text"}, "n": 1, "max_tokens": 1,
        "max_output_tokens": 1, "never_heard_of": 1});
    server.post(RESPONSES, &with(ask("Hi"), harmless)).ok();
}

/// Names of the events without `response.`, runs of deltas as one.
fn names(events: &[Value]) -> Vec<&str> {
    let mut names: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .map(|name| name.strip_prefix("response.").unwrap())
        .collect();
    names.dedup_by(|a, b| a == b && a.ends_with("delta"));
    names
}

/// The response at the end, after checking that the events before lead there.
fn gather(events: &[Value]) -> Value {
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let [created, begun, rest @ .., last] = events else {
        panic!("{events:?}");
    };
    assert_eq!(created["response"], begun["response"]);
    let begun = &begun["response"];
    assert_eq!(
        (&begun["status"], &begun["output"]),
        (&json!("in_progress"), &json!([]))
    );
    let response = &last["response"];
    let status = response["status"].as_str().unwrap();
    assert_eq!(last["type"], format!("response.{status}"));
    let mut items = Vec::new();
    let mut text = String::new();
    for event in rest {
        assert_eq!(event["output_index"], items.len(), "{event}");
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(event["item"]["status"], "in_progress");
                text.clear();
            }
            "response.output_item.done" => {
                let item = &event["item"];
                let said = match item["type"].as_str().unwrap() {
                    "function_call" => &item["arguments"],
                    "custom_tool_call" => &item["input"],
                    _ => &item["content"][0]["text"],
                };
                assert_eq!(*said, text, "{item}");
                items.push(item.clone());
            }
            name if name.ends_with("delta") => text.push_str(event["delta"].as_str().unwrap()),
            _ => {}
        }
    }
    assert_eq!(response["output"], Value::from(items));
    assert_eq!(response["id"], begun["id"]);
    response.clone()
}

/// Without what differs from request to request.
fn without_ids(response: &Value) -> Value {
    let mut response = response.clone();
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    let fields = response.as_object_mut().unwrap();
    for name in ["id", "created_at", "completed_at"] {
        fields.remove(name);
    }
    for item in response["output"].as_array_mut().unwrap() {
        for name in ["id", "call_id"] {
            item.as_object_mut().unwrap().remove(name);
        }
    }
    response
}

/// The answer and the names of the events of a stream of it, which must say the same.
fn answer(server: &Server, body: &Value) -> (Value, Vec<String>) {
    let whole = server.post(RESPONSES, body).ok();
    let streamed = server.post(RESPONSES, &with(body.clone(), json!({"stream": true})));
    assert_eq!(streamed.status, 200, "{}", streamed.text);
    let events = named_events(&streamed.text);
    assert_eq!(without_ids(&gather(&events)), without_ids(&whole));
    let count = server.post("/v1/responses/input_tokens", body).ok();
    let tokens = &whole["usage"]["input_tokens"];
    assert_eq!(
        count,
        json!({"object": "response.input_tokens", "input_tokens": tokens})
    );
    let names = names(&events).into_iter().map(str::to_owned).collect();
    (whole, names)
}

#[test]
fn a_question_is_answered() {
    let server = Server::shared();
    let question = "What is 2+2? Answer with just the number.";
    let body = with(
        ask(question),
        json!({"metadata": {"a": "b"}, "store": true}),
    );
    let (whole, names) = answer(&server, &body);
    let chat = with(server::chat(question), json!({"temperature": 0}));
    let plain = server.post("/v1/chat/completions", &chat).ok();
    let text = &plain["choices"][0]["message"]["content"];
    let [item] = &whole["output"].as_array().unwrap()[..] else {
        panic!("{whole}");
    };
    assert_eq!(
        item["content"],
        json!([{"type": "output_text", "text": text, "annotations": [],
        "logprobs": []}])
    );
    assert_eq!(
        (&item["type"], &item["role"]),
        (&json!("message"), &json!("assistant"))
    );
    assert_eq!(
        (&whole["status"], &whole["object"]),
        (&json!("completed"), &json!("response"))
    );
    assert_eq!(
        whole["usage"]["total_tokens"],
        plain["usage"]["total_tokens"]
    );
    assert_eq!(
        (&whole["metadata"], &whole["store"]),
        (&json!({"a": "b"}), &json!(false))
    );
    for name in [
        "error",
        "incomplete_details",
        "previous_response_id",
        "instructions",
    ] {
        assert!(whole.get(name).unwrap().is_null(), "{name}");
    }
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names, expected);
}

#[test]
fn an_answer_may_be_cut_and_has_log_probabilities() {
    let server = Server::shared();
    let question = "What is 2+2? Answer with just the number.";
    let cut = with(ask("Tell me a story."), json!({"max_output_tokens": 2}));
    let (cut, names) = answer(&server, &cut);
    assert_eq!(names.last().unwrap(), "incomplete");
    assert_eq!(
        cut["incomplete_details"],
        json!({"reason": "max_output_tokens"})
    );
    assert!(cut["completed_at"].is_null());
    assert_eq!(cut["output"][0]["status"], "incomplete");
    let (lines, _) = answer(&server, &with(ask(question), json!({"top_logprobs": 2})));
    let lines = lines["output"][0]["content"][0]["logprobs"]
        .as_array()
        .unwrap();
    assert!(!lines.is_empty());
    assert!(
        lines
            .iter()
            .all(|line| line["top_logprobs"].as_array().unwrap().len() == 2)
    );
}

#[test]
fn tools_are_called_and_results_are_answered() {
    let server = Server::shared();
    let question = json!({"role": "user", "content": "What is the weather in Oslo?"});
    let body = with(ask(""), json!({"input": [question], "tools": tools()}));
    let (first, names) = answer(&server, &body);
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names, expected);
    assert_eq!(first["tools"], tools());
    let call = &first["output"][0];
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("get_weather"))
    );
    assert_eq!(call["arguments"], r#"{"city": "Oslo"}"#);
    assert!(call["id"].as_str().unwrap().starts_with("fc_"));
    let result = json!({"type": "function_call_output", "call_id": call["call_id"],
        "output": "{\"t\": 3, \"sky\": \"rainy\"}"});
    let input = json!([question, {"type": "web_search_call", "id": "ws_1"}, call, result]);
    let (second, _) = answer(&server, &with(body.clone(), json!({"input": input})));
    let text = &second["output"][0]["content"][0]["text"];
    assert_eq!(*text, "It is rainy in Oslo with 3 degrees.");
    let forced = json!({"tool_choice": {"type": "function", "name": "set_timer"}});
    let forced = server.post(RESPONSES, &with(body, forced)).ok();
    assert_eq!(forced["output"][0]["name"], "set_timer");
}

#[test]
fn a_custom_tool_gets_a_text() {
    let server = Server::shared();
    let tool = json!({"type": "custom", "name": "set_timer", "description": "Starts a timer"});
    let body = with(
        ask("Set a timer for 7 minutes."),
        json!({"tools": [tool], "tool_choice": {"type": "custom", "name": "set_timer"}}),
    );
    let (whole, names) = answer(&server, &body);
    let call = &whole["output"][0];
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("custom_tool_call"), &json!("set_timer"))
    );
    assert!(call["input"].is_string() && call.get("arguments").is_none());
    assert!(
        names.contains(&"custom_tool_call_input.done".to_owned()),
        "{names:?}"
    );
    let call_id = &call["call_id"];
    let result = json!({"type": "custom_tool_call_output", "call_id": call_id, "output": "ok"});
    let input = json!([{"role": "user", "content": "Set a timer."}, call, result]);
    let next = with(body, json!({"input": input, "tool_choice": "auto"}));
    assert_eq!(server.post(RESPONSES, &next).status, 200);
}

#[test]
fn thoughts_are_an_item_of_their_own() {
    let server = Server::shared();
    let thinking = json!({"tools": tools(), "reasoning": {"effort": "high", "summary": "auto"}});
    let body = with(ask("Weather in Oslo?"), thinking);
    let (whole, names) = answer(&server, &body);
    let items = whole["output"].as_array().unwrap();
    assert_eq!(items[0]["type"], "reasoning");
    let text = json!([{"type": "reasoning_text", "text": "I should call get_weather."}]);
    assert_eq!(
        (&items[0]["content"], &items[0]["summary"]),
        (&text, &json!([]))
    );
    assert_eq!(items[1]["type"], "function_call");
    let order = [
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
    ];
    assert_eq!(names[4..7], order);
    assert_eq!(
        whole["reasoning"],
        json!({"effort": "high", "summary": "auto"})
    );
    let tokens = &whole["usage"]["output_tokens_details"]["reasoning_tokens"];
    assert!(tokens.as_u64().unwrap() > 0);
    // What comes back is one message again.
    let question = json!({"role": "user", "content": "Weather in Oslo?"});
    let result = json!({"type": "function_call_output", "call_id": items[1]["call_id"],
        "output": "{\"t\": 3, \"sky\": \"rainy\"}"});
    let input = json!([question, items[0], items[1], result]);
    assert_eq!(
        server
            .post(RESPONSES, &with(body, json!({"input": input})))
            .status,
        200
    );
    let none = with(
        ask("Weather in Oslo?"),
        json!({"reasoning": {"effort": "none"}}),
    );
    let (none, _) = answer(&server, &none);
    assert_eq!(none["output"][0]["type"], "message");
}

#[test]
fn an_answer_is_held_to_a_schema() {
    let server = Server::shared();
    let schema = json!({"type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"type": "boolean"}}});
    let format = json!({"type": "json_schema", "name": "n", "strict": true, "schema": schema});
    let body = with(ask("Hi"), json!({"text": {"format": format}}));
    let (whole, _) = answer(&server, &body);
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    let object: Value = serde_json::from_str(text).unwrap();
    assert!(object["a"].is_boolean(), "{text}");
    assert_eq!(whole["text"], json!({"format": format}));
}

#[test]
fn refusals_name_the_field() {
    let server = Server::start(&["--context-length=64"]);
    let invalid = "invalid_request_error";
    let refuse = |extra: Value, code: &str, param: &str| {
        let reply = server.post(RESPONSES, &with(ask("Hi"), extra));
        reply.refused(400, invalid, Some(code), Some(param))
    };
    let unsupported = "unsupported_parameter";
    let text = refuse(
        json!({"previous_response_id": "r"}),
        unsupported,
        "previous_response_id",
    );
    assert!(text.contains("send the full input"), "{text}");
    refuse(json!({"background": true}), unsupported, "background");
    refuse(
        json!({"input": null}),
        "missing_required_parameter",
        "input",
    );
    refuse(
        json!({"input": [{"role": "system", "content": "a"}]}),
        "invalid_messages",
        "input",
    );
    let double = json!([{"type": "web_search"}, weather(), weather()]);
    refuse(json!({"tools": double}), "invalid_value", "tools.[2].name");
    let long = json!({"input": "word ".repeat(300)});
    let text = refuse(long, "context_length_exceeded", "input");
    assert!(
        text.starts_with("This model's maximum context length is 64 tokens."),
        "{text}"
    );
    let reply = server.post(RESPONSES, &with(ask("Hi"), json!({"model": "gpt"})));
    reply.refused(404, invalid, Some("model_not_found"), Some("model"));
    let kept = server.get("/v1/responses/resp_1");
    assert_eq!(kept.status, 404);
    let delete = "DELETE /v1/responses/resp_1 HTTP/1.1\r\nHost: s\r\nConnection: close\r\n\r\n";
    assert!(server.raw(delete.as_bytes()).starts_with("HTTP/1.1 404"));
}

//! Calls of tools by the bundled pair, which was trained to make some.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use serde_json::{Value, json};
use server::{Server, chat, events, with};

const CHAT: &str = "/v1/chat/completions";

fn tool(name: &str, properties: Value, required: &str) -> Value {
    json!({"type": "function", "function": {"name": name,
        "description": match name { "get_weather" => "Weather for a city", _ => "Starts a timer" },
        "parameters": {"type": "object", "properties": properties, "required": [required]}}})
}

fn weather() -> Value {
    let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}});
    tool("get_weather", properties, "city")
}

fn timer() -> Value {
    tool(
        "set_timer",
        json!({"minutes": {"type": "integer"}}),
        "minutes",
    )
}

fn ask(text: &str) -> Value {
    with(chat(text), json!({"tools": [weather(), timer()]}))
}

/// Names and arguments.
fn calls(message: &Value) -> Vec<(&str, &str)> {
    let calls = message["tool_calls"].as_array().unwrap();
    assert!(!calls.is_empty());
    let part = |call: &'_ Value| {
        assert_eq!(call["type"], "function");
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
    };
    calls.iter().for_each(part);
    calls
        .iter()
        .map(|call| {
            let function = &call["function"];
            (
                function["name"].as_str().unwrap(),
                function["arguments"].as_str().unwrap(),
            )
        })
        .collect()
}

/// The message that the chunks of one choice add up to, and its finish reason. Checks their order.
fn gather(chunks: &[Value]) -> (Value, Value) {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    let choices = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().unwrap());
    for (number, choice) in choices.enumerate() {
        assert!(finish.is_null(), "nothing follows the finish chunk");
        finish = choice["finish_reason"].clone();
        let delta = choice["delta"].as_object().unwrap();
        if number == 0 {
            assert_eq!(choice["delta"], json!({"role": "assistant", "content": ""}));
            continue;
        }
        assert_eq!(delta.len(), usize::from(finish.is_null()), "{delta:?}");
        for (name, value) in delta {
            match name.as_str() {
                "content" => content.push_str(value.as_str().unwrap()),
                "reasoning_content" => reasoning.push_str(value.as_str().unwrap()),
                "tool_calls" => {
                    let [piece] = &value.as_array().unwrap()[..] else {
                        panic!("{value}");
                    };
                    let index = piece["index"].as_u64().unwrap() as usize;
                    let keys: Vec<_> = piece.as_object().unwrap().keys().collect();
                    if index == calls.len() {
                        assert_eq!(keys, ["index", "id", "type", "function"]);
                        assert_eq!(piece["function"]["arguments"], "");
                        calls.push(piece.clone());
                        calls[index].as_object_mut().unwrap().remove("index");
                    } else {
                        assert_eq!(index + 1, calls.len(), "one call after the other");
                        assert_eq!(keys, ["index", "function"]);
                        let function = piece["function"].as_object().unwrap();
                        assert_eq!(function.keys().collect::<Vec<_>>(), ["arguments"]);
                        let more = function["arguments"].as_str().unwrap();
                        assert!(!more.is_empty());
                        let so_far = calls[index]["function"]["arguments"].as_str().unwrap();
                        calls[index]["function"]["arguments"] = format!("{so_far}{more}").into();
                    }
                }
                other => panic!("{other}"),
            }
        }
    }
    let silent = content.is_empty() && !calls.is_empty();
    let content = if silent { Value::Null } else { content.into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    (message, finish)
}

fn without_ids(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(calls) = message.get_mut("tool_calls") {
        for call in calls.as_array_mut().unwrap() {
            call.as_object_mut().unwrap().remove("id");
        }
    }
    message
}

/// The answer, after checking that a stream of it says the same.
fn answer(server: &Server, body: &Value) -> Value {
    let whole = server.post(CHAT, body).ok();
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chunks = events(&server.post(CHAT, &with(body.clone(), options)).text);
    let (message, finish) = gather(&chunks);
    let choice = &whole["choices"][0];
    assert_eq!(without_ids(&message), without_ids(&choice["message"]));
    assert_eq!(finish, choice["finish_reason"]);
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
    let lines = |choice: &Value| choice["logprobs"]["content"].as_array().cloned();
    let streamed = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let streamed: Vec<_> = streamed.filter_map(lines).flatten().collect();
    assert_eq!(streamed, lines(choice).unwrap_or_default());
    whole
}

#[test]
fn a_call_is_no_text() {
    let server = Server::shared();
    let whole = answer(&server, &ask("What is the weather in Oslo?"));
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert!(choice["matched_stop"].is_null());
    let message = &choice["message"];
    assert!(message["content"].is_null());
    assert_eq!(calls(message), [("get_weather", r#"{"city": "Oslo"}"#)]);
    let metrics = server.get("/metrics").text;
    let ended = metrics.lines().find(|line| {
        line.starts_with("vllm:request_success_total") && line.contains("\"tool_calls\"")
    });
    assert!(!ended.unwrap().ends_with(" 0"));
    // Integers are numbers in the arguments.
    let whole = answer(&server, &ask("Set a timer for 7 minutes."));
    let message = &whole["choices"][0]["message"];
    assert_eq!(calls(message), [("set_timer", r#"{"minutes": 7}"#)]);
}

#[test]
fn several_calls_or_one() {
    let server = Server::shared();
    let both = answer(&server, &ask("Weather in Oslo and Rome?"));
    let message = &both["choices"][0]["message"];
    let expected = [
        ("get_weather", r#"{"city": "Oslo"}"#),
        ("get_weather", r#"{"city": "Rome"}"#),
    ];
    assert_eq!(calls(message), expected);
    assert_ne!(
        message["tool_calls"][0]["id"],
        message["tool_calls"][1]["id"]
    );
    let single = with(
        ask("Weather in Oslo and Rome?"),
        json!({"parallel_tool_calls": false}),
    );
    let single = answer(&server, &single);
    let choice = &single["choices"][0];
    assert_eq!(calls(&choice["message"]), expected[..1]);
    assert_eq!(
        (&choice["finish_reason"], &choice["matched_stop"]),
        (&json!("tool_calls"), &json!(null))
    );
    let tokens = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(2 * tokens(&single) <= tokens(&both), "it ended there");
}

#[test]
fn calls_are_text_where_no_tool_may_be_called() {
    let server = Server::shared();
    let question = "Weather in Oslo and Rome?";
    let plain = server.post(CHAT, &chat(question)).ok();
    let none = with(ask(question), json!({"tool_choice": "none"}));
    let none = answer(&server, &none);
    assert_eq!(none["choices"], plain["choices"]);
    assert_eq!(
        none["usage"]["prompt_tokens"],
        plain["usage"]["prompt_tokens"]
    );
}

#[test]
fn a_limit_leaves_a_call_open() {
    let server = Server::shared();
    let question = "What will the weather be in Lima for 3 days?";
    let full = answer(&server, &ask(question));
    let tokens = full["usage"]["completion_tokens"].as_u64().unwrap();
    let message = &full["choices"][0]["message"];
    let [(_, arguments)] = calls(message)[..] else {
        panic!("{message}");
    };
    assert_eq!(arguments, r#"{"city": "Lima", "days": 3}"#);
    let mut seen = Vec::new();
    for limit in 1..tokens {
        let body = with(ask(question), json!({"max_tokens": limit}));
        let cut = match limit % 4 {
            0 => answer(&server, &body),
            _ => server.post(CHAT, &body).ok(),
        };
        let choice = &cut["choices"][0];
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!(cut["usage"]["completion_tokens"], limit);
        if choice["message"].get("tool_calls").is_some() {
            let (name, part) = calls(&choice["message"])[0];
            assert_eq!(name, "get_weather");
            assert!(arguments.starts_with(part), "{part}");
            seen.push(part.to_owned());
        }
    }
    assert!(seen.is_sorted_by_key(String::len));
    assert!(
        seen.iter().any(
            |part| part.starts_with("{\"city\": \"L") && !part.contains('i')
                || part == "{\"city\": \"Lima\""
        ),
        "{seen:?}"
    );
}

#[test]
fn thoughts_come_before_a_call() {
    let server = Server::shared();
    let body = with(
        ask("Weather in Oslo?"),
        json!({"enable_thinking": true, "logprobs": true}),
    );
    let whole = answer(&server, &body);
    let choice = &whole["choices"][0];
    let message = &choice["message"];
    assert_eq!(message["reasoning_content"], "I should call get_weather.");
    assert_eq!(calls(message), [("get_weather", r#"{"city": "Oslo"}"#)]);
    // Every token but the end of turn has its line, marks included.
    let lines = choice["logprobs"]["content"].as_array().unwrap();
    let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(lines.len() as u64, tokens - 1);
    let text: String = lines
        .iter()
        .map(|line| line["token"].as_str().unwrap())
        .collect();
    assert!(
        text.contains("</think>") && text.ends_with("</function>\n</tool_call>"),
        "{text}"
    );
    let thinking = whole["usage"]["reasoning_tokens"].as_u64().unwrap();
    let thought: String = lines[..thinking as usize]
        .iter()
        .map(|line| line["token"].as_str().unwrap())
        .collect();
    assert!(thought.ends_with("</think>"), "{thought}");
    for (name, value) in [("stream_reasoning", false), ("include_reasoning", false)] {
        let body = with(body.clone(), json!({(name): value, "logprobs": false}));
        let other = answer(&server, &body);
        let message = &other["choices"][0]["message"];
        assert_eq!(
            message.get("reasoning_content").is_some(),
            name == "stream_reasoning"
        );
        assert_eq!(calls(message), [("get_weather", r#"{"city": "Oslo"}"#)]);
    }
    let raw = answer(
        &server,
        &with(
            body,
            json!({"separate_reasoning": false, "logprobs": false}),
        ),
    );
    let message = &raw["choices"][0]["message"];
    assert_eq!(message["content"], "I should call get_weather.\n</think>");
    assert_eq!(calls(message).len(), 1);
}

#[test]
fn stop_strings_do_not_see_calls() {
    let server = Server::shared();
    let body = with(
        ask("What is the weather in Oslo?"),
        json!({"stop": ["Oslo", "<function", "\n"]}),
    );
    let whole = answer(&server, &body);
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(calls(&whole["choices"][0]["message"]).len(), 1);
}

#[test]
fn results_are_answered() {
    let server = Server::shared();
    let first = server.post(CHAT, &ask("What is the weather in Oslo?")).ok();
    let call = first["choices"][0]["message"].clone();
    let id = call["tool_calls"][0]["id"].clone();
    let mut body = ask("What is the weather in Oslo?");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(call);
    messages.push(json!({"role": "tool", "tool_call_id": id,
        "content": "{\"t\": 3, \"sky\": \"rainy\"}"}));
    let second = answer(&server, &body);
    let message = &second["choices"][0]["message"];
    assert_eq!(message["content"], "It is rainy in Oslo with 3 degrees.");
    assert!(message.get("tool_calls").is_none());
    assert_eq!(second["choices"][0]["finish_reason"], "stop");
    // The forms that clients send are one conversation.
    let tokens = |edit: &dyn Fn(&mut Value)| {
        let mut body = with(body.clone(), json!({"max_tokens": 1}));
        edit(&mut body["messages"]);
        server.post(CHAT, &body).ok()["usage"]["prompt_tokens"].clone()
    };
    let plain = tokens(&|_| {});
    let function = |messages: &mut Value| messages[1]["tool_calls"][0]["function"].take();
    for (edit, same) in [
        (
            &(|m: &mut Value| m[1]["content"] = json!("")) as &dyn Fn(&mut Value),
            true,
        ),
        (
            &|m| m[1]["tool_calls"][0]["function"]["arguments"] = json!({"city": "Oslo"}),
            true,
        ),
        (
            &|m| m[2]["content"] = json!([{"type": "text", "text": m[2]["content"]}]),
            true,
        ),
        (&|m| m[2]["name"] = json!("get_weather"), true),
        (
            &|m| {
                m[1] = json!({"role": "assistant", "function_call": function(m)});
                m[2]["role"] = json!("function");
            },
            true,
        ),
        (
            &|m| m[1]["tool_calls"][0]["function"]["arguments"] = json!("{\"city\": "),
            false,
        ),
        (
            &|m| m[1]["tool_calls"][0]["function"]["arguments"] = json!(""),
            false,
        ),
        (&|m| m[1]["tool_calls"] = json!([]), false),
    ] {
        assert_eq!(tokens(edit) == plain, same);
    }
}

#[test]
fn several_choices_have_calls_of_their_own() {
    let server = Server::shared();
    let body = with(ask("What is the weather in Oslo?"), json!({"n": 2}));
    let whole = server.post(CHAT, &body).ok();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for choice in choices {
        assert_eq!(
            calls(&choice["message"]),
            [("get_weather", r#"{"city": "Oslo"}"#)]
        );
    }
    let chunks = events(&server.post(CHAT, &with(body, json!({"stream": true}))).text);
    for (index, choice) in choices.iter().enumerate() {
        let own: Vec<_> = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == index)
            .cloned()
            .collect();
        let (message, finish) = gather(&own);
        assert_eq!(finish, "tool_calls");
        assert_eq!(without_ids(&message), without_ids(&choice["message"]));
    }
}

#[test]
fn what_cannot_be_offered_or_chosen() {
    let server = Server::shared();
    let invalid = "invalid_request_error";
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (extra, code, param) in [
        (
            json!({"tool_choice": named("nobody")}),
            "invalid_value",
            "tool_choice",
        ),
        (
            json!({"tool_choice": {"type": "custom"}}),
            "unsupported_value",
            "tool_choice",
        ),
        (
            json!({"tools": [], "tool_choice": "required"}),
            "invalid_value",
            "tool_choice",
        ),
        (
            json!({"tools": [weather(), weather()]}),
            "invalid_value",
            "tools.[1].function.name",
        ),
        (
            json!({"parallel_tool_calls": "no"}),
            "invalid_type",
            "parallel_tool_calls",
        ),
    ] {
        let body = with(ask("Hi"), extra);
        server
            .post(CHAT, &body)
            .refused(400, invalid, Some(code), Some(param));
    }
}

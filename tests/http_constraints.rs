//! Calls that are restricted, answers whose form leaves nothing, schemas without values: from the
//! real server with the bundled pair, in every mode of drafting.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use std::path::Path;

use serde_json::{Map, Value, json};
use server::{Server, chat, events, with};

const CHAT: &str = "/v1/chat/completions";
const BOTH: &str = "Weather in Oslo and Rome?";

/// Plain, chain and tree.
fn modes() -> Vec<Server> {
    [
        &[][..],
        &["--speculative-algorithm=NONE"],
        &["--speculative-algorithm=DFLASH"],
        &[
            "--speculative-algorithm=DDTREE",
            "--speculative-ddtree-budget=15",
        ],
    ]
    .map(|flags| Server::start(&[&["--disable-radix-cache"], flags].concat()))
    .into()
}

fn function(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

/// Two tools that the bundled model was trained to call.
fn tools() -> Value {
    let tool = |name: &str, about: &str, properties: Value, required: &str| {
        json!({"type": "function", "function": {"name": name, "description": about,
            "parameters": {"type": "object", "properties": properties, "required": [required]}}})
    };
    json!([
        tool(
            "get_weather",
            "Weather for a city",
            json!({"city": {"type": "string"}, "days": {"type": "integer"}}),
            "city"
        ),
        tool(
            "set_timer",
            "Starts a timer",
            json!({"minutes": {"type": "integer"}}),
            "minutes"
        )
    ])
}

fn ask(text: &str) -> Value {
    with(chat(text), json!({"tools": tools(), "max_tokens": 200}))
}

fn allowed(mode: &str, names: &[&str]) -> Value {
    let names: Vec<Value> = names.iter().map(|name| function(name)).collect();
    json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}})
}

/// Names and arguments of the calls, the content, how it ended and what it cost, streamed or not.
#[derive(Debug, PartialEq)]
struct Seen {
    calls: Vec<(String, String)>,
    content: String,
    finish: String,
    usage: Value,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn whole(server: &Server, body: &Value) -> Seen {
    let answer = server.post(CHAT, body).ok();
    let choice = &answer["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array();
    let call = |call: &Value| {
        let function = &call["function"];
        (text(&function["name"]), text(&function["arguments"]))
    };
    Seen {
        calls: calls.into_iter().flatten().map(call).collect(),
        content: text(&choice["message"]["content"]),
        finish: text(&choice["finish_reason"]),
        usage: answer["usage"].clone(),
    }
}

fn streamed(server: &Server, body: &Value) -> Seen {
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let reply = server.post(CHAT, &with(body.clone(), options));
    assert_eq!(reply.status, 200, "{}", reply.text);
    let mut seen = Seen {
        calls: Vec::new(),
        content: String::new(),
        finish: String::new(),
        usage: Value::Null,
    };
    for chunk in events(&reply.text) {
        assert!(chunk.get("error").is_none(), "{chunk}");
        seen.usage = chunk["usage"].clone();
        for choice in chunk["choices"].as_array().unwrap() {
            seen.content.push_str(&text(&choice["delta"]["content"]));
            seen.finish.push_str(&text(&choice["finish_reason"]));
            let pieces = choice["delta"]["tool_calls"].as_array();
            for piece in pieces.into_iter().flatten() {
                let function = &piece["function"];
                if function.get("name").is_some() {
                    seen.calls.push((text(&function["name"]), String::new()));
                }
                let last = seen.calls.last_mut().unwrap();
                last.1.push_str(&text(&function["arguments"]));
            }
        }
    }
    seen
}

/// What every server says to a request, streamed and not.
fn same(modes: &[Server], body: &Value) -> Seen {
    let expected = whole(&modes[0], body);
    for server in modes {
        assert_eq!(whole(server, body), expected, "{body}");
        assert_eq!(streamed(server, body), expected, "{body}");
    }
    expected
}

#[test]
fn only_allowed_tools_are_called() {
    let modes = modes();
    let mut counts = [0; 2];
    for (question, name) in [
        (BOTH, "set_timer"),
        ("Set a timer for 7 minutes.", "get_weather"),
    ] {
        for (mode, count) in ["auto", "required"].iter().zip(&mut counts) {
            for extra in [
                json!({"temperature": 0}),
                json!({"temperature": 0, "enable_thinking": true}),
                json!({"temperature": 1, "seed": 3}),
            ] {
                let body = with(
                    ask(question),
                    json!({"tool_choice": allowed(mode, &[name])}),
                );
                let extra = with(extra, json!({"max_tokens": 64}));
                let seen = same(&modes, &with(body, extra));
                assert!(seen.calls.iter().all(|call| call.0 == name), "{seen:?}");
                assert!(!seen.content.contains("<function"), "{seen:?}");
                assert!(*mode == "auto" || !seen.calls.is_empty(), "{seen:?}");
                *count += seen.calls.len();
            }
        }
    }
    assert!(counts.iter().all(|&count| count >= 6), "{counts:?}");
    // What is allowed is called as ever, here at all places.
    let free = same(&modes, &ask(BOTH));
    assert_eq!(free.calls.len(), 2);
    let choice = json!({"tool_choice": allowed("auto", &["set_timer", "get_weather"])});
    assert_eq!(same(&modes, &with(ask(BOTH), choice)), free);
    // Without any, nothing is called and no mark appears.
    let choice = json!({"tool_choice": allowed("auto", &[])});
    let seen = same(&modes, &with(ask(BOTH), choice));
    assert!(
        seen.calls.is_empty() && !seen.content.contains("tool_call>"),
        "{seen:?}"
    );
    assert_ne!(seen.finish, "tool_calls");
}

#[test]
fn responses_restrict_calls_too() {
    let server = Server::shared();
    let tools: Vec<Value> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| with(tool["function"].clone(), json!({"type": "function"})))
        .collect();
    for mode in ["auto", "required"] {
        let body = json!({"model": "spinney-tiny", "input": BOTH, "temperature": 0,
            "max_output_tokens": 200, "tools": tools, "tool_choice": {"type": "allowed_tools",
                "mode": mode, "tools": [{"type": "function", "name": "set_timer"}]}});
        let answer = server.post("/v1/responses", &body).ok();
        let items = answer["output"].as_array().unwrap();
        let calls: Vec<&Value> = items
            .iter()
            .filter(|item| item["type"] == "function_call")
            .collect();
        assert!(!calls.is_empty(), "{answer}");
        assert!(
            calls.iter().all(|call| call["name"] == "set_timer"),
            "{answer}"
        );
        assert!(!answer.to_string().contains("<function"), "{answer}");
    }
}

#[test]
fn one_call_ends_the_answer_where_only_one_is_wanted() {
    let modes = modes();
    for extra in [
        json!({}),
        json!({"enable_thinking": true}),
        json!({"tool_choice": "required"}),
        json!({"tool_choice": allowed("auto", &["get_weather"])}),
        json!({"spec_decode": false}),
    ] {
        let body = with(
            with(ask(BOTH), json!({"temperature": 0, "logprobs": true})),
            extra,
        );
        let both = same(&modes, &body);
        assert_eq!(both.calls.len(), 2, "{both:?}");
        // The tokens of the first call, counted in the answer that goes on.
        let answer = modes[0].post(CHAT, &body).ok();
        let lines = answer["choices"][0]["logprobs"]["content"]
            .as_array()
            .unwrap();
        let closed = lines
            .iter()
            .position(|line| line["token"] == "</tool_call>")
            .unwrap();
        let single = with(body.clone(), json!({"parallel_tool_calls": false}));
        let one = same(&modes, &single);
        assert_eq!(one.calls, both.calls[..1]);
        assert_eq!(
            (&*one.finish, &*one.content),
            ("tool_calls", &*both.content)
        );
        assert_eq!(one.usage["completion_tokens"], closed + 1);
        for server in &modes {
            let answer = server.post(CHAT, &single).ok();
            let own = answer["choices"][0]["logprobs"]["content"]
                .as_array()
                .unwrap();
            assert_eq!(own[..], lines[..=closed]);
        }
        // A limit at the very token does not change how it ended.
        for (limit, finish) in [(closed + 1, "tool_calls"), (closed, "length")] {
            let cut = same(&modes, &with(single.clone(), json!({"max_tokens": limit})));
            assert_eq!(
                (&*cut.finish, &cut.usage["completion_tokens"]),
                (finish, &json!(limit))
            );
        }
    }
}

#[test]
fn messages_end_with_one_call_too() {
    let server = Server::shared();
    let tools: Vec<Value> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            let function = &tool["function"];
            json!({"name": function["name"], "description": function["description"],
            "input_schema": function["parameters"]})
        })
        .collect();
    let ask = |choice: Value| {
        let body = json!({"model": "spinney-tiny", "max_tokens": 200, "temperature": 0,
            "messages": [{"role": "user", "content": BOTH}], "tools": tools,
            "tool_choice": choice});
        let answer = server.post("/v1/messages", &body).ok();
        let blocks = answer["content"].as_array().unwrap();
        let calls = blocks
            .iter()
            .filter(|block| block["type"] == "tool_use")
            .count();
        assert_eq!(answer["stop_reason"], "tool_use");
        (calls, answer["usage"]["output_tokens"].as_u64().unwrap())
    };
    let (both, tokens) = ask(json!({"type": "auto"}));
    let (one, fewer) = ask(json!({"type": "auto", "disable_parallel_tool_use": true}));
    assert_eq!((both, one), (2, 1));
    assert!(2 * fewer <= tokens, "{fewer} of {tokens}");
}

fn format(schema: Value) -> Value {
    json!({"type": "json_schema",
        "json_schema": {"name": "answer", "strict": true, "schema": schema}})
}

/// Bans of all tokens of the bundled tokenizer whose text has one of these characters.
fn bans(characters: &str) -> Value {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/server/spinney-tiny/tokenizer.json");
    let tokenizer: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let tokens = tokenizer["model"]["vocab"].as_object().unwrap();
    let banned = tokens
        .iter()
        .filter(|(token, _)| token.contains(|own| characters.contains(own)));
    let bias: Map<String, Value> = banned
        .map(|(_, id)| (id.to_string(), json!(-100)))
        .collect();
    assert!(!bias.is_empty() && bias.len() < 1_024);
    bias.into()
}

/// Bans of the tokens of a mark and whatever else it stands beside.
fn banned_mark(server: &Server, mark: &str) -> Value {
    let body = json!({"model": "spinney-tiny", "prompt": mark, "add_special_tokens": false});
    let ids = server.post("/tokenize", &body).ok()["tokens"].clone();
    let [id] = &ids.as_array().unwrap()[..] else {
        panic!("{mark} is {ids}")
    };
    json!({(id.to_string()): -100})
}

#[test]
fn bans_that_leave_no_beginning_are_refused() {
    let server = Server::shared();
    let refused = |path: &str, body: &Value| {
        let (kind, code) = ("invalid_request_error", Some("invalid_value"));
        server
            .post(path, body)
            .refused(400, kind, code, Some("logit_bias"));
    };
    let mark = banned_mark(&server, "<tool_call>");
    for choice in [
        json!("required"),
        function("set_timer"),
        allowed("required", &["set_timer"]),
    ] {
        let body = with(
            ask(BOTH),
            json!({"tool_choice": choice, "logit_bias": mark}),
        );
        refused(CHAT, &body);
    }
    // One name can be called without what is banned, the other one cannot.
    let bans_of_w = json!({"tool_choice": "required", "logit_bias": bans("w"), "temperature": 0});
    let seen = whole(&server, &with(ask(BOTH), bans_of_w));
    assert!(seen.calls[0].0 == "set_timer", "{seen:?}");
    let json_bound = json!({"response_format": {"type": "json_object"}, "logit_bias": bans("{")});
    refused(CHAT, &with(chat(BOTH), json_bound.clone()));
    let thinking = with(json_bound.clone(), json!({"enable_thinking": true}));
    refused(CHAT, &with(chat(BOTH), thinking));
    let prompt = json!({"model": "spinney-tiny", "prompt": "As JSON: "});
    refused("/v1/completions", &with(prompt, json_bound));
    let native = json!({"text": "As JSON: ", "sampling_params": {"logit_bias": bans("{"),
        "json_schema": "{\"type\": \"object\"}"}});
    assert_eq!(server.post("/generate", &native).status, 400);
}

#[test]
fn bans_in_the_middle_of_an_answer_cut_it() {
    let modes = modes();
    let schema = json!({"type": "object", "properties": {"n": {"const": 12}, "a": {"enum": ["zq"]}},
        "required": ["n", "a"], "additionalProperties": false});
    for sampling in [
        json!({"temperature": 0}),
        json!({"temperature": 1, "seed": 7}),
        json!({"temperature": 1, "seed": 7, "logprobs": true, "enable_thinking": true}),
    ] {
        let bound = json!({"response_format": format(schema.clone()), "max_tokens": 600,
            "logit_bias": bans("z")});
        let body = with(with(chat(BOTH), bound), sampling);
        let seen = same(&modes, &body);
        assert_eq!(seen.finish, "length", "{seen:?}");
        let compact: String = seen.content.split_whitespace().collect();
        assert!(
            ["{\"n\":12,\"a\":\"", "{\"n\":12,\"a\":"].contains(&&*compact),
            "{seen:?}"
        );
        if let Some(lines) =
            modes[2].post(CHAT, &body).ok()["choices"][0]["logprobs"].get("content")
        {
            let lines = lines.as_array().unwrap().len();
            assert_eq!(seen.usage["completion_tokens"], lines, "no token more");
        }
    }
}

#[test]
fn an_answer_that_can_only_end_ends() {
    let modes = modes();
    let digit = json!({"type": "integer", "minimum": 1, "maximum": 9});
    for (extra, schema) in [
        (json!({"min_tokens": 50}), digit.clone()),
        (
            json!({"logit_bias": banned_mark(&modes[0], "<|im_end|>")}),
            digit.clone(),
        ),
        (json!({"ignore_eos": true}), digit.clone()),
        (
            json!({"min_tokens": 50}),
            json!({"type": "object", "additionalProperties": false}),
        ),
        (
            json!({"min_tokens": 50}),
            json!({"type": "string", "maxLength": 2}),
        ),
    ] {
        for sampling in [
            json!({"temperature": 0}),
            json!({"temperature": 1, "seed": 1}),
        ] {
            let bound = json!({"response_format": format(schema.clone()), "max_tokens": 200});
            let body = with(with(with(chat(BOTH), bound), extra.clone()), sampling);
            let seen = same(&modes, &body);
            assert_eq!(seen.finish, "stop", "{seen:?} for {body}");
            assert!(
                serde_json::from_str::<Value>(&seen.content).is_ok(),
                "{seen:?}"
            );
        }
    }
}

#[test]
fn schemas_that_nothing_finite_fits_are_refused() {
    let server = Server::shared();
    let endless = json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "required": ["x"],
        "properties": {"x": {"$ref": "#/$defs/a"}}}}});
    let wide = json!({"type": "array", "minItems": 1, "items": {"$ref": "#"}});
    let mutual = json!({"type": "object", "required": ["b"], "properties": {"b": {
        "anyOf": [{"$ref": "#"}, {"type": "array", "minItems": 2, "items": {"$ref": "#"}}]}}});
    let (kind, code) = ("invalid_request_error", Some("invalid_json_schema"));
    for schema in [endless, wide, mutual] {
        let body = with(
            chat(BOTH),
            json!({"response_format": format(schema.clone())}),
        );
        let param = "response_format.json_schema.schema";
        let message = server
            .post(CHAT, &body)
            .refused(400, kind, code, Some(param));
        assert!(message.contains("itself"), "{message}");
        let prompt = json!({"model": "spinney-tiny", "prompt": "x",
            "response_format": format(schema.clone())});
        server
            .post("/v1/completions", &prompt)
            .refused(400, kind, code, Some(param));
        let native = json!({"text": "x", "sampling_params": {"json_schema": schema.to_string()}});
        assert_eq!(server.post("/generate", &native).status, 400);
    }
    // Lists and trees refer to themselves and end all the same.
    let list = json!({"type": "object", "required": ["v", "next"], "additionalProperties": false,
        "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}});
    let bound = json!({"response_format": format(list), "max_tokens": 400});
    whole(&server, &with(chat(BOTH), bound));
}

//! Every field of a chat request, one by one: what it takes, what it refuses, what it changes.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use serde_json::{Value, json};
use server::{Server, chat, with};

const CHAT: &str = "/v1/chat/completions";

/// A field, a value that is taken and one of the wrong type.
fn honoured() -> Vec<(&'static str, Value, Value)> {
    vec![
        ("max_completion_tokens", json!(1), json!("1")),
        ("max_tokens", json!(1), json!([1])),
        ("min_tokens", json!(0), json!(1.5)),
        ("temperature", json!(0.5), json!("0")),
        ("top_p", json!(0.9), json!({})),
        ("top_k", json!(-1), json!("20")),
        ("min_p", json!(0.1), json!(true)),
        ("presence_penalty", json!(-2), json!("a")),
        ("frequency_penalty", json!(2), json!([])),
        ("repetition_penalty", json!(1.1), json!("1.1")),
        ("seed", json!(-5), json!("5")),
        ("n", json!(1), json!("1")),
        ("stop", json!(["a", "b"]), json!(5)),
        ("stop_token_ids", json!([1]), json!(1)),
        ("include_stop_str_in_output", json!(true), json!("yes")),
        ("no_stop_trim", json!(true), json!(1)),
        ("ignore_eos", json!(false), json!("no")),
        ("skip_special_tokens", json!(false), json!(0)),
        ("logit_bias", json!({"5": 1.5}), json!([5])),
        ("logprobs", json!(true), json!(1)),
        ("stream", json!(false), json!("false")),
        ("tools", json!([]), json!({})),
        ("tool_choice", json!("auto"), json!(false)),
        ("parallel_tool_calls", json!(false), json!("false")),
        ("response_format", json!({"type": "text"}), json!("text")),
        ("reasoning_effort", json!("minimal"), json!(1)),
        ("reasoning", json!({"effort": "low"}), json!("low")),
        ("chat_template_kwargs", json!({"x": 1}), json!([])),
        ("enable_thinking", json!(true), json!("on")),
        ("separate_reasoning", json!(false), json!("no")),
        ("stream_reasoning", json!(false), json!(0)),
        ("include_reasoning", json!(false), json!("")),
        ("continue_final_message", json!(false), json!("no")),
        ("add_generation_prompt", json!(false), json!(0)),
        ("return_spec_tokens_details", json!(true), json!("x")),
        ("return_step_trace", json!(true), json!(1)),
        ("return_meta_info", json!(false), json!("x")),
        ("spec_decode", json!(false), json!("off")),
        ("speculative", json!(false), json!("off")),
        ("best_of", json!(1), json!("1")),
        ("use_beam_search", json!(false), json!("no")),
        ("modalities", json!(["text"]), json!("text")),
        ("functions", json!([]), json!({})),
        ("rid", json!("my-request"), json!(7)),
        ("cache_salt", json!("tenant"), json!({})),
        ("priority", json!(3), json!("high")),
        ("service_tier", json!("auto"), json!(1)),
        ("user", json!("me"), json!(1)),
    ]
}

#[test]
fn every_field_takes_its_type_and_no_other() {
    let server = Server::start(&["--strict-request-fields"]);
    for (name, right, wrong) in honoured() {
        let body = with(chat("Hi"), json!({"max_tokens": 1, (name): right}));
        let answer = server.post(CHAT, &body);
        assert_eq!(answer.status, 200, "{name}: {}", answer.text);
        let body = with(chat("Hi"), json!({"max_tokens": 1, (name): wrong}));
        let reply = server.post(CHAT, &body);
        assert_eq!(reply.status, 400, "{name} = {wrong}");
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(name), &json!("invalid_type"))
        );
    }
}

#[test]
fn hints_are_taken_and_counted() {
    let server = Server::start(&["--strict-request-fields"]);
    let hints = json!({"safety_identifier": "s", "metadata": {"a": "b"}, "store": true,
        "service_tier": "flex", "prompt_cache_key": "k", "prompt_cache_options": {},
        "prompt_cache_retention": "24h", "verbosity": "low", "moderation": {},
        "prediction": {"type": "content", "content": "x"}, "extra_body": {}});
    let body = with(with(chat("Hi"), json!({"max_tokens": 1})), hints.clone());
    let answer = server.post(CHAT, &body).ok();
    assert_eq!(answer["service_tier"], "default");
    let metrics = server.get("/metrics").text;
    for name in hints.as_object().unwrap().keys() {
        let counted =
            |line: &str| line.contains("ignored_fields") && line.contains(&format!("\"{name}\""));
        assert!(metrics.lines().any(counted), "{name}");
    }
    let plain = server
        .post(CHAT, &with(chat("Hi"), json!({"max_tokens": 1})))
        .ok();
    assert!(plain.get("service_tier").is_none());
    assert_eq!(plain["choices"], answer["choices"]);
}

#[test]
fn what_would_change_the_answer_is_refused() {
    let server = Server::shared();
    let (field, value) = ("unsupported_parameter", "unsupported_value");
    for (extra, code, param) in [
        (
            json!({"modalities": ["text", "audio"]}),
            value,
            "modalities",
        ),
        (json!({"audio": {"voice": "v"}}), field, "audio"),
        (
            json!({"web_search_options": {}}),
            field,
            "web_search_options",
        ),
        (
            json!({"tools": [{"type": "custom"}]}),
            value,
            "tools.[0].type",
        ),
        (
            json!({"tool_choice": {"type": "custom"}}),
            value,
            "tool_choice",
        ),
        (json!({"functions": [{"name": "f"}]}), field, "functions"),
        (json!({"function_call": "auto"}), field, "function_call"),
        (json!({"use_beam_search": true}), field, "use_beam_search"),
        (json!({"best_of": 2}), field, "best_of"),
        (json!({"lora_path": "x"}), field, "lora_path"),
        (json!({"adapter": "x"}), field, "adapter"),
        (json!({"chat_template": "x"}), field, "chat_template"),
        (json!({"prompt_logprobs": 1}), field, "prompt_logprobs"),
        (
            json!({"return_hidden_states": true}),
            field,
            "return_hidden_states",
        ),
        (json!({"stop_regex": "a+"}), field, "stop_regex"),
        (
            json!({"thinking_token_budget": 5}),
            field,
            "thinking_token_budget",
        ),
        (
            json!({"reasoning": {"max_tokens": 5}}),
            field,
            "reasoning.max_tokens",
        ),
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "invalid_value",
            "chat_template_kwargs.messages",
        ),
        (
            json!({"rid": "x".repeat(129)}),
            "string_above_max_length",
            "rid",
        ),
        (json!({"max_output_tokens": 5}), field, "max_output_tokens"),
        (json!({"stop_sequences": ["a"]}), field, "stop_sequences"),
    ] {
        let body = with(chat("Hi"), extra);
        let reply = server.post(CHAT, &body);
        reply.refused(400, "invalid_request_error", Some(code), Some(param));
    }
}

#[test]
fn parts_that_are_no_text_are_refused() {
    let server = Server::shared();
    for kind in ["image_url", "input_audio", "file", "video_url"] {
        let messages = json!([{"role": "user", "content": [{"type": kind}]}]);
        let reply = server.post(CHAT, &with(chat("Hi"), json!({"messages": messages})));
        let place = "messages.[0].content.[0].type";
        reply.refused(
            400,
            "invalid_request_error",
            Some("unsupported_value"),
            Some(place),
        );
    }
}

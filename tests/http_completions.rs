//! Text completions of the real server with the bundled pair.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use serde_json::{Value, json};
use server::{Server, events, with};

const PATH: &str = "/v1/completions";

fn request(prompt: Value) -> Value {
    json!({"model": "spinney-tiny", "prompt": prompt, "max_tokens": 8, "ignore_eos": true})
}

fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().unwrap();
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
    }
    choices
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect()
}

#[test]
fn the_answer_has_the_documented_shape() {
    let server = Server::shared();
    let answer = server
        .post(PATH, &request(json!("The capital of France")))
        .ok();
    assert_eq!(answer["object"], "text_completion");
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    let choice = &answer["choices"][0];
    let text = choice["text"].as_str().unwrap();
    let expected = json!({"index": 0, "text": text, "logprobs": null, "finish_reason": "length",
        "matched_stop": null, "stop_reason": null});
    assert_eq!(*choice, expected);
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    let mut short = request(json!("The capital of France"));
    short.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(
        server.post(PATH, &short).ok()["usage"]["completion_tokens"],
        16
    );
}

#[test]
fn prompts_come_alone_or_many_as_text_or_ids() {
    let server = Server::shared();
    let prompts = ["Once upon a time", "The capital of"];
    let singles: Vec<_> = prompts
        .iter()
        .map(|prompt| server.post(PATH, &request(json!(prompt))).ok())
        .collect();
    let both = server.post(PATH, &request(json!(prompts))).ok();
    assert_eq!(texts(&both), [texts(&singles[0])[0], texts(&singles[1])[0]]);
    let sum = |name: &str| -> u64 {
        singles
            .iter()
            .map(|single| single["usage"][name].as_u64().unwrap())
            .sum()
    };
    assert_eq!(both["usage"]["prompt_tokens"], sum("prompt_tokens"));
    assert_eq!(both["usage"]["completion_tokens"], 16);
    let ids = json!([40, 41, 42]);
    let one = server.post(PATH, &request(ids.clone())).ok();
    assert_eq!(one["usage"]["prompt_tokens"], 3);
    let lists = server.post(PATH, &request(json!([ids, [43]]))).ok();
    assert_eq!(texts(&lists)[0], texts(&one)[0]);
    assert_eq!(lists["usage"]["prompt_tokens"], 4);
    let many = with(
        request(json!(prompts)),
        json!({"n": 2, "temperature": 1.5, "seed": 5}),
    );
    let many = server.post(PATH, &many).ok();
    assert_eq!(texts(&many).len(), 4);
    let second = with(
        request(json!(prompts[1])),
        json!({"n": 2, "temperature": 1.5, "seed": 5}),
    );
    assert_eq!(texts(&server.post(PATH, &second).ok()), texts(&many)[2..]);
    assert_eq!(many["usage"]["prompt_tokens"], sum("prompt_tokens"));
}

#[test]
fn echo_and_log_probabilities_cover_the_prompt() {
    let server = Server::shared();
    let prompt = "The capital of France is";
    let extra = json!({"echo": true, "logprobs": 3, "skip_special_tokens": false});
    let answer = server
        .post(PATH, &with(request(json!(prompt)), extra.clone()))
        .ok();
    let choice = &answer["choices"][0];
    let text = choice["text"].as_str().unwrap();
    assert!(text.starts_with(prompt));
    let logprobs = &choice["logprobs"];
    let column = |name: &str| logprobs[name].as_array().unwrap();
    let total = answer["usage"]["total_tokens"].as_u64().unwrap() as usize;
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(column(name).len(), total, "{name}");
    }
    assert!(column("token_logprobs")[0].is_null() && column("top_logprobs")[0].is_null());
    for value in &column("token_logprobs")[1..] {
        assert!(value.as_f64().unwrap() <= 0.0);
    }
    for top in &column("top_logprobs")[1..] {
        assert_eq!(top.as_object().unwrap().len(), 3);
    }
    let joined: String = column("tokens")
        .iter()
        .map(|token| token.as_str().unwrap())
        .collect();
    assert_eq!(joined, text);
    let mut characters = 0;
    for (token, offset) in column("tokens").iter().zip(column("text_offset")) {
        assert_eq!(*offset, characters);
        characters += token.as_str().unwrap().chars().count();
    }
    // What a harness for log-likelihoods asks for: the prompt alone.
    let alone = with(request(json!(prompt)), extra);
    let alone = server
        .post(PATH, &with(alone, json!({"max_tokens": 0})))
        .ok();
    let prompt_tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(alone["usage"]["completion_tokens"], 0);
    assert_eq!(alone["choices"][0]["text"], prompt);
    let scores = alone["choices"][0]["logprobs"]["token_logprobs"]
        .as_array()
        .unwrap();
    assert_eq!(scores[..], column("token_logprobs")[..prompt_tokens]);
}

/// The halves of a character at the end of a prompt are a character of the text each.
#[test]
fn offsets_count_what_is_no_text() {
    let server = Server::shared();
    let halves = server.post("/tokenize", &json!({"prompt": "é"})).ok()["tokens"].clone();
    let prompts = json!([[40, halves[0]], [40, halves[1]]]);
    let extra = json!({"echo": true, "logprobs": 0, "skip_special_tokens": false});
    let answer = server.post(PATH, &with(request(prompts), extra)).ok();
    for choice in answer["choices"].as_array().unwrap() {
        let text = choice["text"].as_str().unwrap();
        assert_eq!(text.chars().nth(1), Some('\u{fffd}'), "{text}");
        let last = |name: &str| choice["logprobs"][name].as_array().unwrap().last().unwrap();
        let characters = last("tokens").as_str().unwrap().chars().count();
        assert_eq!(choice["logprobs"]["text_offset"][2], 2, "{choice}");
        let end = last("text_offset").as_u64().unwrap() as usize + characters;
        assert_eq!(end, text.chars().count(), "{choice}");
    }
}

#[test]
fn a_stream_is_the_answer_in_pieces() {
    let server = Server::shared();
    for extra in [
        json!({}),
        json!({"echo": true}),
        json!({"echo": true, "logprobs": 2, "n": 2, "temperature": 0.9, "seed": 3}),
        json!({"stop": ["e"], "logprobs": 0}),
    ] {
        let body = with(request(json!(["Once upon", "The capital"])), extra);
        let whole = server.post(PATH, &body).ok();
        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let chunks = events(&server.post(PATH, &with(body, options)).text);
        let (usage, rest) = chunks.split_last().unwrap();
        assert_eq!(usage["usage"], whole["usage"]);
        for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let parts: Vec<&Value> = rest
                .iter()
                .map(|chunk| &chunk["choices"][0])
                .filter(|part| part["index"] == index)
                .collect();
            let text: String = parts
                .iter()
                .map(|part| part["text"].as_str().unwrap())
                .collect();
            assert_eq!(choice["text"], text);
            let last = parts.last().unwrap();
            assert_eq!(last["finish_reason"], choice["finish_reason"]);
            assert_eq!(last["text"], "");
            for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let joined: Vec<_> = parts
                    .iter()
                    .filter_map(|part| part["logprobs"][name].as_array())
                    .flatten()
                    .cloned()
                    .collect();
                let expected = choice["logprobs"][name].as_array().cloned();
                assert_eq!(joined, expected.unwrap_or_default(), "{name}");
            }
        }
    }
}

#[test]
fn refusals_name_the_field() {
    let server = Server::shared();
    let invalid = "invalid_request_error";
    for (extra, code, param) in [
        (json!({"suffix": "end"}), "unsupported_parameter", "suffix"),
        (json!({"prompt": ""}), "invalid_value", "prompt"),
        (json!({"prompt": []}), "empty_array", "prompt"),
        (json!({"prompt": [999_999]}), "invalid_value", "prompt.[0]"),
        (
            json!({"prompt": null}),
            "missing_required_parameter",
            "prompt",
        ),
        (
            json!({"max_tokens": 0}),
            "integer_below_min_value",
            "max_tokens",
        ),
        (
            json!({"logprobs": 21}),
            "integer_above_max_value",
            "logprobs",
        ),
        (json!({"logprobs": true}), "invalid_type", "logprobs"),
        (json!({"best_of": 4}), "unsupported_parameter", "best_of"),
    ] {
        let reply = server.post(PATH, &with(request(json!("a")), extra));
        reply.refused(400, invalid, Some(code), Some(param));
    }
}

//! Point 6: limits to the token, with every algorithm.

use serde_json::{Value, json};

use crate::CHAT;
use crate::modes::{Modes, at_once};
use crate::server::{Server, chat, with};

const PROMPT: &str = "Count to five.";

fn native(server: &Server, extra: Value) -> Value {
    let params = json!({"temperature": 0, "ignore_eos": true, "max_new_tokens": 64});
    let rendered = server.post("/apply-template", &chat(PROMPT)).ok();
    let body = json!({"text": rendered["prompt"], "sampling_params": with(params, extra)});
    server.post("/generate", &body).ok()
}

#[test]
fn point_06_limits_from_1_to_64_are_exact() {
    let modes = Modes::shared();
    let all = native(&modes.plain, json!({}))["output_ids"].clone();
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 64);
    let limits: Vec<usize> = (1..=64).collect();
    for (name, server) in modes.all() {
        at_once(&limits, |&limit| {
            let answer = native(server, json!({"max_new_tokens": limit}));
            let info = &answer["meta_info"];
            assert_eq!(answer["output_ids"], json!(all[..limit]), "{name} {limit}");
            assert_eq!(info["completion_tokens"], limit, "{name}");
            let finish = json!({"type": "length", "length": limit});
            assert_eq!(info["finish_reason"], finish, "{name}");
        });
    }
}

#[test]
fn point_06_a_stop_at_the_limit_is_a_stop() {
    let modes = Modes::shared();
    let all = native(&modes.plain, json!({}))["output_ids"].clone();
    let all = all.as_array().unwrap();
    // Places where a token comes for the first time.
    let first = |at: &usize| !all[..*at].contains(&all[*at]);
    let places: Vec<usize> = (0..all.len()).filter(first).collect();
    assert!(places.len() > 8, "{places:?}");
    for (name, server) in modes.all() {
        at_once(&places, |&at| {
            let end = |limit: usize| {
                let extra = json!({"stop_token_ids": [all[at]], "max_new_tokens": limit});
                let info = native(server, extra)["meta_info"].clone();
                (
                    info["finish_reason"].clone(),
                    info["completion_tokens"].clone(),
                )
            };
            let stop = json!({"type": "stop", "matched": all[at]});
            assert_eq!(end(at + 1), (stop.clone(), json!(at + 1)), "{name} {at}");
            assert_eq!(end(at + 2), (stop, json!(at + 1)), "{name} {at}");
            if at > 0 {
                let length = json!({"type": "length", "length": at});
                assert_eq!(end(at), (length, json!(at)), "{name} {at}");
            }
        });
        let ask = |extra: Value| server.post(CHAT, &with(chat(PROMPT), extra)).ok();
        let reason = |answer: &Value| answer["choices"][0]["finish_reason"].clone();
        let free = ask(json!({}));
        assert_eq!(reason(&free), "stop");
        // The end of turn is a token of the answer, and so is the last one of a stop string.
        let tokens = free["usage"]["completion_tokens"].as_u64().unwrap();
        let exact = ask(json!({"max_tokens": tokens}));
        assert_eq!(
            (reason(&exact), &exact["usage"]),
            (json!("stop"), &free["usage"]),
            "{name}"
        );
        assert_eq!(
            reason(&ask(json!({"max_tokens": tokens - 1}))),
            "length",
            "{name}"
        );
        let text = free["choices"][0]["message"]["content"].as_str().unwrap();
        let tail: String = text.chars().skip(text.chars().count() - 3).collect();
        let exact = ask(json!({"max_tokens": tokens - 1, "stop": tail}));
        assert_eq!(reason(&exact), "stop", "{name} {tail:?}");
        assert_eq!(exact["choices"][0]["matched_stop"], tail.as_str());
    }
}

//! The other server's own form of a completion.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use serde_json::{Value, json};
use server::{Server, events, with};

const PATH: &str = "/generate";
const INVALID: &str = "invalid_request_error";

fn params(extra: Value) -> Value {
    let params = json!({"max_new_tokens": 12, "temperature": 0, "ignore_eos": true});
    json!({"sampling_params": with(params, extra)})
}

#[test]
fn the_answer_is_that_of_a_completion_in_another_form() {
    // `auto` need not take the same steps twice.
    let server = Server::start(&["--speculative-ddtree-budget=15"]);
    let body = with(params(json!({})), json!({"text": "The capital of France"}));
    let answer = server.post(PATH, &body).ok();
    let other = json!({"model": "", "prompt": "The capital of France", "max_tokens": 12,
        "temperature": 0, "ignore_eos": true, "return_spec_tokens_details": true});
    let other = server.post("/v1/completions", &other).ok();
    assert_eq!(answer["text"], other["choices"][0]["text"]);
    let ids = answer["output_ids"].as_array().unwrap();
    let info = &answer["meta_info"];
    assert_eq!((ids.len(), &info["completion_tokens"]), (12, &json!(12)));
    assert_eq!(info["prompt_tokens"], other["usage"]["prompt_tokens"]);
    assert_eq!(
        info["finish_reason"],
        json!({"type": "length", "length": 12})
    );
    let details = &other["sglext"]["spec_tokens_details"];
    for name in [
        "spec_verify_ct",
        "spec_num_correct_drafts",
        "spec_num_proposed_drafts",
    ] {
        assert_eq!(info[name], details[name], "{name}");
    }
    let steps = info["spec_verify_ct"].as_f64().unwrap();
    assert_eq!(info["spec_accept_length"].as_f64().unwrap(), 12.0 / steps);
    assert!(info["e2e_latency"].as_f64().unwrap() > 0.0);
    let text = server.post("/detokenize", &json!({"tokens": ids})).ok();
    assert_eq!(text["text"], answer["text"]);
}

#[test]
fn lists_give_lists() {
    let server = Server::shared();
    let texts = ["Once upon", "The capital"];
    let body = with(params(json!({})), json!({"text": texts}));
    let both = server.post(PATH, &body).ok();
    assert_eq!(both.as_array().unwrap().len(), 2);
    for (index, text) in texts.iter().enumerate() {
        let ids = server.post("/tokenize", &json!({"prompt": text})).ok()["tokens"].clone();
        let one = server
            .post(PATH, &with(params(json!({})), json!({"input_ids": ids})))
            .ok();
        assert_eq!(one["text"], both[index]["text"]);
        assert_eq!(one["output_ids"], both[index]["output_ids"]);
    }
    let two = params(json!({"n": 2, "temperature": 1, "sampling_seed": 4}));
    let two = server.post(PATH, &with(two, json!({"text": "Once"}))).ok();
    assert_eq!(two.as_array().unwrap().len(), 2);
    let short = json!({"text": "Once", "sampling_params": {"ignore_eos": true}});
    let answer = server.post(PATH, &short).ok();
    assert_eq!(answer["meta_info"]["completion_tokens"], 128, "the default");
}

#[test]
fn outputs_can_be_held_to_a_schema() {
    let server = Server::shared();
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"], "additionalProperties": false});
    for sent in [schema.clone(), json!(schema.to_string())] {
        let params = json!({"max_new_tokens": 200, "temperature": 1, "sampling_seed": 3, "n": 2,
            "json_schema": sent});
        let body = json!({"text": "As JSON: ", "sampling_params": params});
        let answers = server.post(PATH, &body).ok();
        for answer in answers.as_array().unwrap() {
            let text = answer["text"].as_str().unwrap();
            let object: Value = serde_json::from_str(text).unwrap();
            assert!(["Oslo", "Rome"].contains(&object["city"].as_str().unwrap()));
            assert_eq!(answer["meta_info"]["finish_reason"]["type"], "stop");
        }
    }
    let refused = |server: &Server, schema: Value, code: &str| {
        let body = json!({"text": "a", "sampling_params": {"json_schema": schema}});
        let param = Some("sampling_params.json_schema");
        server
            .post(PATH, &body)
            .refused(400, INVALID, Some(code), param);
    };
    refused(&server, json!({"type": "strange"}), "invalid_json_schema");
    refused(&server, json!("{"), "invalid_json_schema");
    refused(&server, json!(1), "invalid_type");
    let none = Server::start(&["--grammar-backend=none"]);
    refused(&none, schema, "unsupported_value");
}

#[test]
fn ends_are_objects() {
    let server = Server::shared();
    let body = with(
        params(json!({"stop": "e"})),
        json!({"text": "The capital of France"}),
    );
    let answer = server.post(PATH, &body).ok();
    let reason = &answer["meta_info"]["finish_reason"];
    assert_eq!(*reason, json!({"type": "stop", "matched": "e"}));
    assert!(!answer["text"].as_str().unwrap().contains('e'));
    let tokens = answer["meta_info"]["completion_tokens"].as_u64().unwrap() as usize;
    assert_eq!(answer["output_ids"].as_array().unwrap().len(), tokens);
    let last = answer["output_ids"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    let body = with(
        params(json!({"stop_token_ids": [last]})),
        json!({"text": "The capital of France"}),
    );
    let answer = server.post(PATH, &body).ok();
    let reason = &answer["meta_info"]["finish_reason"];
    assert_eq!(*reason, json!({"type": "stop", "matched": last}));
}

#[test]
fn events_have_everything_so_far() {
    let server = Server::shared();
    for extra in [
        json!({"text": "Once upon"}),
        json!({"text": ["Once upon", "The"]}),
    ] {
        let body = with(params(json!({"max_new_tokens": 40})), extra);
        let whole = server.post(PATH, &body).ok();
        let list = whole.is_array();
        let chunks = events(&server.post(PATH, &with(body, json!({"stream": true}))).text);
        let count = if list { 2 } else { 1 };
        for index in 0..count {
            let whole = if list { &whole[index] } else { &whole };
            let mine: Vec<_> = chunks
                .iter()
                .filter(|chunk| !list || chunk["index"] == index)
                .collect();
            assert!(mine.len() > 1);
            let mut before = "";
            for chunk in &mine {
                let text = chunk["text"].as_str().unwrap();
                assert!(text.starts_with(before));
                before = text;
            }
            let last = mine.last().unwrap();
            assert_eq!(last["text"], whole["text"]);
            assert_eq!(last["output_ids"], whole["output_ids"]);
            let (last, whole) = (&last["meta_info"], &whole["meta_info"]);
            assert_eq!(last["finish_reason"], whole["finish_reason"]);
            assert!(mine[0]["meta_info"]["finish_reason"].is_null());
        }
    }
}

#[test]
fn refusals_name_the_field_as_it_was_sent() {
    let server = Server::shared();
    for (body, code, param) in [
        (json!({}), "missing_required_parameter", "text"),
        (json!({"text": ""}), "invalid_value", "text"),
        (json!({"text": []}), "empty_array", "text"),
        (json!({"text": 1}), "invalid_type", "text"),
        (
            json!({"text": "a", "input_ids": [1]}),
            "invalid_value",
            "input_ids",
        ),
        (
            json!({"input_ids": [[1], "a"]}),
            "invalid_type",
            "input_ids.[1]",
        ),
        (
            json!({"text": "a", "sampling_params": 1}),
            "invalid_type",
            "sampling_params",
        ),
        (
            json!({"text": "a", "sampling_params": {"max_new_tokens": 0}}),
            "integer_below_min_value",
            "sampling_params.max_new_tokens",
        ),
        (
            json!({"text": "a", "sampling_params": {"temperature": 9}}),
            "decimal_above_max_value",
            "sampling_params.temperature",
        ),
        (
            json!({"text": "a", "sampling_params": {"max_tokens": 9}}),
            "unsupported_parameter",
            "sampling_params.max_tokens",
        ),
        (
            json!({"text": "a", "temperature": 0}),
            "unsupported_parameter",
            "temperature",
        ),
        (
            json!({"text": "a", "return_logprob": true}),
            "unsupported_parameter",
            "return_logprob",
        ),
        (
            json!({"text": "a", "image_data": "x"}),
            "unsupported_parameter",
            "image_data",
        ),
        (
            json!({"text": "a", "rid": "x".repeat(129)}),
            "string_above_max_length",
            "rid",
        ),
    ] {
        let reply = server.post(PATH, &body);
        reply.refused(400, INVALID, Some(code), Some(param));
    }
}

#[test]
fn strict_servers_know_every_sampling_parameter() {
    let strict = Server::start(&["--strict-request-fields"]);
    let params = json!({"max_new_tokens": 1, "temperature": 0, "never_heard_of": 1});
    let body = json!({"text": "a", "sampling_params": params});
    let param = Some("sampling_params.never_heard_of");
    let reply = strict.post(PATH, &body);
    reply.refused(400, INVALID, Some("unsupported_parameter"), param);
    let known =
        json!({"text": "a", "sampling_params": {"max_new_tokens": 1, "no_stop_trim": true}});
    strict.post(PATH, &known).ok();
    Server::shared().post(PATH, &body).ok();
}

use serde_json::json;

use super::*;
use crate::model_files::GenerationDefaults;
use crate::testing::byte_vocabulary;

fn files(generation: Value) -> ModelFiles {
    let Value::Object(sampling) = generation else {
        panic!("an object");
    };
    ModelFiles {
        vocabulary: byte_vocabulary().into(),
        template: None,
        generation: GenerationDefaults {
            end_ids: vec![260, 262],
            sampling,
        },
        config_text: String::new(),
    }
}

fn read(body: Value, files: &ModelFiles) -> Result<GenerationOptions, ApiError> {
    let fields = Fields::root(body.as_object().unwrap());
    GenerationOptions::read(&fields, files, &RequestRules::default())
}

fn refusal(body: Value) -> (&'static str, String) {
    let error = read(body, &files(json!({}))).unwrap_err();
    (error.code.unwrap(), error.param.unwrap())
}

#[test]
fn values_come_from_the_request_then_the_model_then_openai() {
    let model = files(json!({"temperature": 0.6, "top_p": 0.95, "top_k": 20}));
    let options = read(json!({"top_p": 0.5}), &model).unwrap();
    let sampling = &options.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.top_k),
        (0.6, 0.5, 20)
    );
    let body = json!({});
    let rules = RequestRules {
        generation_config: false,
        ..RequestRules::default()
    };
    let fields = Fields::root(body.as_object().unwrap());
    let openai = GenerationOptions::read(&fields, &model, &rules)
        .unwrap()
        .sampling;
    assert_eq!(
        (openai.temperature, openai.top_p, openai.top_k),
        (1.0, 1.0, 0)
    );
    let greedy = read(json!({}), &files(json!({"do_sample": false}))).unwrap();
    assert_eq!(greedy.sampling.temperature, 0.0);
}

#[test]
fn every_sampling_field_arrives() {
    let body = json!({"temperature": 1.5, "top_k": -1, "min_p": 0.1, "presence_penalty": -2,
        "frequency_penalty": 2, "repetition_penalty": 1.1, "seed": -1, "n": 3, "min_tokens": 2,
        "logit_bias": {"7": -100, "8": 5}, "speculative": false, "max_tokens": 9,
        "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": true,
        "include_stop_str_in_output": true, "skip_special_tokens": false});
    let options = read(body, &files(json!({"top_k": 20}))).unwrap();
    let expected = SamplingParams {
        temperature: 1.5,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.1,
        repetition_penalty: 1.1,
        presence_penalty: -2.0,
        frequency_penalty: 2.0,
        logit_bias: vec![(7, f32::NEG_INFINITY), (8, 5.0)],
        seed: u64::MAX,
        choice: 0,
    };
    assert_eq!(options.sampling, expected);
    assert_eq!((options.choices, options.min_tokens), (3, 2));
    assert!(!options.speculative && options.text.include_stop && !options.text.skip_special);
    let request = options.request(vec![1], 9, 2);
    assert_eq!(request.sampling.choice, 2);
    assert_eq!(request.stop_ids, [5]);
    assert_eq!((request.max_tokens, request.min_tokens), (9, 2));
}

#[test]
fn ends_of_turn_and_stop_ids_reach_the_engine_once() {
    let options = read(json!({"stop_token_ids": [260, 9]}), &files(json!({}))).unwrap();
    assert_eq!(options.request(vec![1], 1, 0).stop_ids, [260, 262, 9]);
}

#[test]
fn the_newer_limit_wins_and_minus_one_is_none() {
    let model = files(json!({}));
    let limit = |body| read(body, &model).unwrap().max_tokens;
    let both = json!({"max_tokens": 5, "max_completion_tokens": 7});
    assert_eq!(limit(both), Some(7));
    assert_eq!(limit(json!({"max_tokens": -1})), None);
    assert_eq!(limit(json!({"max_tokens": null})), None);
    assert_eq!(
        refusal(json!({"max_tokens": 0})).0,
        "integer_below_min_value"
    );
    assert_eq!(
        refusal(json!({"max_tokens": -2})).0,
        "integer_below_min_value"
    );
}

#[test]
fn refusals_name_code_and_field() {
    let cases = [
        (
            json!({"temperature": 2.1}),
            "decimal_above_max_value",
            "temperature",
        ),
        (json!({"temperature": "1"}), "invalid_type", "temperature"),
        (json!({"top_p": -0.1}), "decimal_below_min_value", "top_p"),
        (
            json!({"top_k": 100_000}),
            "integer_above_max_value",
            "top_k",
        ),
        (json!({"top_k": -2}), "integer_below_min_value", "top_k"),
        (
            json!({"repetition_penalty": 0}),
            "decimal_below_min_value",
            "repetition_penalty",
        ),
        (json!({"n": 0}), "integer_below_min_value", "n"),
        (json!({"n": 9}), "integer_above_max_value", "n"),
        (json!({"stop": ""}), "invalid_value", "stop.[0]"),
        (json!({"stop": ["a", 1]}), "invalid_type", "stop.[1]"),
        (json!({"stop": 1}), "invalid_type", "stop"),
        (
            json!({"stop": ["a", "b", "c", "d", "e"]}),
            "array_above_max_length",
            "stop",
        ),
        (
            json!({"stop": "x".repeat(1025)}),
            "string_above_max_length",
            "stop.[0]",
        ),
        (
            json!({"stop_token_ids": [265]}),
            "invalid_value",
            "stop_token_ids.[0]",
        ),
        (
            json!({"logit_bias": {"a": 1}}),
            "invalid_value",
            "logit_bias",
        ),
        (
            json!({"logit_bias": {"265": 1}}),
            "invalid_value",
            "logit_bias",
        ),
        (
            json!({"logit_bias": {"1": 101}}),
            "decimal_above_max_value",
            "logit_bias.1",
        ),
        (json!({"seed": 1.5}), "invalid_type", "seed"),
        (json!({"ignore_eos": 1}), "invalid_type", "ignore_eos"),
        (
            json!({"min_tokens": -1}),
            "integer_below_min_value",
            "min_tokens",
        ),
    ];
    for (body, code, param) in cases {
        assert_eq!(refusal(body.clone()), (code, param.to_owned()), "{body}");
    }
}

#[test]
fn seeds_differ_unless_given() {
    let model = files(json!({}));
    let seed = |body| read(body, &model).unwrap().sampling.seed;
    assert_ne!(seed(json!({})), seed(json!({})));
    assert_eq!(seed(json!({"seed": 4})), 4);
}

#[test]
fn a_salt_reaches_the_engine_and_an_empty_one_is_none() {
    let rules = RequestRules::default();
    for (body, expected) in [
        (json!({}), None),
        (json!({"cache_salt": null}), None),
        (json!({"cache_salt": ""}), None),
        (json!({"cache_salt": "tenant"}), Some("tenant")),
    ] {
        let fields = Fields::root(body.as_object().unwrap());
        let options = GenerationOptions::read(&fields, &files(json!({})), &rules).unwrap();
        let request = options.request(vec![1], 1, 0);
        assert_eq!(request.cache_salt.as_deref(), expected, "{body}");
    }
}

//! Fields that other paths have.
//!
//! What is unknown is ignored, but whoever sends these has them from another path and counts on what
//! they do there. They are refused in the words of this path, unless they ask for nothing, or this
//! path's own field is there as well: some clients send a body that suits several servers.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;

/// A field of other paths, and where this one has it, seen from the same object; `None`: nowhere.
pub(crate) type Foreign = (&'static str, Option<&'static str>);

/// Of `/v1/chat/completions` and `/v1/completions`.
pub(crate) const OPENAI: &[Foreign] = &[
    ("max_output_tokens", Some("max_tokens")),
    ("max_new_tokens", Some("max_tokens")),
    ("min_new_tokens", Some("min_tokens")),
    ("stop_sequences", Some("stop")),
    ("sampling_seed", Some("seed")),
    ("sampling_params", None),
];

/// Of `/generate`, which has all that in an object.
pub(crate) const GENERATE: &[Foreign] = &[
    ("max_new_tokens", Some("sampling_params.max_new_tokens")),
    ("max_tokens", Some("sampling_params.max_new_tokens")),
    (
        "max_completion_tokens",
        Some("sampling_params.max_new_tokens"),
    ),
    ("max_output_tokens", Some("sampling_params.max_new_tokens")),
    ("min_new_tokens", Some("sampling_params.min_new_tokens")),
    ("min_tokens", Some("sampling_params.min_new_tokens")),
    ("temperature", Some("sampling_params.temperature")),
    ("top_p", Some("sampling_params.top_p")),
    ("top_k", Some("sampling_params.top_k")),
    ("min_p", Some("sampling_params.min_p")),
    (
        "frequency_penalty",
        Some("sampling_params.frequency_penalty"),
    ),
    ("presence_penalty", Some("sampling_params.presence_penalty")),
    (
        "repetition_penalty",
        Some("sampling_params.repetition_penalty"),
    ),
    ("stop", Some("sampling_params.stop")),
    ("stop_sequences", Some("sampling_params.stop")),
    ("stop_token_ids", Some("sampling_params.stop_token_ids")),
    ("ignore_eos", Some("sampling_params.ignore_eos")),
    ("n", Some("sampling_params.n")),
    ("sampling_seed", Some("sampling_params.sampling_seed")),
    ("seed", Some("sampling_params.sampling_seed")),
    ("response_format", Some("sampling_params.json_schema")),
    ("logit_bias", None),
    ("prompt", Some("text")),
    ("messages", None),
];

/// Of the `sampling_params` of `/generate`.
pub(crate) const SAMPLING_PARAMS: &[Foreign] = &[
    ("max_tokens", Some("max_new_tokens")),
    ("max_completion_tokens", Some("max_new_tokens")),
    ("max_output_tokens", Some("max_new_tokens")),
    ("min_tokens", Some("min_new_tokens")),
    ("stop_sequences", Some("stop")),
    ("seed", Some("sampling_seed")),
    ("response_format", Some("json_schema")),
];

/// Of `/v1/responses`.
pub(crate) const RESPONSES: &[Foreign] = &[
    ("max_tokens", Some("max_output_tokens")),
    ("max_completion_tokens", Some("max_output_tokens")),
    ("max_new_tokens", Some("max_output_tokens")),
    ("response_format", Some("text.format")),
    ("messages", Some("input")),
    ("system", Some("instructions")),
    ("stop_sequences", Some("stop")),
    ("logprobs", Some("top_logprobs")),
    ("functions", Some("tools")),
    ("n", None),
    ("continue_final_message", None),
    ("add_generation_prompt", None),
    ("separate_reasoning", None),
    ("sampling_params", None),
];

/// Of `/v1/messages`.
pub(crate) const MESSAGES: &[Foreign] = &[
    ("max_completion_tokens", Some("max_tokens")),
    ("max_output_tokens", Some("max_tokens")),
    ("max_new_tokens", Some("max_tokens")),
    ("response_format", Some("output_config.format")),
    ("stop", Some("stop_sequences")),
    ("instructions", Some("system")),
    ("input", Some("messages")),
    ("reasoning", Some("thinking")),
    ("reasoning_effort", Some("thinking")),
    (
        "parallel_tool_calls",
        Some("tool_choice.disable_parallel_tool_use"),
    ),
    ("functions", Some("tools")),
    ("logprobs", None),
    ("top_logprobs", None),
    ("n", None),
    ("continue_final_message", None),
    ("add_generation_prompt", None),
    ("separate_reasoning", None),
    ("sampling_params", None),
];

/// Refuses the first of these fields that asks for something.
pub(crate) fn refuse(fields: &Fields, foreign: &[Foreign]) -> Result<(), ApiError> {
    for &(name, here) in foreign {
        let harmless = (fields.get(name)).is_none_or(|value| is_harmless(name, value));
        if harmless || here.is_some_and(|here| is_given(fields, here)) {
            continue;
        }
        let path = fields.path(name);
        let instead = match here {
            Some(here) => format!("send '{}' instead", fields.path(here)),
            None => "nothing here does what it asks for".to_owned(),
        };
        let message = format!("'{path}' is not a parameter of this path: {instead}.");
        return Err(ApiError::invalid("unsupported_parameter", path, message));
    }
    Ok(())
}

/// Whether a field, perhaps one within another, has a value.
fn is_given(fields: &Fields, path: &str) -> bool {
    let mut names = path.split('.');
    let first = names.next().and_then(|name| fields.get(name));
    let value = names.fold(first, |value, name| value?.get(name));
    value.is_some_and(|value| !value.is_null())
}

/// Whether the answer would be the same without it.
pub(crate) fn is_harmless(name: &str, value: &Value) -> bool {
    let is = |number: f64| value.as_f64() == Some(number);
    match (name, value) {
        ("parallel_tool_calls" | "add_generation_prompt" | "separate_reasoning", value) => {
            value == &Value::Bool(true)
        }
        ("n", _) => is(1.0),
        ("top_logprobs" | "min_new_tokens" | "min_tokens", _) => is(0.0),
        ("response_format", value) => value["type"] == "text",
        (_, Value::Bool(false) | Value::Null) => true,
        (_, Value::String(text)) => text.is_empty(),
        (_, Value::Array(values)) => values.is_empty(),
        (_, Value::Object(entries)) => entries.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(foreign: &[Foreign], body: &Value) -> Option<(String, String)> {
        let error = refuse(&Fields::root(body.as_object().unwrap()), foreign).err()?;
        assert_eq!(
            (error.status.as_u16(), error.code),
            (400, Some("unsupported_parameter"))
        );
        Some((error.param.unwrap(), error.message))
    }

    #[test]
    fn the_right_name_is_named() {
        for (foreign, body, param, part) in [
            (
                RESPONSES,
                json!({"max_tokens": 5}),
                "max_tokens",
                "send 'max_output_tokens' instead",
            ),
            (
                RESPONSES,
                json!({"response_format": {"type": "json_object"}}),
                "response_format",
                "send 'text.format' instead",
            ),
            (RESPONSES, json!({"n": 2}), "n", "nothing here"),
            (
                MESSAGES,
                json!({"stop": "a"}),
                "stop",
                "send 'stop_sequences' instead",
            ),
            (
                MESSAGES,
                json!({"logprobs": true}),
                "logprobs",
                "nothing here",
            ),
            (
                OPENAI,
                json!({"max_output_tokens": 1}),
                "max_output_tokens",
                "'max_tokens'",
            ),
            (
                GENERATE,
                json!({"temperature": 0}),
                "temperature",
                "'sampling_params.temperature'",
            ),
        ] {
            let (found, message) = refusal(foreign, &body).unwrap();
            assert_eq!(found, param);
            assert!(message.contains(part), "{message}");
        }
        let params = json!({"max_tokens": 5});
        let fields = Fields::of(&params, "sampling_params").unwrap();
        let error = refuse(&fields, SAMPLING_PARAMS).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("sampling_params.max_tokens"));
    }

    #[test]
    fn what_asks_for_nothing_passes() {
        for (foreign, body) in [
            (
                RESPONSES,
                json!({"max_tokens": null, "response_format": {"type": "text"}}),
            ),
            (
                RESPONSES,
                json!({"n": 1, "logprobs": false, "messages": []}),
            ),
            (
                RESPONSES,
                json!({"separate_reasoning": true, "add_generation_prompt": true}),
            ),
            (
                RESPONSES,
                json!({"continue_final_message": false, "sampling_params": {}}),
            ),
            (
                MESSAGES,
                json!({"n": 1.0, "parallel_tool_calls": true, "top_logprobs": 0}),
            ),
            (OPENAI, json!({"never_heard_of": 1})),
            // Bodies for several servers.
            (
                OPENAI,
                json!({"max_new_tokens": 16, "max_tokens": 16, "min_new_tokens": 0}),
            ),
            (
                GENERATE,
                json!({"max_tokens": 4, "sampling_params": {"max_new_tokens": 4}, "min_tokens": 0}),
            ),
            (
                RESPONSES,
                json!({"system": "", "max_tokens": 9, "max_output_tokens": 9}),
            ),
            (
                SAMPLING_PARAMS,
                json!({"max_tokens": 4, "max_new_tokens": 4}),
            ),
        ] {
            assert_eq!(refusal(foreign, &body), None, "{body}");
        }
        for body in [
            json!({"separate_reasoning": false}),
            json!({"parallel_tool_calls": false}),
            json!({"n": 0}),
        ] {
            assert!(refusal(MESSAGES, &body).is_some(), "{body}");
        }
        let own_is_null = json!({"max_new_tokens": 16, "max_tokens": null});
        assert!(refusal(OPENAI, &own_is_null).is_some());
        let body = json!({"max_new_tokens": 16, "sampling_params": {"top_p": 1}});
        assert!(refusal(GENERATE, &body).is_some());
    }
}

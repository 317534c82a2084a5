//! What happens to fields that are not honoured: some are harmless, some would change the answer.

use crate::error::{ApiError, shorten};
use crate::fields::Fields;
use crate::foreign_fields::is_harmless;
use crate::metrics::Metrics;

/// Hints without any effect.
pub(crate) const IGNORED: &[&str] = &[
    "user",
    "safety_identifier",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "verbosity",
    "moderation",
    "prediction",
    "extra_body",
];

/// Fields that cannot be honoured and must not be dropped in silence.
pub(crate) const REFUSED: &[&str] = &[
    "audio",
    "web_search_options",
    "function_call",
    "lora_path",
    "adapter",
    "chat_template",
    "prompt_logprobs",
    "return_hidden_states",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_grammar",
    "guided_choice",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "image_data",
    "video_data",
    "audio_data",
    "input_embeds",
    "stop_regex",
    "thinking_token_budget",
    "thinking_budget",
    "truncate_prompt_tokens",
];

/// Fields that mean something here; only strict servers ask.
pub(crate) const HONOURED: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "max_completion_tokens",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "n",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "no_stop_trim",
    "ignore_eos",
    "skip_special_tokens",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "reasoning",
    "chat_template_kwargs",
    "enable_thinking",
    "separate_reasoning",
    "stream_reasoning",
    "include_reasoning",
    "continue_final_message",
    "add_generation_prompt",
    "return_spec_tokens_details",
    "return_meta_info",
    "return_step_trace",
    "rid",
    "cache_salt",
    "spec_decode",
    "speculative",
    "echo",
    "suffix",
    "best_of",
    "priority",
    "use_beam_search",
    "modalities",
    "functions",
    "text",
    "input_ids",
    "sampling_params",
    "return_logprob",
];

/// Refuses what cannot be honoured, counts what is ignored.
pub(crate) fn check(fields: &Fields, strict: bool, metrics: &Metrics) -> Result<(), ApiError> {
    for name in fields.names() {
        if REFUSED.contains(&name) {
            refuse(fields, name)?;
        }
        if IGNORED.contains(&name) {
            metrics.count_ignored(name);
        } else if strict && !HONOURED.contains(&name) && !REFUSED.contains(&name) {
            return Err(unknown(name));
        }
    }
    values(fields)
}

/// Refuses one of [`REFUSED`] unless it asks for nothing. An empty object asks for something: for a
/// schema that everything fits, or for the defaults of what it sets.
pub(crate) fn refuse(fields: &Fields, name: &str) -> Result<(), ApiError> {
    match fields.get(name) {
        Some(value) if value.is_object() || !is_harmless(name, value) => Err(unsupported(name)),
        _ => Ok(()),
    }
}

/// What strict servers say of a field at this path.
pub(crate) fn unknown(path: &str) -> ApiError {
    let path = shorten(path);
    let message = format!("Unknown parameter: '{path}'.");
    ApiError::invalid("unsupported_parameter", path, message)
}

/// Characters of `rid` and of `cache_salt` at most.
const HINT_CHARS_MAX: [(&str, usize); 2] = [("rid", 128), ("cache_salt", 256)];

/// Names and hints must have the right form even where nothing comes of them.
fn hints(fields: &Fields) -> Result<(), ApiError> {
    for (name, chars_max) in HINT_CHARS_MAX {
        let length = fields.string(name)?.map_or(0, |text| text.chars().count());
        if length > chars_max {
            let message =
                format!("Invalid '{name}': expected at most {chars_max} characters, got {length}.");
            return Err(ApiError::invalid("string_above_max_length", name, message));
        }
    }
    fields.integer("priority", i64::MIN, i64::MAX)?;
    fields.string("service_tier")?;
    fields.string("user")?;
    Ok(())
}

/// Fields of which some values are harmless.
fn values(fields: &Fields) -> Result<(), ApiError> {
    hints(fields)?;
    if fields.boolean("use_beam_search")? == Some(true) {
        return Err(unsupported("use_beam_search"));
    }
    if fields.boolean("return_meta_info")? == Some(true) {
        return Err(unsupported("return_meta_info"));
    }
    let choices = fields.integer("n", i64::MIN, i64::MAX)?.unwrap_or(1);
    if fields
        .integer("best_of", 1, i64::MAX)?
        .is_some_and(|best| best > choices)
    {
        let message = "'best_of' above 'n' is not supported.";
        return Err(ApiError::invalid(
            "unsupported_parameter",
            "best_of",
            message,
        ));
    }
    if !fields
        .array("functions", 128)?
        .unwrap_or_default()
        .is_empty()
    {
        return Err(unsupported("functions"));
    }
    let modalities = fields.array("modalities", 8)?.unwrap_or_default();
    if modalities.iter().any(|kind| kind != "text") {
        let message = "Only the modality 'text' is supported.";
        return Err(ApiError::invalid(
            "unsupported_value",
            "modalities",
            message,
        ));
    }
    Ok(())
}

fn unsupported(name: &str) -> ApiError {
    let message = format!("The parameter '{name}' is not supported by this server.");
    ApiError::invalid("unsupported_parameter", name, message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::metrics::MetricsConfig;

    fn refusal(body: Value, strict: bool) -> Option<(&'static str, String)> {
        let fields = Fields::root(body.as_object().unwrap());
        let metrics = Metrics::new("m", &MetricsConfig::default());
        let checked = check(&fields, strict, &metrics);
        checked
            .err()
            .map(|error| (error.code.unwrap(), error.param.unwrap()))
    }

    #[test]
    fn harmless_values_pass() {
        for body in [
            json!({"user": "u", "store": true, "metadata": {"a": "b"}, "best_of": 1}),
            json!({"modalities": ["text"], "functions": [], "use_beam_search": false}),
            json!({"response_format": {"type": "text"}, "audio": null, "never_heard_of": 1}),
            json!({"return_hidden_states": false, "prompt_logprobs": null}),
            json!({"rid": "x".repeat(128), "cache_salt": "é".repeat(256), "priority": -3}),
        ] {
            assert_eq!(refusal(body.clone(), false), None, "{body}");
        }
        let unknown = refusal(json!({"never_heard_of": 1}), true).unwrap();
        assert_eq!(unknown, ("unsupported_parameter", "never_heard_of".into()));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        for (body, code, param) in [
            (json!({"audio": {}}), "unsupported_parameter", "audio"),
            (json!({"best_of": 2}), "unsupported_parameter", "best_of"),
            (
                json!({"modalities": ["audio"]}),
                "unsupported_value",
                "modalities",
            ),
            (
                json!({"return_hidden_states": true}),
                "unsupported_parameter",
                "return_hidden_states",
            ),
            (
                json!({"rid": "x".repeat(129)}),
                "string_above_max_length",
                "rid",
            ),
            (json!({"priority": "high"}), "invalid_type", "priority"),
            (
                json!({"lora_path": "x"}),
                "unsupported_parameter",
                "lora_path",
            ),
        ] {
            assert_eq!(
                refusal(body.clone(), false),
                Some((code, param.to_owned())),
                "{body}"
            );
        }
    }

    #[test]
    fn what_cannot_be_honoured_may_ask_for_nothing() {
        for value in [json!(null), json!(false), json!([]), json!("")] {
            for name in ["stop_regex", "image_data", "guided_json"] {
                let body = json!({ name: value });
                assert_eq!(refusal(body.clone(), true), None, "{body}");
            }
        }
    }

    #[test]
    fn a_field_has_one_rule() {
        let lists = [IGNORED, REFUSED, HONOURED];
        let mut names: Vec<_> = lists.concat();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for name in IGNORED.iter().chain(HONOURED) {
            let body = json!({(*name): null});
            assert_eq!(refusal(body, true), None, "{name}");
        }
        for name in REFUSED {
            let body = json!({(*name): {"a": 1}});
            let refused = refusal(body, false);
            assert_eq!(refused, Some(("unsupported_parameter", (*name).to_owned())));
        }
    }
}

//! What happens to fields that are not honoured: some are harmless, some would change the answer.

use serde_json::Value;

use crate::error::{ApiError, shorten};
use crate::fields::Fields;
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
    "cache_salt",
    "parallel_tool_calls",
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
    "rid",
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
        // `false` asks for nothing.
        if REFUSED.contains(&name) && fields.get(name) != Some(&Value::Bool(false)) {
            return Err(unsupported(name));
        }
        if IGNORED.contains(&name) {
            metrics.count_ignored(name);
        } else if strict && !HONOURED.contains(&name) {
            let name = shorten(name);
            let message = format!("Unknown parameter: '{name}'.");
            return Err(ApiError::invalid("unsupported_parameter", name, message));
        }
    }
    values(fields)
}

/// Characters of `rid` and of `cache_salt` at most.
const HINT_CHARS_MAX: [(&str, usize); 2] = [("rid", 128), ("cache_salt", 256)];

/// Hints that have no effect must have the right form all the same.
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
    match fields.object("response_format")? {
        None => Ok(()),
        Some(format) => {
            format.required("type")?;
            match format.string("type")?.unwrap_or_default() {
                "text" => Ok(()),
                kind @ ("json_object" | "json_schema") => {
                    let message = format!(
                        "'response_format' of type '{kind}' is not supported: this server has no \
                         grammar engine. Use type 'text'."
                    );
                    Err(ApiError::invalid(
                        "unsupported_value",
                        "response_format",
                        message,
                    ))
                }
                other => {
                    let message = format!("Invalid value: '{}'.", shorten(other));
                    Err(ApiError::invalid(
                        "invalid_value",
                        format.path("type"),
                        message,
                    ))
                }
            }
        }
    }
}

fn unsupported(name: &str) -> ApiError {
    let message = format!("The parameter '{name}' is not supported by this server.");
    ApiError::invalid("unsupported_parameter", name, message)
}

/// `tools` as the template gets them; none if `tool_choice` says so. Calls that must be made
/// cannot be forced, so they are refused.
pub(crate) fn tools(fields: &Fields) -> Result<Vec<Value>, ApiError> {
    let listed = fields.array("tools", 128)?.unwrap_or_default();
    let mut names: Vec<&str> = Vec::with_capacity(listed.len());
    for (index, tool) in listed.iter().enumerate() {
        let tool = Fields::of(tool, format!("tools.[{index}]"))?;
        tool.required("type")?;
        let kind = tool.string("type")?.unwrap_or_default();
        if kind != "function" {
            let message = format!("Tools of type '{}' are not supported.", shorten(kind));
            return Err(ApiError::invalid(
                "unsupported_value",
                tool.path("type"),
                message,
            ));
        }
        tool.required("function")?;
        let Some(function) = tool.object("function")? else {
            continue;
        };
        function.required("name")?;
        let name = function.string("name")?.unwrap_or_default();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte);
        let fits = (1..=64).contains(&name.len()) && name.bytes().all(plain);
        if !fits || names.contains(&name) {
            let message = format!(
                "Invalid '{}': expected a name of 1 to 64 letters, digits and '_.:/-' that no \
                 other tool has.",
                function.path("name")
            );
            return Err(ApiError::invalid(
                "invalid_value",
                function.path("name"),
                message,
            ));
        }
        names.push(name);
        function.object("parameters")?;
    }
    match fields.get("tool_choice") {
        None => Ok(listed.to_vec()),
        Some(Value::String(choice)) if choice == "auto" => Ok(listed.to_vec()),
        Some(Value::String(choice)) if choice == "none" => Ok(Vec::new()),
        Some(_) => {
            let message = "Only the values 'auto' and 'none' of 'tool_choice' are supported.";
            Err(ApiError::invalid(
                "unsupported_value",
                "tool_choice",
                message,
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::metrics::MetricsConfig;

    fn refusal(body: Value, strict: bool) -> Option<(&'static str, String)> {
        let fields = Fields::root(body.as_object().unwrap());
        let checked = check(
            &fields,
            strict,
            &Metrics::new("m", &MetricsConfig::default()),
        )
        .and_then(|()| tools(&fields));
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
            json!({"tools": [], "tool_choice": "none"}),
        ] {
            assert_eq!(refusal(body.clone(), false), None, "{body}");
        }
        let unknown = refusal(json!({"never_heard_of": 1}), true).unwrap();
        assert_eq!(unknown, ("unsupported_parameter", "never_heard_of".into()));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        let named = json!({"type": "function", "function": {"name": "f"}});
        for (body, code, param) in [
            (json!({"audio": {}}), "unsupported_parameter", "audio"),
            (json!({"best_of": 2}), "unsupported_parameter", "best_of"),
            (
                json!({"modalities": ["audio"]}),
                "unsupported_value",
                "modalities",
            ),
            (
                json!({"response_format": {"type": "json_object"}}),
                "unsupported_value",
                "response_format",
            ),
            (
                json!({"response_format": {"type": "x"}}),
                "invalid_value",
                "response_format.type",
            ),
            (
                json!({"tools": [named], "tool_choice": "required"}),
                "unsupported_value",
                "tool_choice",
            ),
            (
                json!({"tools": [named, named]}),
                "invalid_value",
                "tools.[1].function.name",
            ),
            (
                json!({"tools": [{"type": "custom"}]}),
                "unsupported_value",
                "tools.[0].type",
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
    fn tools_reach_the_template_as_they_came() {
        let body = json!({"tools": [{"type": "function", "function": {"name": "f", "x": null}}]});
        let fields = Fields::root(body.as_object().unwrap());
        assert_eq!(Value::from(tools(&fields).unwrap()), body["tools"]);
    }
}

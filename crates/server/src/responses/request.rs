//! The body of a request as a chat request, and what of it the response repeats.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, shorten};
use crate::fields::Fields;
use crate::foreign_fields;
use crate::metrics::Metrics;
use crate::responses::{items, tools};
use crate::sampling::RequestRules;
use crate::translation::{EXTENSIONS, Names, Translation, check_names};

/// Alternatives per token at most.
const TOP_LOGPROBS_MAX: i64 = 20;

/// Fields that mean something here.
const HONOURED: &[&str] = &[
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_logprobs",
    "reasoning",
    "text",
    "stream",
    "metadata",
    "stop",
    "reasoning_effort",
    "include_reasoning",
    "truncation",
    "background",
    "previous_response_id",
    "conversation",
    "prompt",
];

/// Hints without any effect.
pub(crate) const IGNORED: &[&str] = &[
    "user",
    "store",
    "include",
    "prompt_cache_key",
    "prompt_cache_retention",
    "client_metadata",
    "service_tier",
    "safety_identifier",
    "stream_options",
    "max_tool_calls",
];

const KNOWN: Names = Names {
    honoured: HONOURED,
    ignored: IGNORED,
    foreign: foreign_fields::RESPONSES,
};

/// Where fields of the chat request come from.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("logprobs", "top_logprobs"),
];

/// A request in the words of the chat API.
#[derive(Debug)]
pub(super) struct Asked {
    /// The chat request.
    pub(super) chat: Translation,
    /// Names of tools whose input is a text.
    pub(super) custom: Vec<String>,
    /// What the response says about the request.
    pub(super) echo: Map<String, Value>,
}

/// Reads all fields; `input` and what else the prompt depends on are checked for both paths.
pub(super) fn translate(
    fields: &Fields,
    rules: &RequestRules,
    metrics: &Metrics,
) -> Result<Asked, ApiError> {
    refuse_state(fields)?;
    check_names(fields, &KNOWN, rules.strict_fields, metrics)?;
    let mut chat = Translation::default();
    chat.keep(fields, EXTENSIONS);
    let same = [
        "model",
        "temperature",
        "top_p",
        "stop",
        "stream",
        "parallel_tool_calls",
        "reasoning_effort",
        "include_reasoning",
    ];
    chat.keep(fields, &same);
    chat.set("messages", items::messages(fields, metrics)?);
    let custom = tools::read(fields, &mut chat, metrics)?;
    if let Some(limit) = fields.count("max_output_tokens", 1)? {
        chat.set("max_completion_tokens", limit);
    }
    if let Some(top @ 1..) = fields.integer("top_logprobs", 0, TOP_LOGPROBS_MAX)? {
        chat.set("logprobs", true);
        chat.set("top_logprobs", top);
    }
    if let Some(reasoning) = fields.object("reasoning")? {
        reasoning.string("summary")?;
        let known = ["effort", "enabled", "max_tokens"];
        let kept = known.iter().filter_map(|&name| {
            let value = reasoning.get(name)?;
            Some((name.to_owned(), value.clone()))
        });
        chat.set("reasoning", kept.collect::<Map<_, _>>());
    }
    if let Some(format) = format(fields)? {
        chat.set("response_format", format);
    }
    fields.object("metadata")?;
    let echo = echo(fields);
    Ok(Asked { chat, custom, echo })
}

/// Nothing is kept between requests, so nothing kept can be asked for.
fn refuse_state(fields: &Fields) -> Result<(), ApiError> {
    let refuse = |name: &str, code, message: &str| Err(ApiError::invalid(code, name, message));
    for name in ["previous_response_id", "conversation"] {
        if fields.get(name).is_some() {
            let message =
                format!("'{name}' is not supported by this stateless server: send the full input.");
            return refuse(name, "unsupported_parameter", &message);
        }
    }
    if fields.boolean("background")? == Some(true) {
        let message = "'background' is not supported: the answer comes with the response.";
        return refuse("background", "unsupported_parameter", message);
    }
    if fields.get("prompt").is_some() {
        let message = "'prompt' is not supported: prompts are not kept here; send 'input'.";
        return refuse("prompt", "unsupported_parameter", message);
    }
    match fields.string("truncation")? {
        None | Some("disabled") => Ok(()),
        Some(other) => {
            let other = shorten(other);
            let message = format!(
                "'truncation' of '{other}' is not supported: input is never shortened here. Use \
                 'disabled'."
            );
            refuse("truncation", "unsupported_value", &message)
        }
    }
}

/// `response_format`: a schema is in an object of its own there.
fn format(fields: &Fields) -> Result<Option<Value>, ApiError> {
    let Some(text) = fields.object("text")? else {
        return Ok(None);
    };
    let Some(format) = text.object("format")? else {
        return Ok(None);
    };
    format.required("type")?;
    let kind = format.string("type")?.unwrap_or_default();
    if kind != "json_schema" {
        return Ok(Some(json!({"type": kind})));
    }
    let mut schema = format.entries().clone();
    schema.shift_remove("type");
    Ok(Some(json!({"type": kind, "json_schema": schema})))
}

fn echo(fields: &Fields) -> Map<String, Value> {
    let or = |name: &str, otherwise: Value| fields.get(name).cloned().unwrap_or(otherwise);
    let part = |holder: &str, name: &str| {
        let holder = fields.get(holder).unwrap_or(&Value::Null);
        holder.get(name).cloned().unwrap_or(Value::Null)
    };
    let effort = match part("reasoning", "effort") {
        Value::Null => or("reasoning_effort", Value::Null),
        effort => effort,
    };
    let echo = json!({
        "background": false,
        "instructions": or("instructions", Value::Null),
        "max_output_tokens": or("max_output_tokens", Value::Null),
        "metadata": or("metadata", json!({})),
        "parallel_tool_calls": or("parallel_tool_calls", true.into()),
        "previous_response_id": null,
        "reasoning": {"effort": effort, "summary": part("reasoning", "summary")},
        "store": false,
        "temperature": or("temperature", Value::Null),
        "text": or("text", json!({"format": {"type": "text"}})),
        "tool_choice": or("tool_choice", "auto".into()),
        "tools": or("tools", json!([])),
        "top_logprobs": or("top_logprobs", 0.into()),
        "top_p": or("top_p", Value::Null),
        "truncation": "disabled",
    });
    match echo {
        Value::Object(echo) => echo,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsConfig;

    fn read(extra: Value) -> Result<Asked, ApiError> {
        let mut body = json!({"model": "m", "input": "hi"});
        let extra = extra.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(extra);
        let fields = Fields::root(body.as_object().unwrap());
        translate(
            &fields,
            &RequestRules::default(),
            &Metrics::new("m", &MetricsConfig::default()),
        )
    }

    #[test]
    fn fields_have_counterparts() {
        let schema = json!({"type": "json_schema", "name": "n", "strict": true, "schema": {}});
        for (extra, expected) in [
            (
                json!({"store": true, "include": ["reasoning.encrypted_content"], "user": "u",
                    "prompt_cache_key": "k", "client_metadata": {}, "truncation": "disabled",
                    "stream_options": {"include_obfuscation": false}, "background": false,
                    "previous_response_id": null, "unheard_of": 1}),
                json!({}),
            ),
            (json!({"stream": true}), json!({"stream": true})),
            (
                json!({"temperature": 0.5, "top_p": 1, "seed": 3}),
                json!({"seed": 3, "temperature": 0.5, "top_p": 1}),
            ),
            (
                json!({"max_output_tokens": 7}),
                json!({"max_completion_tokens": 7}),
            ),
            (json!({"top_logprobs": 0}), json!({})),
            (
                json!({"top_logprobs": 2}),
                json!({"logprobs": true, "top_logprobs": 2}),
            ),
            (
                json!({"reasoning": {"effort": "low", "summary": "auto"}}),
                json!({"reasoning": {"effort": "low"}}),
            ),
            (json!({"text": {"verbosity": "low"}}), json!({})),
            (
                json!({"text": {"format": {"type": "text"}}}),
                json!({"response_format": {"type": "text"}}),
            ),
            (
                json!({"text": {"format": schema}}),
                json!({"response_format": {"type": "json_schema",
                    "json_schema": {"name": "n", "strict": true, "schema": {}}}}),
            ),
            (
                json!({"parallel_tool_calls": false}),
                json!({"parallel_tool_calls": false}),
            ),
        ] {
            let mut body = read(extra.clone()).unwrap().chat.body;
            assert_eq!(body.shift_remove("model"), Some(json!("m")));
            assert!(body.shift_remove("messages").is_some());
            assert_eq!(Value::from(body), expected, "{extra}");
        }
    }

    #[test]
    fn the_response_repeats_the_request() {
        let echo = read(json!({})).unwrap().echo;
        assert_eq!(echo["text"], json!({"format": {"type": "text"}}));
        assert_eq!(echo["reasoning"], json!({"effort": null, "summary": null}));
        assert_eq!(
            (&echo["store"], &echo["tool_choice"]),
            (&json!(false), &json!("auto"))
        );
        let echo = read(
            json!({"store": true, "metadata": {"a": "b"}, "instructions": "I",
            "reasoning": {"effort": "low"}, "tools": [{"type": "web_search"}]}),
        )
        .unwrap()
        .echo;
        assert_eq!(echo["store"], false);
        assert_eq!(echo["metadata"], json!({"a": "b"}));
        assert_eq!(echo["instructions"], "I");
        assert_eq!(echo["reasoning"]["effort"], "low");
        assert_eq!(echo["tools"], json!([{"type": "web_search"}]));
    }

    #[test]
    fn refusals_name_the_field() {
        let unsupported = "unsupported_parameter";
        for (extra, code, param) in [
            (
                json!({"previous_response_id": "resp_1"}),
                unsupported,
                "previous_response_id",
            ),
            (
                json!({"conversation": {"id": "c"}}),
                unsupported,
                "conversation",
            ),
            (json!({"background": true}), unsupported, "background"),
            (json!({"prompt": {"id": "p"}}), unsupported, "prompt"),
            (
                json!({"truncation": "auto"}),
                "unsupported_value",
                "truncation",
            ),
            (
                json!({"max_output_tokens": 0}),
                "integer_below_min_value",
                "max_output_tokens",
            ),
            (
                json!({"top_logprobs": 21}),
                "integer_above_max_value",
                "top_logprobs",
            ),
            (json!({"metadata": "a"}), "invalid_type", "metadata"),
            (json!({"instructions": []}), "invalid_type", "instructions"),
            (json!({"reasoning": "low"}), "invalid_type", "reasoning"),
            (json!({"text": "a"}), "invalid_type", "text"),
            (
                json!({"text": {"format": {}}}),
                "missing_required_parameter",
                "text.format.type",
            ),
        ] {
            let error = read(extra.clone()).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref()),
                (Some(code), Some(param)),
                "{extra}"
            );
        }
        let error = read(json!({"previous_response_id": "resp_1"})).unwrap_err();
        assert!(
            error
                .message
                .contains("stateless server: send the full input")
        );
    }
}

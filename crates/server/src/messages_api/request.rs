//! The body of a request as a chat request.

use serde_json::{Value, json};

use crate::error::{ApiError, shorten};
use crate::fields::{Bounds, Fields};
use crate::foreign_fields;
use crate::messages_api::content;
use crate::metrics::Metrics;
use crate::sampling::RequestRules;
use crate::translation::{
    EXTENSIONS, Names, TOOLS_MAX, Translation, check_names, function_tool, named_tool,
};

/// Tokens that a budget for thinking has at least.
const THINKING_BUDGET_MIN: i64 = 1_024;

/// Fields that mean something here.
const HONOURED: &[&str] = &[
    "model",
    "messages",
    "max_tokens",
    "system",
    "temperature",
    "top_p",
    "stop_sequences",
    "stream",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
];

/// Hints without any effect.
pub(crate) const IGNORED: &[&str] = &[
    "metadata",
    "service_tier",
    "cache_control",
    "context_management",
    "container",
    "mcp_servers",
    "inference_geo",
    "speed",
];

const KNOWN: Names = Names {
    honoured: HONOURED,
    ignored: IGNORED,
    foreign: foreign_fields::MESSAGES,
};

/// Where fields of the chat request come from.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("messages", "messages"),
    ("stop", "stop_sequences"),
    ("response_format.json_schema", "output_config.format"),
    ("response_format", "output_config.format"),
];

/// What a client wants to see of thinking, and whether the model is to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// Nothing was said: the server's default, not shown.
    Unsaid,
    /// Wanted and shown.
    Shown,
    /// Not wanted.
    Off,
}

/// What the conversation alone decides: all that the number of its tokens depends on.
pub(super) fn conversation(
    fields: &Fields,
    rules: &RequestRules,
    metrics: &Metrics,
) -> Result<(Translation, Thinking), ApiError> {
    check_names(fields, &KNOWN, rules.strict_fields, metrics)?;
    let mut chat = Translation::default();
    chat.keep(fields, &["model"]);
    chat.keep(fields, EXTENSIONS);
    let messages = content::read(fields, rules.strip_client_markers)?;
    chat.set("messages", messages.list);
    if messages.prefilled {
        chat.set("continue_final_message", true);
    }
    tools(fields, &mut chat, metrics)?;
    tool_choice(fields, &mut chat)?;
    let thinking = thinking(fields)?;
    match thinking {
        Thinking::Unsaid => {}
        Thinking::Shown => chat.set("enable_thinking", true),
        Thinking::Off => chat.set("enable_thinking", false),
    }
    Ok((chat, thinking))
}

/// The whole request.
pub(super) fn translate(
    fields: &Fields,
    rules: &RequestRules,
    metrics: &Metrics,
) -> Result<(Translation, Thinking), ApiError> {
    let (mut chat, thinking) = conversation(fields, rules, metrics)?;
    fields.required("max_tokens")?;
    fields.count("max_tokens", 1)?;
    fields.number("temperature", Bounds::closed(0.0, 1.0))?;
    chat.keep(fields, &["max_tokens", "temperature", "top_p", "stream"]);
    let stops = fields.array("stop_sequences", rules.stop_strings_max)?;
    if let Some(stops) = stops {
        chat.set("stop", stops.to_vec());
    }
    if let Some(format) = output_format(fields)? {
        chat.set("response_format", format);
    }
    Ok((chat, thinking))
}

/// Tools that run on Anthropic's own servers do not exist here; the others are still useful.
fn tools(fields: &Fields, chat: &mut Translation, metrics: &Metrics) -> Result<(), ApiError> {
    let listed = fields.array("tools", TOOLS_MAX)?.unwrap_or_default();
    let mut shown = Vec::with_capacity(listed.len());
    for (index, tool) in listed.iter().enumerate() {
        let tool = Fields::of(tool, format!("tools.[{index}]"))?;
        if !matches!(tool.string("type")?, None | Some("custom")) {
            metrics.count_ignored("tools");
            continue;
        }
        tool.required("name")?;
        tool.object("input_schema")?;
        let get = |name| tool.get(name);
        let (schema, strict) = (get("input_schema"), get("strict"));
        shown.push(function_tool(
            get("name"),
            get("description"),
            schema,
            strict,
        ));
        chat.tools.push(index);
    }
    if !shown.is_empty() {
        chat.set("tools", shown);
    }
    Ok(())
}

fn tool_choice(fields: &Fields, chat: &mut Translation) -> Result<(), ApiError> {
    let Some(choice) = fields.object("tool_choice")? else {
        return Ok(());
    };
    choice.required("type")?;
    let value: Value = match choice.string("type")?.unwrap_or_default() {
        "auto" => "auto".into(),
        "any" => "required".into(),
        "none" => "none".into(),
        "tool" => {
            choice.required("name")?;
            named_tool(choice.string("name")?.unwrap_or_default())
        }
        other => {
            let message = format!(
                "Invalid value: '{}'. Supported types are 'auto', 'any', 'tool' and 'none'.",
                shorten(other)
            );
            return Err(ApiError::invalid(
                "invalid_value",
                choice.path("type"),
                message,
            ));
        }
    };
    chat.set("tool_choice", value);
    if choice.boolean("disable_parallel_tool_use")? == Some(true) {
        chat.set("parallel_tool_calls", false);
    }
    Ok(())
}

fn thinking(fields: &Fields) -> Result<Thinking, ApiError> {
    let Some(thinking) = fields.object("thinking")? else {
        return Ok(Thinking::Unsaid);
    };
    thinking.required("type")?;
    match thinking.string("type")?.unwrap_or_default() {
        "enabled" => {
            thinking.integer("budget_tokens", THINKING_BUDGET_MIN, i64::MAX)?;
            Ok(Thinking::Shown)
        }
        "adaptive" => Ok(Thinking::Shown),
        "disabled" => Ok(Thinking::Off),
        other => {
            let message = format!(
                "Invalid value: '{}'. Supported types are 'enabled', 'adaptive' and 'disabled'.",
                shorten(other)
            );
            Err(ApiError::invalid(
                "invalid_value",
                thinking.path("type"),
                message,
            ))
        }
    }
}

/// `response_format`; the older name of the field is without an object around it.
fn output_format(fields: &Fields) -> Result<Option<Value>, ApiError> {
    let config = fields.object("output_config")?;
    let format = match &config {
        Some(config) => config.object("format")?,
        None => None,
    };
    let Some(format) = (match format {
        Some(format) => Some(format),
        None => fields.object("output_format")?,
    }) else {
        return Ok(None);
    };
    format.required("type")?;
    let kind = format.string("type")?.unwrap_or_default();
    if kind != "json_schema" {
        let kind = shorten(kind);
        let message = format!("Invalid value: '{kind}'. The supported type is 'json_schema'.");
        return Err(ApiError::invalid(
            "invalid_value",
            format.path("type"),
            message,
        ));
    }
    let schema = format.required("schema")?;
    Ok(Some(
        json!({"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsConfig;

    fn body(extra: Value) -> Value {
        let mut body = json!({"model": "m", "max_tokens": 5,
            "messages": [{"role": "user", "content": "hi"}]});
        let extra = extra.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(extra);
        body
    }

    fn read(extra: Value) -> Result<(Translation, Thinking), ApiError> {
        let body = body(extra);
        let fields = Fields::root(body.as_object().unwrap());
        translate(
            &fields,
            &RequestRules::default(),
            &Metrics::new("m", &MetricsConfig::default()),
        )
    }

    /// What the fields add to the chat request.
    fn added(extra: Value) -> Value {
        let (mut chat, _) = read(extra).unwrap();
        for name in ["model", "messages", "max_tokens"] {
            assert!(chat.body.shift_remove(name).is_some());
        }
        chat.body.into()
    }

    #[test]
    fn fields_have_counterparts() {
        let tool = |name: &str| {
            json!({"type": "function", "function": {"name": name,
            "description": "d", "parameters": {"type": "object"}}})
        };
        let own = |name: &str| {
            json!({"name": name, "description": "d",
            "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}})
        };
        let format = json!({"type": "json_schema", "schema": {"type": "object"}});
        let response_format = json!({"type": "json_schema",
            "json_schema": {"name": "output", "schema": {"type": "object"}}});
        for (extra, expected) in [
            (
                json!({"metadata": {"user_id": "u"}, "unheard_of": 1, "stream": null}),
                json!({}),
            ),
            (
                json!({"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stream": true}),
                json!({"top_k": 5, "temperature": 0.5, "top_p": 0.9, "stream": true}),
            ),
            (
                json!({"stop_sequences": ["a", "b"]}),
                json!({"stop": ["a", "b"]}),
            ),
            (
                json!({"tools": [own("f"), {"type": "web_search_20250305", "name": "web_search"},
                    {"type": "custom", "name": "g"}]}),
                json!({"tools": [tool("f"), {"type": "function", "function": {"name": "g"}}]}),
            ),
            (
                json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}),
                json!({}),
            ),
            (
                json!({"tool_choice": {"type": "auto"}}),
                json!({"tool_choice": "auto"}),
            ),
            (
                json!({"tool_choice": {"type": "none"}}),
                json!({"tool_choice": "none"}),
            ),
            (
                json!({"tool_choice": {"type": "any", "disable_parallel_tool_use": true}}),
                json!({"tool_choice": "required", "parallel_tool_calls": false}),
            ),
            (
                json!({"tool_choice": {"type": "tool", "name": "f"}}),
                json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
            ),
            (
                json!({"output_format": format}),
                json!({"response_format": response_format}),
            ),
            (
                json!({"output_config": {"format": format, "effort": "low"}}),
                json!({"response_format": response_format}),
            ),
            (json!({"output_config": {"effort": "low"}}), json!({})),
        ] {
            assert_eq!(added(extra.clone()), expected, "{extra}");
        }
    }

    #[test]
    fn thinking_is_shown_to_those_who_asked() {
        for (thinking, expected, enable) in [
            (json!(null), Thinking::Unsaid, json!(null)),
            (
                json!({"type": "enabled", "budget_tokens": 1024}),
                Thinking::Shown,
                json!(true),
            ),
            (json!({"type": "adaptive"}), Thinking::Shown, json!(true)),
            (json!({"type": "disabled"}), Thinking::Off, json!(false)),
        ] {
            let (chat, found) = read(json!({"thinking": thinking})).unwrap();
            assert_eq!(found, expected);
            assert_eq!(
                chat.body.get("enable_thinking").unwrap_or(&Value::Null),
                &enable
            );
        }
    }

    fn refused(cases: &[(Value, &str, &str)]) {
        for (extra, code, param) in cases {
            let error = read(extra.clone()).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref()),
                (Some(*code), Some(*param)),
                "{extra}"
            );
        }
    }

    #[test]
    fn refusals_name_the_field() {
        refused(&[
            (
                json!({"max_tokens": null}),
                "missing_required_parameter",
                "max_tokens",
            ),
            (
                json!({"max_tokens": 0}),
                "integer_below_min_value",
                "max_tokens",
            ),
            (
                json!({"max_tokens": -1}),
                "integer_below_min_value",
                "max_tokens",
            ),
            (
                json!({"temperature": 1.5}),
                "decimal_above_max_value",
                "temperature",
            ),
            (
                json!({"messages": null}),
                "missing_required_parameter",
                "messages",
            ),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 1023}}),
                "integer_below_min_value",
                "thinking.budget_tokens",
            ),
            (
                json!({"thinking": {"type": "on"}}),
                "invalid_value",
                "thinking.type",
            ),
            (
                json!({"thinking": {}}),
                "missing_required_parameter",
                "thinking.type",
            ),
        ]);
    }

    #[test]
    fn refusals_of_tools_and_forms_name_the_field() {
        refused(&[
            (json!({"tool_choice": "any"}), "invalid_type", "tool_choice"),
            (
                json!({"tool_choice": {"type": "all"}}),
                "invalid_value",
                "tool_choice.type",
            ),
            (
                json!({"tool_choice": {"type": "tool"}}),
                "missing_required_parameter",
                "tool_choice.name",
            ),
            (
                json!({"tools": [{"description": "d"}]}),
                "missing_required_parameter",
                "tools.[0].name",
            ),
            (
                json!({"tools": [{"name": "f", "input_schema": []}]}),
                "invalid_type",
                "tools.[0].input_schema",
            ),
            (
                json!({"stop_sequences": "a"}),
                "invalid_type",
                "stop_sequences",
            ),
            (
                json!({"stop_sequences": ["a", "b", "c", "d", "e"]}),
                "array_above_max_length",
                "stop_sequences",
            ),
            (
                json!({"output_format": {"type": "text"}}),
                "invalid_value",
                "output_format.type",
            ),
            (
                json!({"output_config": {"format": {"type": "json_schema"}}}),
                "missing_required_parameter",
                "output_config.format.schema",
            ),
        ]);
    }
}

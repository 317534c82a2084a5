//! Tools and the choice among them as a chat request has them.

use serde_json::{Value, json};

use crate::error::{ApiError, shorten};
use crate::fields::{Fields, wrong_type};
use crate::metrics::Metrics;
use crate::translation::{TOOLS_MAX, Translation, function_tool, named_tool};

/// Puts `tools` and `tool_choice` into the chat request; returns the names of tools whose input is
/// a text and not an object. Tools that OpenAI's servers run do not exist here and are left out.
pub(super) fn read(
    fields: &Fields,
    chat: &mut Translation,
    metrics: &Metrics,
) -> Result<Vec<String>, ApiError> {
    let listed = fields.array("tools", TOOLS_MAX)?.unwrap_or_default();
    let (mut shown, mut custom) = (Vec::new(), Vec::new());
    for (index, tool) in listed.iter().enumerate() {
        let tool = Fields::of(tool, format!("tools.[{index}]"))?;
        tool.required("type")?;
        let get = |name| tool.get(name);
        match tool.string("type")?.unwrap_or_default() {
            "function" => {
                let (parameters, strict) = (get("parameters"), get("strict"));
                shown.push(function_tool(
                    get("name"),
                    get("description"),
                    parameters,
                    strict,
                ));
            }
            "custom" => {
                custom.extend(tool.string("name")?.map(str::to_owned));
                let parameters = json!({"type": "object",
                    "properties": {"input": {"type": "string"}}, "required": ["input"]});
                let description = get("description");
                shown.push(function_tool(
                    get("name"),
                    description,
                    Some(&parameters),
                    None,
                ));
            }
            _ => {
                metrics.count_ignored("tools");
                continue;
            }
        }
        chat.tools.push(index);
    }
    if !shown.is_empty() {
        chat.set("tools", shown);
    }
    if let Some(choice) = fields.get("tool_choice") {
        chat.set("tool_choice", choice_of(choice)?);
    }
    Ok(custom)
}

fn choice_of(choice: &Value) -> Result<Value, ApiError> {
    let path = "tool_choice";
    match choice {
        Value::String(_) => return Ok(choice.clone()),
        Value::Object(_) => {}
        other => return Err(wrong_type(path, "a string or an object", other)),
    }
    let object = Fields::of(choice, path)?;
    object.required("type")?;
    match object.string("type")?.unwrap_or_default() {
        "function" | "custom" => named(&object),
        "allowed_tools" => {
            object.required("mode")?;
            object.required("tools")?;
            let mut allowed = Vec::new();
            let listed = object.array("tools", TOOLS_MAX)?.unwrap_or_default();
            for (index, tool) in listed.iter().enumerate() {
                let tool = Fields::of(tool, object.path(&format!("tools.[{index}]")))?;
                if matches!(tool.string("type")?, Some("function" | "custom")) {
                    allowed.push(named(&tool)?);
                }
            }
            let mode = object.string("mode")?;
            Ok(json!({"type": "allowed_tools",
                "allowed_tools": {"mode": mode, "tools": allowed}}))
        }
        kind => {
            let message = format!(
                "A 'tool_choice' of type '{}' is not supported.",
                shorten(kind)
            );
            Err(ApiError::invalid("unsupported_value", path, message))
        }
    }
}

fn named(object: &Fields) -> Result<Value, ApiError> {
    object.required("name")?;
    Ok(named_tool(object.string("name")?.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsConfig;

    fn translated(body: Value) -> Result<(Value, Vec<String>), ApiError> {
        let mut chat = Translation::default();
        let fields = Fields::root(body.as_object().unwrap());
        let custom = read(
            &fields,
            &mut chat,
            &Metrics::new("m", &MetricsConfig::default()),
        )?;
        Ok((chat.body.into(), custom))
    }

    #[test]
    fn tools_are_flat_here_and_others_are_left_out() {
        let tools = json!([
            {"type": "web_search"},
            {"type": "function", "name": "f", "description": "d", "strict": true,
                "parameters": {"type": "object"}},
            {"type": "custom", "name": "patch", "description": "p", "format": {"type": "text"}},
            {"type": "namespace", "name": "n", "tools": []},
            {"type": "function", "name": "g", "parameters": null},
        ]);
        let (body, custom) = translated(json!({"tools": tools})).unwrap();
        let expected = json!([
            {"type": "function", "function": {"name": "f", "description": "d",
                "parameters": {"type": "object"}, "strict": true}},
            {"type": "function", "function": {"name": "patch", "description": "p",
                "parameters": {"type": "object", "properties": {"input": {"type": "string"}},
                "required": ["input"]}}},
            {"type": "function", "function": {"name": "g"}},
        ]);
        assert_eq!(body, json!({"tools": expected}));
        assert_eq!(custom, ["patch"]);
        let only = json!({"tools": [{"type": "local_shell"}], "tool_choice": "auto"});
        assert_eq!(translated(only).unwrap().0, json!({"tool_choice": "auto"}));
    }

    #[test]
    fn choices() {
        let f = named_tool("f");
        for (choice, expected) in [
            (json!("required"), json!("required")),
            (json!({"type": "function", "name": "f"}), f.clone()),
            (json!({"type": "custom", "name": "f"}), f.clone()),
            (
                json!({"type": "allowed_tools", "mode": "auto",
                    "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]}),
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [f]}}),
            ),
        ] {
            let (body, _) = translated(json!({"tool_choice": choice})).unwrap();
            assert_eq!(body["tool_choice"], expected);
        }
        for (choice, code, param) in [
            (json!(1), "invalid_type", "tool_choice"),
            (json!({}), "missing_required_parameter", "tool_choice.type"),
            (
                json!({"type": "web_search"}),
                "unsupported_value",
                "tool_choice",
            ),
            (
                json!({"type": "function"}),
                "missing_required_parameter",
                "tool_choice.name",
            ),
            (
                json!({"type": "allowed_tools", "tools": []}),
                "missing_required_parameter",
                "tool_choice.mode",
            ),
        ] {
            let error = translated(json!({"tool_choice": choice})).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref()),
                (Some(code), Some(param)),
                "{choice}"
            );
        }
        let untyped = translated(json!({"tools": [{"name": "f"}]})).unwrap_err();
        assert_eq!(untyped.param.as_deref(), Some("tools.[0].type"));
    }
}

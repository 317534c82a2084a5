//! `tool_choice`: which calls must be made.

use serde_json::Value;

use crate::error::{ApiError, shorten};
use crate::fields::Fields;

/// Names of which one must be called first; `None` where no call must be made. The request's tools
/// have been checked.
pub(crate) fn forced_names(fields: &Fields) -> Result<Option<Vec<String>>, ApiError> {
    let Some(choice) = fields.get("tool_choice") else {
        return Ok(None);
    };
    let names = offered(fields)?;
    match choice {
        Value::String(word) => match word.as_str() {
            "auto" | "none" => Ok(None),
            "required" if names.is_empty() => Err(without_tools()),
            "required" => Ok(Some(names)),
            other => Err(unknown(
                "tool_choice",
                other,
                "'auto', 'none' and 'required'",
            )),
        },
        _ => chosen(&Fields::of(choice, "tool_choice")?, &names),
    }
}

fn offered(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let tools = fields.array("tools", usize::MAX)?.unwrap_or_default();
    let name = |tool: &Value| tool.pointer("/function/name")?.as_str().map(str::to_owned);
    Ok(tools.iter().filter_map(name).collect())
}

fn chosen(choice: &Fields, names: &[String]) -> Result<Option<Vec<String>>, ApiError> {
    choice.required("type")?;
    match choice.string("type")?.unwrap_or_default() {
        "function" => Ok(Some(vec![named(choice, names)?])),
        "allowed_tools" => {
            choice.required("allowed_tools")?;
            let Some(allowed) = choice.object("allowed_tools")? else {
                return Ok(None);
            };
            allowed.required("mode")?;
            allowed.required("tools")?;
            let tools = allowed.array("tools", 128)?.unwrap_or_default();
            let path = allowed.path("tools");
            let mut listed = Vec::with_capacity(tools.len());
            for (index, tool) in tools.iter().enumerate() {
                listed.push(named(
                    &Fields::of(tool, format!("{path}.[{index}]"))?,
                    names,
                )?);
            }
            match allowed.string("mode")?.unwrap_or_default() {
                "auto" => Ok(None),
                "required" if listed.is_empty() => Err(without_tools()),
                "required" => Ok(Some(listed)),
                other => Err(unknown(
                    &allowed.path("mode"),
                    other,
                    "'auto' and 'required'",
                )),
            }
        }
        other => {
            let known = "'function' and 'allowed_tools'";
            Err(unknown(&choice.path("type"), other, known))
        }
    }
}

/// The name in `{"type": "function", "function": {"name": NAME}}`, which a tool must have.
fn named(choice: &Fields, names: &[String]) -> Result<String, ApiError> {
    choice.required("function")?;
    let Some(function) = choice.object("function")? else {
        return Err(without_tools());
    };
    function.required("name")?;
    let name = function.string("name")?.unwrap_or_default();
    match names.iter().any(|own| own == name) {
        true => Ok(name.to_owned()),
        false => {
            let message = format!(
                "Invalid 'tool_choice': no tool of this request is named '{}'.",
                shorten(name)
            );
            Err(ApiError::invalid("invalid_value", "tool_choice", message))
        }
    }
}

fn without_tools() -> ApiError {
    let message = "'tool_choice' asks for a call, but there are no 'tools' to call.";
    ApiError::invalid("invalid_value", "tool_choice", message)
}

fn unknown(path: &str, found: &str, known: &str) -> ApiError {
    let message = format!(
        "Invalid value: '{}'. Supported values are {known}.",
        shorten(found)
    );
    ApiError::invalid("invalid_value", path, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(choice: Value, names: &[&str]) -> Result<Option<Vec<String>>, ApiError> {
        let tool = |name: &&str| json!({"type": "function", "function": {"name": name}});
        let tools: Vec<Value> = names.iter().map(tool).collect();
        let body = json!({"tool_choice": choice, "tools": tools});
        forced_names(&Fields::root(body.as_object().unwrap()))
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    fn allowed(mode: &str, names: &[&str]) -> Value {
        let tools: Vec<Value> = names.iter().map(|name| function(name)).collect();
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    }

    #[test]
    fn calls_that_must_be_made() {
        for (choice, expected) in [
            (json!(null), None),
            (json!("auto"), None),
            (json!("none"), None),
            (json!("required"), Some(vec!["f", "g"])),
            (function("g"), Some(vec!["g"])),
            (allowed("auto", &["f"]), None),
            (allowed("required", &["g"]), Some(vec!["g"])),
        ] {
            let found = read(choice.clone(), &["f", "g"]).unwrap();
            let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect());
            assert_eq!(found, expected, "{choice}");
        }
    }

    #[test]
    fn refusals_name_the_field() {
        for (choice, names, param) in [
            (json!("any"), &["f"][..], "tool_choice"),
            (json!("required"), &[], "tool_choice"),
            (function("g"), &["f"], "tool_choice"),
            (function("g"), &[], "tool_choice"),
            (json!({"type": "function"}), &["f"], "tool_choice.function"),
            (json!({"type": "x"}), &["f"], "tool_choice.type"),
            (json!(3), &["f"], "tool_choice"),
            (
                allowed("never", &["f"]),
                &["f"],
                "tool_choice.allowed_tools.mode",
            ),
            (allowed("required", &["g"]), &["f"], "tool_choice"),
            (allowed("required", &[]), &["f"], "tool_choice"),
        ] {
            let error = read(choice.clone(), names).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{choice}");
        }
    }
}

//! `tools`, `tool_choice` and `parallel_tool_calls` of a chat request.

use serde_json::Value;

use crate::error::{ApiError, shorten};
use crate::fields::{Fields, wrong_type};
use crate::tool_calls::{Tool, ToolSet};

/// Tools of one request at most.
const TOOLS_MAX: usize = 128;
/// Bytes of a name at most.
const NAME_BYTES_MAX: usize = 64;

/// Whether the model must call a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// It decides.
    Auto,
    /// It knows of no tools.
    None,
    /// It must call at least one.
    Required,
    /// It must call this one.
    Named(String),
}

/// What a request says about tools.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolOptions {
    /// Definitions for the template, exactly as they came; none if they are not to be shown.
    pub(crate) shown: Vec<Value>,
    /// Whether one must be called.
    pub(crate) choice: ToolChoice,
    /// What counts as a call; `None` = nothing does.
    pub(crate) set: Option<ToolSet>,
}

impl ToolOptions {
    /// Reads and checks the fields.
    pub(crate) fn read(fields: &Fields) -> Result<Self, ApiError> {
        let listed = fields.array("tools", TOOLS_MAX)?.unwrap_or_default();
        let tools = definitions(listed)?;
        let (choice, callable) = choice(fields, &tools)?;
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        if choice == ToolChoice::None || tools.is_empty() {
            return Ok(ToolOptions {
                shown: Vec::new(),
                choice: ToolChoice::None,
                set: None,
            });
        }
        Ok(ToolOptions {
            shown: listed.to_vec(),
            choice,
            set: Some(ToolSet {
                tools,
                callable,
                parallel,
            }),
        })
    }

    /// The names of which one must be called; `None` where no call must be made.
    pub(crate) fn forced(&self) -> Option<Vec<String>> {
        let set = self.set.as_ref()?;
        match &self.choice {
            ToolChoice::Auto | ToolChoice::None => None,
            ToolChoice::Named(name) => Some(vec![name.clone()]),
            ToolChoice::Required => Some(match &set.callable {
                Some(names) => names.clone(),
                None => set.tools.iter().map(|tool| tool.name.clone()).collect(),
            }),
        }
    }
}

fn definitions(listed: &[Value]) -> Result<Vec<Tool>, ApiError> {
    let mut tools: Vec<Tool> = Vec::with_capacity(listed.len());
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
        let function = Fields::of(tool.required("function")?, tool.path("function"))?;
        function.required("name")?;
        let name = function.string("name")?.unwrap_or_default();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte);
        let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain);
        if !fits || tools.iter().any(|tool| tool.name == name) {
            let message = format!(
                "Invalid '{}': expected a name of 1 to {NAME_BYTES_MAX} letters, digits and \
                 '_.:/-' that no other tool has.",
                function.path("name")
            );
            return Err(ApiError::invalid(
                "invalid_value",
                function.path("name"),
                message,
            ));
        }
        function.string("description")?;
        function.boolean("strict")?;
        function.object("parameters")?;
        let parameters = function.get("parameters").cloned();
        tools.push(Tool {
            name: name.to_owned(),
            parameters: parameters.unwrap_or_default(),
        });
    }
    Ok(tools)
}

fn invalid(code: &'static str, path: &str, message: impl Into<String>) -> ApiError {
    ApiError::invalid(code, path, message)
}

/// The choice, and the only names that may be called if there are such.
fn choice(fields: &Fields, tools: &[Tool]) -> Result<(ToolChoice, Option<Vec<String>>), ApiError> {
    let path = "tool_choice";
    let value = match fields.get(path) {
        None => return Ok((ToolChoice::Auto, None)),
        Some(Value::String(word)) => {
            return Ok((by_word(word, tools)?, None));
        }
        Some(value @ Value::Object(_)) => value,
        Some(other) => return Err(wrong_type(path, "a string or an object", other)),
    };
    let object = Fields::of(value, path)?;
    object.required("type")?;
    match object.string("type")?.unwrap_or_default() {
        "function" => Ok((ToolChoice::Named(offered(&object, tools)?), None)),
        "allowed_tools" => {
            let allowed = Fields::of(
                object.required("allowed_tools")?,
                object.path("allowed_tools"),
            )?;
            allowed.required("mode")?;
            allowed.required("tools")?;
            let mode = match allowed.string("mode")?.unwrap_or_default() {
                word @ ("auto" | "required") => by_word(word, tools)?,
                other => {
                    let message = format!(
                        "Invalid value: '{}'. Supported modes are 'auto' and 'required'.",
                        shorten(other)
                    );
                    return Err(invalid("invalid_value", &allowed.path("mode"), message));
                }
            };
            let listed = allowed.array("tools", TOOLS_MAX)?.unwrap_or_default();
            let names = listed.iter().enumerate().map(|(index, tool)| {
                offered(
                    &Fields::of(tool, allowed.path(&format!("tools.[{index}]")))?,
                    tools,
                )
            });
            let names = names.collect::<Result<Vec<_>, _>>()?;
            if mode == ToolChoice::Required && names.is_empty() {
                let message = "'tool_choice' asks for a call, but allows no tool.";
                return Err(invalid("invalid_value", &allowed.path("tools"), message));
            }
            Ok((mode, Some(names)))
        }
        kind => {
            let message = format!(
                "A 'tool_choice' of type '{}' is not supported; use 'function' or \
                 'allowed_tools'.",
                shorten(kind)
            );
            Err(invalid("unsupported_value", path, message))
        }
    }
}

fn by_word(word: &str, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let path = "tool_choice";
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" if tools.is_empty() => {
            let message = "'tool_choice' asks for a call, but 'tools' offers none.";
            Err(invalid("invalid_value", path, message))
        }
        "required" => Ok(ToolChoice::Required),
        other => {
            let message = format!(
                "Invalid value: '{}'. Supported values are 'auto', 'none', 'required' and \
                 objects.",
                shorten(other)
            );
            Err(invalid("invalid_value", path, message))
        }
    }
}

/// The name in `{"type": "function", "function": {"name": ...}}`, which a tool must have.
fn offered(object: &Fields, tools: &[Tool]) -> Result<String, ApiError> {
    let function = Fields::of(object.required("function")?, object.path("function"))?;
    function.required("name")?;
    let name = function.string("name")?.unwrap_or_default();
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(name.to_owned());
    }
    let message = format!(
        "'tool_choice' names the tool '{}', which 'tools' does not offer.",
        shorten(name)
    );
    Err(invalid("invalid_value", "tool_choice", message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<ToolOptions, ApiError> {
        ToolOptions::read(&Fields::root(body.as_object().unwrap()))
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    #[test]
    fn definitions_reach_the_template_as_they_came() {
        let listed = json!([{"type": "function", "function": {"strict": null, "name": "mcp:a/b.c-d_1",
            "x": null, "parameters": {"type": "object", "properties": {}}}}, tool("f")]);
        let options = read(json!({"tools": listed})).unwrap();
        assert_eq!(Value::from(options.shown), listed);
        let set = options.set.unwrap();
        assert_eq!(options.choice, ToolChoice::Auto);
        assert_eq!(set.tools[0].parameters, listed[0]["function"]["parameters"]);
        assert_eq!(set.tools[1].parameters, Value::Null);
        assert!(set.parallel && set.callable.is_none());
    }

    #[test]
    fn choices() {
        let read = |choice: Value| {
            read(
                json!({"tools": [tool("f"), tool("g")], "tool_choice": choice,
                "parallel_tool_calls": false}),
            )
            .unwrap()
        };
        assert_eq!(read(json!(null)).choice, ToolChoice::Auto);
        assert_eq!(read(json!("auto")).choice, ToolChoice::Auto);
        let none = read(json!("none"));
        assert_eq!(
            (none.choice, none.set, none.shown),
            (ToolChoice::None, None, vec![])
        );
        for (choice, expected, forced) in [
            (json!("required"), ToolChoice::Required, vec!["f", "g"]),
            (tool("g"), ToolChoice::Named("g".into()), vec!["g"]),
        ] {
            let options = read(choice);
            let forced = Some(forced.into_iter().map(str::to_owned).collect());
            assert_eq!(options.forced(), forced);
            assert_eq!((options.choice, options.shown.len()), (expected, 2));
        }
        let allowed = |mode: &str| {
            read(json!({"type": "allowed_tools",
                "allowed_tools": {"mode": mode, "tools": [tool("g")]}}))
        };
        let required = allowed("required");
        assert_eq!(required.choice, ToolChoice::Required);
        assert_eq!(required.forced(), Some(vec!["g".to_owned()]));
        let allowed = allowed("auto");
        assert_eq!(allowed.forced(), None);
        assert_eq!(allowed.shown.len(), 2, "all are shown");
        let set = allowed.set.unwrap();
        assert_eq!(set.callable, Some(vec!["g".to_owned()]));
        assert!(!set.parallel);
    }

    #[test]
    fn no_tools_are_none() {
        for body in [
            json!({}),
            json!({"tools": []}),
            json!({"tools": null, "tool_choice": "auto"}),
            json!({"tools": [], "tool_choice": "none"}),
        ] {
            let options = read(body.clone()).unwrap();
            assert_eq!(
                (options.choice, options.set),
                (ToolChoice::None, None),
                "{body}"
            );
        }
    }

    /// Bodies are refused with this code about this field.
    fn refused(cases: &[(Value, &str, &str)]) {
        for (body, code, param) in cases {
            let error = read(body.clone()).unwrap_err();
            let found = (error.code, error.param.as_deref());
            assert_eq!(found, (Some(*code), Some(*param)), "{body}");
        }
    }

    const INVALID: &str = "invalid_value";
    const KIND: &str = "invalid_type";
    const MISSING: &str = "missing_required_parameter";
    const UNSUPPORTED: &str = "unsupported_value";

    #[test]
    fn definitions_that_are_refused() {
        let with = |name: &str, value: Value| {
            let mut tool = tool("f");
            tool["function"][name] = value;
            json!({"tools": [tool]})
        };
        let path = |name: &str| format!("tools.[0].function.{name}");
        for (name, value, code) in [
            ("name", json!("a b"), INVALID),
            ("name", json!(""), INVALID),
            ("name", json!("x".repeat(65)), INVALID),
            ("name", json!(null), MISSING),
            ("parameters", json!([]), KIND),
            ("strict", json!("yes"), KIND),
            ("description", json!(1), KIND),
        ] {
            refused(&[(with(name, value), code, &path(name))]);
        }
        let double = json!({"tools": [tool("f"), tool("f")]});
        let many = json!({"tools": vec![tool("f"); 129]});
        refused(&[
            (json!({"tools": {}}), KIND, "tools"),
            (json!({"tools": [1]}), KIND, "tools.[0]"),
            (json!({"tools": [{}]}), MISSING, "tools.[0].type"),
            (
                json!({"tools": [{"type": "custom"}]}),
                UNSUPPORTED,
                "tools.[0].type",
            ),
            (
                json!({"tools": [{"type": "function"}]}),
                MISSING,
                "tools.[0].function",
            ),
            (double, INVALID, "tools.[1].function.name"),
            (many, "array_above_max_length", "tools"),
            (
                json!({"parallel_tool_calls": 1}),
                KIND,
                "parallel_tool_calls",
            ),
        ]);
    }

    #[test]
    fn choices_that_are_refused() {
        let choice = |choice: Value| json!({"tools": [tool("f")], "tool_choice": choice});
        let allowed =
            |allowed: Value| choice(json!({"type": "allowed_tools", "allowed_tools": allowed}));
        refused(&[
            (choice(json!("any")), INVALID, "tool_choice"),
            (choice(json!(true)), KIND, "tool_choice"),
            (choice(json!({})), MISSING, "tool_choice.type"),
            (
                choice(json!({"type": "custom"})),
                UNSUPPORTED,
                "tool_choice",
            ),
            (
                choice(json!({"type": "function"})),
                MISSING,
                "tool_choice.function",
            ),
            (choice(tool("h")), INVALID, "tool_choice"),
            (json!({"tool_choice": "required"}), INVALID, "tool_choice"),
            (json!({"tool_choice": tool("f")}), INVALID, "tool_choice"),
            (
                allowed(json!({"tools": []})),
                MISSING,
                "tool_choice.allowed_tools.mode",
            ),
            (
                allowed(json!({"mode": "auto"})),
                MISSING,
                "tool_choice.allowed_tools.tools",
            ),
            (
                allowed(json!({"mode": "all", "tools": []})),
                INVALID,
                "tool_choice.allowed_tools.mode",
            ),
            (
                allowed(json!({"mode": "required", "tools": []})),
                INVALID,
                "tool_choice.allowed_tools.tools",
            ),
            (
                allowed(json!({"mode": "auto", "tools": [tool("h")]})),
                INVALID,
                "tool_choice",
            ),
        ]);
    }
}

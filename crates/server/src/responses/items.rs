//! Items of a conversation as messages of a chat request.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, shorten};
use crate::fields::{Fields, wrong_type};
use crate::metrics::Metrics;

/// Items of one request at most.
const ITEMS_MAX: usize = 4_096;
/// Parts of one item at most.
const PARTS_MAX: usize = 2_048;

/// Reads `instructions` and `input`.
pub(super) fn messages(fields: &Fields, metrics: &Metrics) -> Result<Vec<Value>, ApiError> {
    let mut turns = Turns::default();
    if let Some(text) = fields.string("instructions")? {
        turns.push("system", text.to_owned());
    }
    let listed = match fields.required("input")? {
        Value::String(text) => {
            turns.push("user", text.clone());
            return Ok(turns.end());
        }
        Value::Array(_) => fields.array("input", ITEMS_MAX)?.unwrap_or_default(),
        other => return Err(wrong_type("input", "a string or an array of items", other)),
    };
    if listed.is_empty() {
        let message = "Invalid 'input': expected at least one item.";
        return Err(ApiError::invalid("empty_array", "input", message));
    }
    for (index, item) in listed.iter().enumerate() {
        let item = Fields::of(item, format!("input.[{index}]"))?;
        if !turns.take(&item)? {
            metrics.count_ignored("input");
        }
    }
    Ok(turns.end())
}

/// Messages, and the one that is being put together.
#[derive(Default)]
struct Turns {
    list: Vec<Value>,
    assistant: Option<Assistant>,
}

/// What a model wrote in one go came as several items.
#[derive(Default)]
struct Assistant {
    reasoning: Option<String>,
    content: Option<String>,
    calls: Vec<Value>,
}

impl Turns {
    fn push(&mut self, role: &str, content: String) {
        self.flush();
        self.list.push(json!({"role": role, "content": content}));
    }

    fn flush(&mut self) {
        let Some(turn) = self.assistant.take() else {
            return;
        };
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        message.insert("content".into(), turn.content.unwrap_or_default().into());
        if let Some(reasoning) = turn.reasoning {
            message.insert("reasoning_content".into(), reasoning.into());
        }
        if !turn.calls.is_empty() {
            message.insert("tool_calls".into(), turn.calls.into());
        }
        self.list.push(message.into());
    }

    fn end(mut self) -> Vec<Value> {
        self.flush();
        self.list
    }

    /// The open message of the assistant, or a new one if that one has what cannot come before.
    fn assistant(&mut self, over: fn(&Assistant) -> bool) -> &mut Assistant {
        if self.assistant.as_ref().is_some_and(over) {
            self.flush();
        }
        self.assistant.get_or_insert_default()
    }

    /// Takes an item; `false` = its type is unknown.
    fn take(&mut self, item: &Fields) -> Result<bool, ApiError> {
        let kind = match item.string("type")? {
            None if item.get("role").is_some() => "message",
            None => {
                item.required("type")?;
                ""
            }
            Some(kind) => kind,
        };
        match kind {
            "message" => self.message(item)?,
            "reasoning" => {
                let text = thoughts(item)?;
                let written = |turn: &Assistant| turn.content.is_some() || !turn.calls.is_empty();
                let turn = self.assistant(written);
                let earlier = turn.reasoning.take().filter(|earlier| !earlier.is_empty());
                turn.reasoning = Some(match earlier {
                    Some(earlier) => format!("{earlier}\n{text}"),
                    None => text,
                });
            }
            "function_call" => {
                let arguments = item.string("arguments")?.unwrap_or_default();
                self.call(item, arguments.into())?;
            }
            "custom_tool_call" => {
                item.required("input")?;
                let input = item.string("input")?.unwrap_or_default();
                self.call(item, json!({"input": input}))?;
            }
            "function_call_output" | "custom_tool_call_output" => {
                let id = text_field(item, "call_id")?;
                item.required("output")?;
                let content = text(item, "output")?;
                self.flush();
                let message = json!({"role": "tool", "tool_call_id": id, "content": content});
                self.list.push(message);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn message(&mut self, item: &Fields) -> Result<(), ApiError> {
        item.required("role")?;
        let role = item.string("role")?.unwrap_or_default();
        let content = text(item, "content")?;
        match role {
            "user" | "system" | "developer" => self.push(role, content),
            "assistant" => self.assistant(|turn| turn.content.is_some()).content = Some(content),
            role => {
                let message = format!(
                    "Invalid value: '{}'. Supported roles are 'user', 'assistant', 'system' and \
                     'developer'.",
                    shorten(role)
                );
                return Err(ApiError::invalid(
                    "invalid_value",
                    item.path("role"),
                    message,
                ));
            }
        }
        Ok(())
    }

    fn call(&mut self, item: &Fields, arguments: Value) -> Result<(), ApiError> {
        let id = text_field(item, "call_id")?;
        let name = text_field(item, "name")?;
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.assistant(|_| false).calls.push(call);
        Ok(())
    }
}

fn text_field<'a>(item: &Fields<'a>, name: &str) -> Result<&'a str, ApiError> {
    item.required(name)?;
    Ok(item.string(name)?.unwrap_or_default())
}

/// A string, or the texts of parts with nothing between them.
fn text(item: &Fields, name: &str) -> Result<String, ApiError> {
    let path = item.path(name);
    let parts = match item.get(name) {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(_)) => item.array(name, PARTS_MAX)?.unwrap_or_default(),
        Some(other) => return Err(wrong_type(&path, "a string or an array of parts", other)),
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::of(part, format!("{path}.[{index}]"))?;
        let field = match text_field(&part, "type")? {
            "input_text" | "output_text" | "text" => "text",
            "refusal" => "refusal",
            kind => {
                let code = match kind {
                    "input_image" | "input_file" | "input_audio" => "unsupported_value",
                    _ => "invalid_value",
                };
                let kind = shorten(kind);
                let message = format!("Parts of type '{kind}' are not supported here; send text.");
                return Err(ApiError::invalid(code, part.path("type"), message));
            }
        };
        text.push_str(text_field(&part, field)?);
    }
    Ok(text)
}

/// The text of a reasoning item: what was thought, else its summary.
fn thoughts(item: &Fields) -> Result<String, ApiError> {
    for name in ["content", "summary"] {
        let mut texts = Vec::new();
        let listed = item.array(name, PARTS_MAX)?.unwrap_or_default();
        for (index, part) in listed.iter().enumerate() {
            let part = Fields::of(part, item.path(&format!("{name}.[{index}]")))?;
            texts.push(text_field(&part, "text")?);
        }
        if !texts.is_empty() {
            return Ok(texts.join("\n"));
        }
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsConfig;

    fn read(input: Value) -> Result<Vec<Value>, ApiError> {
        let body = json!({"input": input});
        messages(
            &Fields::root(body.as_object().unwrap()),
            &Metrics::new("m", &MetricsConfig::default()),
        )
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn call(id: &str, arguments: Value) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}})
    }

    #[test]
    fn items_become_messages() {
        let part = |kind: &str, text: &str| json!({"type": kind, "text": text});
        for (input, expected) in [
            (json!("hi"), json!([user("hi")])),
            (json!([user("hi")]), json!([user("hi")])),
            (
                json!([{"type": "message", "role": "user", "content":
                    [part("input_text", "a"), part("input_text", "b")]}]),
                json!([user("ab")]),
            ),
            (
                json!([{"role": "developer", "content": "D"}, {"role": "system", "content": "S"}]),
                json!([{"role": "developer", "content": "D"}, {"role": "system", "content": "S"}]),
            ),
            (
                json!([{"type": "message", "role": "assistant", "id": "msg_1", "content":
                    [part("output_text", "a"), {"type": "refusal", "refusal": "no"}]}]),
                json!([{"role": "assistant", "content": "ano"}]),
            ),
            (
                json!([{"type": "function_call_output", "call_id": "1", "output": "x"},
                    {"type": "custom_tool_call_output", "call_id": "2", "output":
                    [part("input_text", "y"), part("output_text", "z")]}]),
                json!([{"role": "tool", "tool_call_id": "1", "content": "x"},
                    {"role": "tool", "tool_call_id": "2", "content": "yz"}]),
            ),
        ] {
            assert_eq!(
                Value::from(read(input.clone()).unwrap()),
                expected,
                "{input}"
            );
        }
    }

    #[test]
    fn instructions_are_in_front() {
        let body = json!({"instructions": "Be brief.", "input": "hi"});
        let fields = Fields::root(body.as_object().unwrap());
        let list = messages(&fields, &Metrics::new("m", &MetricsConfig::default())).unwrap();
        assert_eq!(list[0], json!({"role": "system", "content": "Be brief."}));
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn what_a_model_wrote_in_one_go_is_one_message() {
        let thought = |text: &str| {
            json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "?",
                "content": [{"type": "reasoning_text", "text": text}]})
        };
        let said = |text: &str| json!({"type": "message", "role": "assistant", "content": text});
        let called = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let turn = |reasoning: Option<&str>, content: &str, calls: &[Value]| {
            let mut turn = json!({"role": "assistant", "content": content});
            if let Some(reasoning) = reasoning {
                turn["reasoning_content"] = reasoning.into();
            }
            if !calls.is_empty() {
                turn["tool_calls"] = calls.into();
            }
            turn
        };
        let summary = json!({"type": "reasoning", "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}]});
        let patch = json!({"type": "custom_tool_call", "call_id": "3", "name": "f", "input": "*"});
        let (one, two) = (call("1", json!("{}")), call("2", json!("{}")));
        let both = [one.clone(), two.clone()];
        for (input, expected) in [
            (
                vec![thought("t"), said("a")],
                vec![turn(Some("t"), "a", &[])],
            ),
            (vec![summary, said("a")], vec![turn(Some("s"), "a", &[])]),
            (
                vec![thought("t"), said("a"), called("1"), called("2")],
                vec![turn(Some("t"), "a", &both)],
            ),
            (
                vec![thought("t"), called("1")],
                vec![turn(Some("t"), "", std::slice::from_ref(&one))],
            ),
            (
                vec![thought("t"), thought("u"), said("a")],
                vec![turn(Some("t\nu"), "a", &[])],
            ),
            (
                vec![said("a"), said("b")],
                vec![turn(None, "a", &[]), turn(None, "b", &[])],
            ),
            (
                vec![thought("t"), called("1"), thought("u"), called("2")],
                vec![turn(Some("t"), "", &[one]), turn(Some("u"), "", &[two])],
            ),
            (
                vec![patch],
                vec![turn(None, "", &[call("3", json!({"input": "*"}))])],
            ),
            (
                vec![
                    thought("t"),
                    json!({"type": "web_search_call", "id": "ws_1"}),
                    said("a"),
                ],
                vec![turn(Some("t"), "a", &[])],
            ),
            (
                vec![said("a"), user("q"), said("b")],
                vec![turn(None, "a", &[]), user("q"), turn(None, "b", &[])],
            ),
        ] {
            assert_eq!(read(input.clone().into()).unwrap(), expected, "{input:?}");
        }
    }

    #[test]
    fn unknown_items_are_counted() {
        let metrics = Metrics::new("m", &MetricsConfig::default());
        let body = json!({"input": [{"type": "item_reference", "id": "x"}, user("hi")]});
        let fields = Fields::root(body.as_object().unwrap());
        assert_eq!(messages(&fields, &metrics).unwrap(), [user("hi")]);
    }

    #[test]
    fn refusals_name_the_item() {
        for (input, code, param) in [
            (json!(null), "missing_required_parameter", "input"),
            (json!(1), "invalid_type", "input"),
            (json!([]), "empty_array", "input"),
            (json!(["a"]), "invalid_type", "input.[0]"),
            (json!([{}]), "missing_required_parameter", "input.[0].type"),
            (
                json!([{"role": "tool", "content": "a"}]),
                "invalid_value",
                "input.[0].role",
            ),
            (
                json!([{"type": "message"}]),
                "missing_required_parameter",
                "input.[0].role",
            ),
            (
                json!([user("a"), {"role": "user", "content": [{"type": "input_image"}]}]),
                "unsupported_value",
                "input.[1].content.[0].type",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_file"}]}]),
                "unsupported_value",
                "input.[0].content.[0].type",
            ),
            (
                json!([{"role": "user", "content": [{"type": "x"}]}]),
                "invalid_value",
                "input.[0].content.[0].type",
            ),
            (
                json!([{"type": "function_call", "name": "f"}]),
                "missing_required_parameter",
                "input.[0].call_id",
            ),
            (
                json!([{"type": "function_call", "call_id": "1"}]),
                "missing_required_parameter",
                "input.[0].name",
            ),
            (
                json!([{"type": "function_call_output", "call_id": "1"}]),
                "missing_required_parameter",
                "input.[0].output",
            ),
        ] {
            let error = read(input.clone()).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref()),
                (Some(code), Some(param)),
                "{input}"
            );
        }
    }
}

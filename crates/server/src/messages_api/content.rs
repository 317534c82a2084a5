//! Messages made of blocks as messages of a chat request.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, shorten};
use crate::fields::{Fields, wrong_type};
use crate::messages_api::system;

/// Messages of one request at most.
const MESSAGES_MAX: usize = 2_048;
/// Blocks of one message at most.
const BLOCKS_MAX: usize = 2_048;

/// Messages for the chat API.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Messages {
    /// In order.
    pub(super) list: Vec<Value>,
    /// The last one is the beginning of the answer.
    pub(super) prefilled: bool,
}

/// Reads `system` and `messages`. `strip`: leave out what clients add for another server.
pub(super) fn read(fields: &Fields, strip: bool) -> Result<Messages, ApiError> {
    let mut messages = Messages::default();
    for text in system::texts(fields, "system", strip)? {
        messages
            .list
            .push(json!({"role": "system", "content": text}));
    }
    fields.required("messages")?;
    let listed = fields.array("messages", MESSAGES_MAX)?.unwrap_or_default();
    for (index, message) in listed.iter().enumerate() {
        let message = Fields::of(message, format!("messages.[{index}]"))?;
        message.required("role")?;
        messages.prefilled = false;
        match message.string("role")?.unwrap_or_default() {
            "user" => user(&message, &mut messages.list)?,
            "assistant" => {
                let turn = assistant(&message)?;
                let said = turn["content"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty());
                messages.prefilled = said && turn.get("tool_calls").is_none();
                messages.list.push(turn);
            }
            "system" => {
                for text in system::texts(&message, "content", strip)? {
                    messages
                        .list
                        .push(json!({"role": "system", "content": text}));
                }
            }
            role => {
                let text = format!(
                    "Invalid value: '{}'. Supported roles are 'user', 'assistant' and 'system'.",
                    shorten(role)
                );
                return Err(ApiError::invalid(
                    "invalid_value",
                    message.path("role"),
                    text,
                ));
            }
        }
    }
    Ok(messages)
}

/// A block and its type.
fn blocks<'a>(holder: &Fields<'a>, name: &str) -> Result<Vec<(&'a str, Fields<'a>)>, ApiError> {
    let path = holder.path(name);
    let listed = match holder.get(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(_)) => holder.array(name, BLOCKS_MAX)?.unwrap_or_default(),
        Some(other) => return Err(wrong_type(&path, "a string or an array of blocks", other)),
    };
    listed
        .iter()
        .enumerate()
        .map(|(index, block)| {
            let block = Fields::of(block, format!("{path}.[{index}]"))?;
            block.required("type")?;
            Ok((block.string("type")?.unwrap_or_default(), block))
        })
        .collect()
}

fn unsupported(kind: &str, block: &Fields) -> ApiError {
    let code = match kind {
        "image" | "document" => "unsupported_value",
        _ => "invalid_value",
    };
    let kind = shorten(kind);
    let message = format!("Content blocks of type '{kind}' are not supported here; send text.");
    ApiError::invalid(code, block.path("type"), message)
}

fn text_of<'a>(block: &Fields<'a>, name: &str) -> Result<&'a str, ApiError> {
    block.required(name)?;
    Ok(block.string(name)?.unwrap_or_default())
}

/// The texts of blocks that are all text.
pub(super) fn text_parts(holder: &Fields, name: &str) -> Result<Vec<String>, ApiError> {
    blocks(holder, name)?
        .into_iter()
        .map(|(kind, block)| match kind {
            "text" => Ok(text_of(&block, "text")?.to_owned()),
            kind => Err(unsupported(kind, &block)),
        })
        .collect()
}

/// Results of tools belong to the calls before them, so they come before anything else is said.
fn user(message: &Fields, list: &mut Vec<Value>) -> Result<(), ApiError> {
    if let Some(Value::String(text)) = message.get("content") {
        list.push(json!({"role": "user", "content": text}));
        return Ok(());
    }
    message.required("content")?;
    let mut text = String::new();
    let (mut said, mut results) = (false, false);
    for (kind, block) in blocks(message, "content")? {
        match kind {
            "text" => {
                said = true;
                text.push_str(text_of(&block, "text")?);
            }
            "tool_result" => {
                results = true;
                list.push(tool_result(&block)?);
            }
            kind => return Err(unsupported(kind, &block)),
        }
    }
    if said || !results {
        list.push(json!({"role": "user", "content": text}));
    }
    Ok(())
}

fn tool_result(block: &Fields) -> Result<Value, ApiError> {
    let id = text_of(block, "tool_use_id")?;
    block.boolean("is_error")?;
    let text = match block.get("content") {
        Some(Value::String(text)) => text.clone(),
        _ => text_parts(block, "content")?.concat(),
    };
    Ok(json!({"role": "tool", "tool_call_id": id, "content": text}))
}

fn assistant(message: &Fields) -> Result<Value, ApiError> {
    message.required("content")?;
    let (mut text, mut thoughts) = (String::new(), Vec::new());
    let mut calls = Vec::new();
    if let Some(Value::String(whole)) = message.get("content") {
        text.push_str(whole);
    } else {
        for (kind, block) in blocks(message, "content")? {
            match kind {
                "text" => text.push_str(text_of(&block, "text")?),
                "thinking" => thoughts.push(text_of(&block, "thinking")?),
                "tool_use" => calls.push(tool_use(&block)?),
                // Only the server that wrote it could read it.
                "redacted_thinking" => {}
                kind => return Err(unsupported(kind, &block)),
            }
        }
    }
    let mut turn = Map::new();
    turn.insert("role".into(), "assistant".into());
    turn.insert("content".into(), text.into());
    thoughts.retain(|text| !text.is_empty());
    if !thoughts.is_empty() {
        turn.insert("reasoning_content".into(), thoughts.join("\n").into());
    }
    if !calls.is_empty() {
        turn.insert("tool_calls".into(), calls.into());
    }
    Ok(turn.into())
}

fn tool_use(block: &Fields) -> Result<Value, ApiError> {
    let (id, name) = (text_of(block, "id")?, text_of(block, "name")?);
    let input = match block.object("input")? {
        Some(input) => Value::Object(input.entries().clone()),
        None => json!({}),
    };
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(body: Value) -> Result<Messages, ApiError> {
        read(&Fields::root(body.as_object().unwrap()), true)
    }

    fn turns(list: Value) -> Value {
        messages(json!({"messages": list})).unwrap().list.into()
    }

    #[test]
    fn blocks_become_messages() {
        let text = |text: &str| json!({"type": "text", "text": text, "cache_control": null});
        let result = |id: &str, content: Value| json!({"type": "tool_result", "tool_use_id": id, "content": content});
        let tool = |id: &str, content: &str| json!({"role": "tool", "tool_call_id": id, "content": content});
        let user = |content: Value| json!({"role": "user", "content": content});
        let assistant = |content: Value| json!({"role": "assistant", "content": content});
        let call = json!({"id": "t1", "type": "function",
            "function": {"name": "f", "arguments": {"a": 1}}});
        let used = json!({"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}});
        let thought = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
        for (message, expected) in [
            (user(json!("hi")), json!([user(json!("hi"))])),
            (
                user(json!([text("a"), text("b")])),
                json!([user(json!("ab"))]),
            ),
            (user(json!([])), json!([user(json!(""))])),
            (
                user(json!([
                    text("and?"),
                    result("1", json!("x")),
                    result("2", json!([text("y"), text("z")]))
                ])),
                json!([tool("1", "x"), tool("2", "yz"), user(json!("and?"))]),
            ),
            (
                user(json!([result("1", json!(null))])),
                json!([tool("1", "")]),
            ),
            (
                assistant(json!("hi")),
                json!([{"role": "assistant", "content": "hi"}]),
            ),
            (
                assistant(
                    json!([thought, {"type": "redacted_thinking", "data": "?"}, text("a"),
                    used, text("b")]),
                ),
                json!([{"role": "assistant", "content": "ab", "reasoning_content": "hm",
                    "tool_calls": [call]}]),
            ),
            (
                json!({"role": "system", "content": "<total_tokens>1</total_tokens>\nB"}),
                json!([{"role": "system", "content": "B"}]),
            ),
        ] {
            assert_eq!(turns(json!([message])), expected, "{message}");
        }
    }

    #[test]
    fn system_text_is_in_front() {
        let body = json!({"system": [{"type": "text", "text": "A"}],
            "messages": [{"role": "user", "content": "hi"}]});
        let list = messages(body).unwrap().list;
        assert_eq!(list[0], json!({"role": "system", "content": "A"}));
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn a_last_answer_is_a_beginning() {
        let user = json!({"role": "user", "content": "hi"});
        for (last, prefilled) in [
            (json!({"role": "assistant", "content": "{"}), true),
            (json!({"role": "assistant", "content": ""}), false),
            (
                json!({"role": "assistant", "content": [{"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {}}]}),
                false,
            ),
            (user.clone(), false),
        ] {
            let body = json!({"messages": [user, last]});
            assert_eq!(messages(body).unwrap().prefilled, prefilled, "{last}");
        }
    }

    #[test]
    fn refusals_name_the_block() {
        for (message, code, param) in [
            (
                json!({"role": "user"}),
                "missing_required_parameter",
                "content",
            ),
            (
                json!({"role": "tool", "content": "a"}),
                "invalid_value",
                "role",
            ),
            (
                json!({"role": "user", "content": 1}),
                "invalid_type",
                "content",
            ),
            (
                json!({"role": "user", "content": [{"type": "image"}]}),
                "unsupported_value",
                "content.[0].type",
            ),
            (
                json!({"role": "user", "content": [{"type": "document"}]}),
                "unsupported_value",
                "content.[0].type",
            ),
            (
                json!({"role": "user", "content": [{"type": "thinking"}]}),
                "invalid_value",
                "content.[0].type",
            ),
            (
                json!({"role": "user", "content": [{"type": "text"}]}),
                "missing_required_parameter",
                "content.[0].text",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result"}]}),
                "missing_required_parameter",
                "content.[0].tool_use_id",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
                "content": [{"type": "image"}]}]}),
                "unsupported_value",
                "content.[0].content.[0].type",
            ),
            (
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f",
                "input": "x"}]}),
                "invalid_type",
                "content.[0].input",
            ),
        ] {
            let error = messages(json!({"messages": [message]})).unwrap_err();
            let param = format!("messages.[0].{param}");
            assert_eq!(
                (error.code, error.param),
                (Some(code), Some(param)),
                "{message}"
            );
        }
    }
}

//! Messages of a request in the form templates expect.

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use crate::body;
use crate::error::{ApiError, shorten};
use crate::fields::{Fields, wrong_type};

/// Messages of one request at most.
const MESSAGES_MAX: usize = 2_048;
/// Parts of one message, and tool calls of one message, at most.
const PARTS_MAX: usize = 2_048;

/// Reads `messages`: checks every part, gathers all system text in front, turns the arguments of
/// tool calls into objects. `lenient` lets a conversation without a user go on.
pub fn normalise(fields: &Fields, lenient: bool) -> Result<Vec<Value>, ApiError> {
    fields.required("messages")?;
    let listed = fields.array("messages", MESSAGES_MAX)?.unwrap_or_default();
    if listed.is_empty() {
        let message = "Invalid 'messages': expected at least one message.";
        return Err(ApiError::invalid("empty_array", "messages", message));
    }
    let mut system = Vec::new();
    let mut turns = Vec::new();
    for (index, message) in listed.iter().enumerate() {
        let message = Fields::of(message, format!("messages.[{index}]"))?;
        let path = message.path("role");
        message.required("role")?;
        match message.string("role")?.unwrap_or_default() {
            "system" | "developer" => system.push(text_of(&message, &["text"])?),
            "user" => {
                turns.push(json!({"role": "user", "content": text_of(&message, &["text"])?}));
            }
            "assistant" => turns.push(assistant(&message)?),
            "tool" => {
                message.required("tool_call_id")?;
                message.string("tool_call_id")?;
                turns.push(tool(&message, turns.is_empty())?);
            }
            "function" => turns.push(tool(&message, turns.is_empty())?),
            role => {
                let message = format!(
                    "Invalid value: '{}'. Supported roles are 'system', 'developer', 'user', \
                     'assistant' and 'tool'.",
                    shorten(role)
                );
                return Err(ApiError::invalid("invalid_value", path, message));
            }
        }
    }
    require_user(&mut turns, &system, lenient)?;
    if !system.is_empty() {
        turns.insert(0, json!({"role": "system", "content": system.join("\n\n")}));
    }
    Ok(turns)
}

/// The text of a message. Parts are joined without anything between them.
fn text_of(message: &Fields, kinds: &[&str]) -> Result<String, ApiError> {
    let path = message.path("content");
    let parts = match message.get("content") {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(_)) => message.array("content", PARTS_MAX)?.unwrap_or_default(),
        Some(other) => return Err(wrong_type(&path, "a string or an array of parts", other)),
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::of(part, format!("{path}.[{index}]"))?;
        part.required("type")?;
        let kind = part.string("type")?.unwrap_or_default();
        if !kinds.contains(&kind) {
            let known = ["image_url", "input_audio", "file", "video_url", "refusal"];
            let code = if known.contains(&kind) {
                "unsupported_value"
            } else {
                "invalid_value"
            };
            let message = format!(
                "Content parts of type '{}' are not supported here; send text.",
                shorten(kind)
            );
            return Err(ApiError::invalid(code, part.path("type"), message));
        }
        part.required(kind)?;
        text.push_str(part.string(kind)?.unwrap_or_default());
    }
    Ok(text)
}

fn tool(message: &Fields, first: bool) -> Result<Value, ApiError> {
    if first {
        let text = "A tool message must follow an assistant message.";
        return Err(ApiError::invalid(
            "invalid_messages",
            message.path("role"),
            text,
        ));
    }
    Ok(json!({"role": "tool", "content": text_of(message, &["text"])?}))
}

fn assistant(message: &Fields) -> Result<Value, ApiError> {
    let mut content = text_of(message, &["text", "refusal"])?;
    if content.is_empty() {
        content = message.string("refusal")?.unwrap_or_default().to_owned();
    }
    let mut turn = Map::new();
    turn.insert("role".into(), "assistant".into());
    turn.insert("content".into(), content.into());
    let reasoning = match message.string("reasoning_content")? {
        Some(text) => Some(text),
        None => message.string("reasoning")?,
    };
    if let Some(reasoning) = reasoning {
        turn.insert("reasoning_content".into(), reasoning.into());
    }
    let mut calls = Vec::new();
    for (index, call) in message
        .array("tool_calls", PARTS_MAX)?
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        let call = Fields::of(call, message.path(&format!("tool_calls.[{index}]")))?;
        call.required("function")?;
        if let Some(function) = call.object("function")? {
            calls.push(tool_call(&function)?);
        }
    }
    if let Some(function) = message.object("function_call")? {
        calls.push(tool_call(&function)?);
    }
    if !calls.is_empty() {
        turn.insert("tool_calls".into(), calls.into());
    }
    Ok(turn.into())
}

/// A call as the template reads it. One malformed call must not poison every later turn, so
/// arguments that are no JSON object are handed on as they are under a name of their own.
fn tool_call(function: &Fields) -> Result<Value, ApiError> {
    function.required("name")?;
    let name = function.string("name")?.unwrap_or_default();
    let arguments = match function.get("arguments") {
        None => json!({}),
        Some(Value::Object(arguments)) => Value::Object(arguments.clone()),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => {
            let parsed = body::is_wieldy(text).then(|| serde_json::from_str(text));
            match parsed {
                Some(Ok(Value::Object(arguments))) => Value::Object(arguments),
                _ => json!({"_raw_arguments": text}),
            }
        }
        Some(other) => {
            return Err(wrong_type(
                &function.path("arguments"),
                "a string of JSON",
                other,
            ));
        }
    };
    Ok(json!({"type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// A user message that is not just a tool's response must exist.
fn require_user(turns: &mut Vec<Value>, system: &[String], lenient: bool) -> Result<(), ApiError> {
    let is_query = |turn: &Value| {
        let text = turn["content"].as_str().unwrap_or_default().trim();
        let wrapped = text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
        turn["role"] == "user" && !wrapped
    };
    if turns.iter().any(is_query) {
        return Ok(());
    }
    if lenient && (!system.is_empty() || turns.iter().any(|turn| turn["role"] == "tool")) {
        turns.push(json!({"role": "user", "content": ""}));
        return Ok(());
    }
    let message = "At least one message with role 'user' is required.";
    Err(ApiError::invalid("invalid_messages", "messages", message))
}

//! The fields of bodies that become chat requests.

use serde_json::{Value, json};

use super::bodies::{BodyLimits, Fields, body};
use super::schema::{any_of, boolean, count, integer, list, number, object, one_of, text};
use crate::fields::Bounds;
use crate::translation::{EXTENSIONS, TOOLS_MAX};
use crate::{messages_api, responses};

fn unit() -> Value {
    number(Bounds::closed(0.0, 1.0))
}

fn text_or_list() -> Value {
    any_of(vec![
        text(),
        json!({"type": "array", "items": {"type": "object"}}),
    ])
}

fn tools() -> Value {
    list(json!({"type": "object"}), TOOLS_MAX)
}

/// Fields with no effect or the meaning that they have in chat requests.
fn others(ignored: &[&'static str]) -> Fields {
    let as_in_chat = |&name: &&'static str| (name, json!({"description": "As in a ChatRequest"}));
    let without = |&name: &&'static str| (name, json!({"description": "Without effect"}));
    let extensions = EXTENSIONS.iter().map(as_in_chat);
    extensions.chain(ignored.iter().map(without)).collect()
}

fn conversation() -> Fields {
    let kinds = ["enabled", "adaptive", "disabled"];
    let thinking = json!({
        "type": ["object", "null"],
        "required": ["type"],
        "properties": {"type": {"enum": kinds}, "budget_tokens": count(1_024)},
    });
    let mut fields = others(messages_api::IGNORED);
    fields.extend([
        ("model", text()),
        (
            "messages",
            json!({"type": "array", "minItems": 1, "items": {"type": "object"}}),
        ),
        ("system", text_or_list()),
        ("tools", tools()),
        ("tool_choice", object()),
        ("thinking", thinking),
    ]);
    fields
}

/// Body of `/v1/messages/count_tokens`.
pub(super) fn count_tokens(limits: &BodyLimits) -> Value {
    body(
        message_fields(limits),
        &["model", "messages"],
        limits.strict,
    )
}

/// Body of `/v1/messages`.
pub(super) fn message(limits: &BodyLimits) -> Value {
    let required = ["model", "messages", "max_tokens"];
    body(message_fields(limits), &required, limits.strict)
}

fn message_fields(limits: &BodyLimits) -> Fields {
    let vocabulary = i64::try_from(limits.vocabulary).unwrap_or(i64::MAX);
    let stop = json!({"type": "string", "minLength": 1, "maxLength": 1_024});
    let mut fields = conversation();
    fields.extend([
        ("max_tokens", count(1)),
        ("temperature", unit()),
        ("top_p", unit()),
        ("top_k", integer(-1, vocabulary)),
        ("stop_sequences", list(stop, limits.stops)),
        ("stream", boolean()),
        ("output_config", object()),
        ("output_format", object()),
    ]);
    fields
}

/// Body of `/v1/responses` and `/v1/responses/input_tokens`.
pub(super) fn response(limits: &BodyLimits) -> Value {
    let unsupported = || json!({"type": "null", "description": "Not supported"});
    let mut fields = others(responses::IGNORED);
    fields.extend([
        ("model", text()),
        ("input", text_or_list()),
        ("instructions", text()),
        ("tools", tools()),
        ("tool_choice", any_of(vec![text(), object()])),
        ("parallel_tool_calls", boolean()),
        ("max_output_tokens", count(1)),
        ("temperature", number(Bounds::closed(0.0, 2.0))),
        ("top_p", unit()),
        ("top_logprobs", integer(0, 20)),
        ("reasoning", object()),
        ("text", object()),
        ("stream", boolean()),
        ("metadata", object()),
        ("truncation", one_of(&["disabled"])),
        ("previous_response_id", unsupported()),
        ("conversation", unsupported()),
        ("prompt", unsupported()),
        ("stop", any_of(vec![text(), list(text(), limits.stops)])),
        ("reasoning_effort", text()),
        ("include_reasoning", boolean()),
        ("background", boolean()),
    ]);
    body(fields, &["model", "input"], limits.strict)
}

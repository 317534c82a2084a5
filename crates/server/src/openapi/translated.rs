//! The fields of bodies that become chat requests.

use serde_json::{Value, json};

use super::bodies::{BodyLimits, Fields, body};
use super::schema::{any_of, boolean, count, integer, list, number, object, one_of, text};
use crate::fields::Bounds;
use crate::translation::TOOLS_MAX;

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

fn conversation() -> Fields {
    let kinds = ["enabled", "adaptive", "disabled"];
    let thinking = json!({
        "type": ["object", "null"],
        "required": ["type"],
        "properties": {"type": {"enum": kinds}, "budget_tokens": count(1_024)},
    });
    vec![
        ("model", text()),
        (
            "messages",
            json!({"type": "array", "minItems": 1, "items": {"type": "object"}}),
        ),
        ("system", text_or_list()),
        ("tools", tools()),
        ("tool_choice", object()),
        ("thinking", thinking),
    ]
}

/// Body of `/v1/messages/count_tokens`.
pub(super) fn count_tokens(limits: &BodyLimits) -> Value {
    body(conversation(), &["model", "messages"], limits.strict)
}

/// Body of `/v1/messages`.
pub(super) fn message(limits: &BodyLimits) -> Value {
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
        ("metadata", json!({"description": "Without effect"})),
    ]);
    body(fields, &["model", "messages", "max_tokens"], limits.strict)
}

/// Body of `/v1/responses` and `/v1/responses/input_tokens`.
pub(super) fn response(limits: &BodyLimits) -> Value {
    let unsupported = || json!({"type": "null", "description": "Not supported"});
    let fields = vec![
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
        ("store", json!({"description": "Without effect"})),
    ];
    body(fields, &["model", "input"], limits.strict)
}

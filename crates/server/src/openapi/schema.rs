//! Small pieces of JSON Schema. Every field may be null, which counts as absent.

use serde_json::{Value, json};

use crate::fields::Bounds;

/// A schema of the document.
pub(crate) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// A truth value.
pub(super) fn boolean() -> Value {
    json!({"type": ["boolean", "null"]})
}

/// A string.
pub(super) fn text() -> Value {
    json!({"type": ["string", "null"]})
}

/// A string of at most so many characters.
pub(super) fn short_text(length_max: usize) -> Value {
    json!({"type": ["string", "null"], "maxLength": length_max})
}

/// An integer, `256.0` included.
pub(super) fn integer(low: i64, high: i64) -> Value {
    json!({"type": ["integer", "null"], "minimum": low, "maximum": high})
}

/// An integer of at least `low`.
pub(super) fn count(low: i64) -> Value {
    integer(low, i64::MAX)
}

/// A number.
pub(super) fn number(bounds: Bounds) -> Value {
    let low = match bounds.low_open {
        true => "exclusiveMinimum",
        false => "minimum",
    };
    json!({"type": ["number", "null"], low: bounds.low, "maximum": bounds.high})
}

/// One of these strings.
pub(super) fn one_of(names: &[&str]) -> Value {
    let mut values: Vec<Value> = names.iter().map(|&name| name.into()).collect();
    values.push(Value::Null);
    json!({"enum": values})
}

/// A list.
pub(super) fn list(items: Value, length_max: usize) -> Value {
    json!({"type": ["array", "null"], "items": items, "maxItems": length_max})
}

/// An object of any kind.
pub(super) fn object() -> Value {
    json!({"type": ["object", "null"]})
}

/// Any of these forms.
pub(super) fn any_of(forms: Vec<Value>) -> Value {
    json!({"anyOf": forms})
}

/// A token id.
pub(super) fn token_id(vocabulary: usize) -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": vocabulary.saturating_sub(1)})
}

/// With a word about it.
pub(super) fn described(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

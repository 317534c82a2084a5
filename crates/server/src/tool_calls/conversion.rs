//! The text of an argument as the JSON value that the tool's schema asks for.

use serde_json::{Number, Value};

use super::python_literal;
use super::spaced_json;
use super::tool_set::Types;

/// JSON of `text`. Whatever the model wrote, this is valid; what fits no type stays a string.
pub(super) fn convert(text: &str, types: &Types) -> String {
    let trimmed = text.trim();
    if types.null && ["null", "None"].contains(&trimmed) {
        return "null".to_owned();
    }
    if types.boolean
        && let Some(value) = boolean(trimmed, !(types.integer || types.number))
    {
        return value.to_owned();
    }
    if types.integer
        && let Some(number) = integer(trimmed)
    {
        return number;
    }
    if types.number && serde_json::from_str::<Number>(trimmed).is_ok() {
        return trimmed.to_owned();
    }
    if (types.object || types.array)
        && let Some(value) = structure(trimmed)
    {
        // A scalar is what another type of the list means.
        let single = !types.string;
        if single || value.is_object() || value.is_array() {
            return spaced_json::text(&value);
        }
    }
    let known = |choice: &str| types.choices.iter().any(|known| known == choice);
    let value = if !known(text) && known(trimmed) {
        trimmed
    } else {
        text
    };
    Value::from(value).to_string()
}

fn boolean(text: &str, digits: bool) -> Option<&'static str> {
    if text.eq_ignore_ascii_case("true") || digits && text == "1" {
        Some("true")
    } else if text.eq_ignore_ascii_case("false") || digits && text == "0" {
        Some("false")
    } else {
        None
    }
}

/// Digits with an optional sign, or such a number with zeros behind a point.
fn integer(text: &str) -> Option<String> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", whole),
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(digits) || !is_number(fraction) || fraction.bytes().any(|b| b != b'0') {
        return None;
    }
    // JSON has no leading zeros.
    let digits = match digits.trim_start_matches('0') {
        "" => "0",
        digits => digits,
    };
    let number = format!("{sign}{digits}");
    // Beyond the range of a double readers disagree about what it is.
    serde_json::from_str::<Number>(&number).ok().map(|_| number)
}

/// JSON, also JSON that was quoted once more, or a Python literal.
fn structure(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(Value::String(inner)) => match serde_json::from_str(&inner) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => Some(value),
            _ => Some(Value::String(inner)),
        },
        Ok(value) => Some(value),
        Err(_) => python_literal::parse(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: Value, cases: &[(&str, &str)]) {
        let types = Types::of(&json!({"properties": {"a": schema}}), "a");
        for (text, expected) in cases {
            let json = convert(text, &types);
            assert_eq!(json, *expected, "{text:?} as {schema}");
            let read: Result<Value, _> = serde_json::from_str(&json);
            assert!(read.is_ok(), "{json}");
        }
    }

    #[test]
    fn scalars() {
        check(
            json!({"type": "integer"}),
            &[
                ("3", "3"),
                (" -3\n", "-3"),
                ("5.0", "5"),
                ("007", "7"),
                ("-0", "-0"),
                ("5.5", "\"5.5\""),
                ("5.", "\"5.\""),
                ("\"3\"", "\"\\\"3\\\"\""),
                ("three", "\"three\""),
                ("", "\"\""),
                ("12345678901234567890123", "12345678901234567890123"),
            ],
        );
        let huge = "9".repeat(400);
        check(
            json!({"type": "integer"}),
            &[(&huge, &format!("\"{huge}\""))],
        );
        check(
            json!({"type": "number"}),
            &[
                ("3", "3"),
                ("3.10", "3.10"),
                ("1e5", "1e5"),
                ("NaN", "\"NaN\""),
                ("1e999", "\"1e999\""),
                (".5", "\".5\""),
            ],
        );
        check(
            json!({"type": "boolean"}),
            &[
                ("True", "true"),
                ("FALSE", "false"),
                ("1", "true"),
                ("0", "false"),
                ("yes", "\"yes\""),
            ],
        );
        check(
            json!({"type": "string"}),
            &[("null", "\"null\""), (" a ", "\" a \""), ("5", "\"5\"")],
        );
        check(
            json!({"type": "string", "enum": ["a", " b"]}),
            &[
                ("a", "\"a\""),
                (" a\n", "\"a\""),
                (" b", "\" b\""),
                (" c ", "\" c \""),
            ],
        );
    }

    #[test]
    fn structures() {
        check(
            json!({"type": "array"}),
            &[
                ("['a', 'b']", r#"["a", "b"]"#),
                ("[1,2]", "[1, 2]"),
                (r#""[1, {\"b\": 2}]""#, r#"[1, {"b": 2}]"#),
                ("[1, 2", "\"[1, 2\""),
                ("(True, None)", "[true, null]"),
            ],
        );
        check(
            json!({"type": "object"}),
            &[
                (r#"{"b": 1.0, "a": "\u00e9"}"#, "{\"b\": 1.0, \"a\": \"é\"}"),
                (
                    "{'x': [1, 'y'], \"z\": False}",
                    r#"{"x": [1, "y"], "z": false}"#,
                ),
                ("{'x': }", "\"{'x': }\""),
            ],
        );
    }

    #[test]
    fn several_types_are_tried_in_order() {
        check(
            json!({"type": ["string", "null"]}),
            &[("null", "null"), ("None", "null"), ("nil", "\"nil\"")],
        );
        check(
            json!({"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "string"}]}),
            &[("1", "1"), ("true", "true"), ("1.5", "\"1.5\"")],
        );
        check(
            json!({"type": ["array", "string"]}),
            &[("[1]", "[1]"), ("5", "\"5\""), ("\"x\"", "\"\\\"x\\\"\"")],
        );
    }
}

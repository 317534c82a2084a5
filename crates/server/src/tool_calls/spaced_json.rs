//! JSON in the layout that chat templates and Python use: `{"a": 1, "b": [1, 2]}`.

use std::io::{self, Write};

use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

struct Spaced;

fn separate<W: ?Sized + Write>(writer: &mut W, first: bool) -> io::Result<()> {
    match first {
        true => Ok(()),
        false => writer.write_all(b", "),
    }
}

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        separate(writer, first)
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        separate(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// A value as text.
pub(super) fn text(value: &Value) -> String {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, Spaced);
    serde::Serialize::serialize(value, &mut serializer).expect("a value in memory is written");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

/// Appends what stands between the quotes of a JSON string.
pub(super) fn escape(text: &str, out: &mut String) {
    let quoted = Value::from(text).to_string();
    out.push_str(&quoted[1..quoted.len() - 1]);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn layout_has_spaces_and_keeps_order() {
        let value = json!({"b": [1, 2.0, {}], "a": {"é\n": null, "c": []}});
        assert_eq!(
            text(&value),
            r#"{"b": [1, 2.0, {}], "a": {"é\n": null, "c": []}}"#
        );
    }

    #[test]
    fn escapes_are_complete() {
        let mut out = String::new();
        escape("a\"\\\t\0\u{2028}🦀", &mut out);
        assert_eq!(out, "a\\\"\\\\\\t\\u0000\u{2028}🦀");
    }
}

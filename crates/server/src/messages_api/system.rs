//! System text of a client, without what it writes there for its own server.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::messages_api::content::text_parts;

/// A line with a hash that differs from request to request.
const BILLING: &str = "x-anthropic-billing-header";
const BUDGET_START: &str = "<total_tokens>";
const BUDGET_END: &str = "</total_tokens>";

/// System texts in order, none of them empty.
pub(super) fn texts(holder: &Fields, name: &str, strip: bool) -> Result<Vec<String>, ApiError> {
    let texts = match holder.get(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(_) => text_parts(holder, name)?,
    };
    let shown = texts.into_iter().map(|text| match strip {
        true => without_markers(&text),
        false => text,
    });
    Ok(shown.filter(|text| !text.is_empty()).collect())
}

/// Leaves out lines that would make the beginning of every prompt a new one, and with it useless
/// for the next.
fn without_markers(text: &str) -> String {
    let rest = match text.starts_with(BILLING) {
        true => text.split_once('\n').map_or("", |(_, rest)| rest),
        false => text,
    };
    let is_budget = |line: &str| {
        let line = line.trim();
        line.starts_with(BUDGET_START) && line.ends_with(BUDGET_END)
    };
    let mut kept = String::with_capacity(rest.len());
    let mut dropped_last = false;
    for line in rest.split_inclusive('\n') {
        dropped_last = is_budget(line);
        if !dropped_last {
            kept.push_str(line);
        }
    }
    // The line break in front of a last line goes with it.
    if dropped_last && kept.ends_with('\n') {
        kept.pop();
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn markers_are_left_out_line_by_line() {
        for (text, expected) in [
            ("Be brief.", "Be brief."),
            ("x-anthropic-billing-header: cc_version=1; cch=9f", ""),
            ("x-anthropic-billing-header: a\nBe brief.", "Be brief."),
            (
                "Say x-anthropic-billing-header: a",
                "Say x-anthropic-billing-header: a",
            ),
            (
                "Be brief.\n<total_tokens>9000 left</total_tokens>",
                "Be brief.",
            ),
            ("<total_tokens>9</total_tokens>\nBe brief.\n", "Be brief.\n"),
            ("A\n <total_tokens>9</total_tokens> \nB", "A\nB"),
            (
                "The tag <total_tokens> is ours.",
                "The tag <total_tokens> is ours.",
            ),
            (
                "x-anthropic-billing-header: a\n<total_tokens>9</total_tokens>",
                "",
            ),
            ("A\n\n", "A\n\n"),
        ] {
            assert_eq!(without_markers(text), expected, "{text:?}");
        }
    }

    #[test]
    fn texts_come_as_one_string_or_in_blocks() {
        let read = |system: Value, strip| {
            let body = json!({"system": system});
            texts(&Fields::root(body.as_object().unwrap()), "system", strip)
        };
        let blocks = json!([
            {"type": "text", "text": "x-anthropic-billing-header: a"},
            {"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "B"},
        ]);
        assert_eq!(read(blocks.clone(), true).unwrap(), ["A", "B"]);
        assert_eq!(read(blocks, false).unwrap().len(), 3);
        assert_eq!(read(json!("A"), true).unwrap(), ["A"]);
        assert!(read(json!(null), true).unwrap().is_empty());
        assert!(read(json!(""), false).unwrap().is_empty());
        for wrong in [
            json!(1),
            json!([1]),
            json!([{"type": "image"}]),
            json!([{"type": "text"}]),
        ] {
            assert!(read(wrong.clone(), true).is_err(), "{wrong}");
        }
    }
}

//! Streams whose events have names.

#![allow(clippy::unwrap_used)]

use serde_json::Value;

/// The events in order: each is a line with its name and one with data that repeats it. Signs of
/// life are left out.
pub fn named_events(text: &str) -> Vec<Value> {
    let mut parts: Vec<_> = text.split("\n\n").collect();
    assert_eq!(parts.pop(), Some(""), "{text}");
    let event = |part: &str| {
        let (name, data) = part.split_once('\n').unwrap_or_else(|| panic!("{part:?}"));
        let name = name.strip_prefix("event: ").unwrap();
        let data = data.strip_prefix("data: ").unwrap();
        assert!(!data.contains('\n'), "{data:?}");
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    let all = parts.into_iter().filter(|part| *part != ": keep-alive");
    all.map(event)
        .filter(|event| event["type"] != "ping")
        .collect()
}

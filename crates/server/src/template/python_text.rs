//! String methods and filters with Python's idea of white space.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, State};

/// White space of Python's `str.strip`: Unicode white space and the four information separators.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// The filter `trim`, with an optional set of characters.
pub(super) fn trim(value: Value, characters: Option<String>) -> Value {
    if value.is_undefined() {
        return Value::from("");
    }
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    let trimmed = match characters {
        None => text.trim_matches(is_space),
        Some(set) => text.trim_matches(|c| set.contains(c)),
    };
    Value::from(trimmed)
}

/// Methods of strings, lists and maps: Python's, with its white space where it matters.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let (ValueKind::String, Some(text)) = (value.kind(), value.as_str())
        && arguments.iter().all(Value::is_none)
    {
        match name {
            "strip" => return Ok(Value::from(text.trim_matches(is_space))),
            "lstrip" => return Ok(Value::from(text.trim_start_matches(is_space))),
            "rstrip" => return Ok(Value::from(text.trim_end_matches(is_space))),
            "split" => {
                let words = text.split(is_space).filter(|word| !word.is_empty());
                return Ok(words.map(Value::from).collect());
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

//! The filter `tojson`: Python's `json.dumps`, by default without ASCII escapes.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// How to lay out the text.
struct Layout {
    ascii: bool,
    /// Unit of indentation; `None` = one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `tojson(indent=None, ensure_ascii=False, separators=None, sort_keys=False)`.
pub(super) fn to_json(value: &Value, arguments: Kwargs) -> Result<Value, Error> {
    let indent = match arguments.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(unit) => unit.to_owned(),
            None => " ".repeat(usize::try_from(value)?),
        }),
    };
    let separators = arguments.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            let reason = "tojson: separators needs two strings";
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let layout = Layout {
        ascii: arguments
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    arguments.assert_all_used()?;
    let mut text = String::new();
    layout.value(value, 0, &mut text)?;
    Ok(Value::from_safe_string(text))
}

impl Layout {
    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&python_float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<_> = value.try_iter()?.collect();
                self.block(('[', ']'), &items, depth, out, |item, out| {
                    self.value(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys = Vec::new();
                for key in value.try_iter()? {
                    keys.push((key_text(&key)?, key));
                }
                if self.sort_keys {
                    keys.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.block(('{', '}'), &keys, depth, out, |(text, key), out| {
                    self.string(text, out);
                    out.push_str(&self.key_separator);
                    self.value(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            kind => {
                let reason = format!("tojson: a value of type {kind} has no JSON form");
                return Err(Error::new(ErrorKind::BadSerialization, reason));
            }
        }
        Ok(())
    }

    fn block<T>(
        &self,
        (open, close): (char, char),
        items: &[T],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.new_line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            self.new_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(unit) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(unit));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => escape(character, out),
                '\u{7f}'.. if self.ascii && character > '\u{7f}' => escape(character, out),
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

/// `\uXXXX`, as a surrogate pair above U+FFFF.
fn escape(character: char, out: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        write!(out, "\\u{unit:04x}").expect("writing to a string succeeds");
    }
}

/// Keys of JSON objects are strings; Python turns its other keys into them like this.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        ValueKind::Number if !key.is_integer() => python_float(f64::try_from(key.clone())?),
        _ => key.to_string(),
    })
}

/// `repr` of a Python float: the shortest digits that read back, with an exponent of two digits at
/// least below 1e-4 and from 1e16 on.
fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific
        .split_once('e')
        .expect("the format writes an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a small integer");
    if number == 0.0 || (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') {
            plain
        } else {
            format!("{plain}.0")
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_python_does() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e100, "1e+100"),
            (-2.5e-300, "-2.5e-300"),
        ];
        for (number, expected) in cases {
            assert_eq!(python_float(number), expected);
        }
    }
}

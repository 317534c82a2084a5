//! Python literals, which models write where JSON was meant: `{'a': [True, None]}`.

use serde_json::{Map, Number, Value};

/// Nesting at most, as in the JSON parser.
const DEPTH_MAX: usize = 120;

/// The value of a literal of None, truth values, numbers, strings, lists, tuples and dictionaries
/// with keys that are strings; `None` for anything else.
pub(super) fn parse(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text };
    let value = reader.value(0)?;
    reader.blank();
    reader.rest.is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn blank(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, mark: char) -> bool {
        self.blank();
        match self.rest.strip_prefix(mark) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.blank();
        match self.rest.chars().next()? {
            '[' => self.list('[', ']', depth).map(Value::Array),
            '(' => self.list('(', ')', depth).map(Value::Array),
            '{' => self.dictionary(depth),
            '"' | '\'' => self.string().map(Value::String),
            _ => self.word(),
        }
    }

    fn list(&mut self, open: char, close: char, depth: usize) -> Option<Vec<Value>> {
        self.take(open);
        let mut items = Vec::new();
        while !self.take(close) {
            items.push(self.value(depth + 1)?);
            if !self.take(',') {
                return self.take(close).then_some(items);
            }
        }
        Some(items)
    }

    fn dictionary(&mut self, depth: usize) -> Option<Value> {
        self.take('{');
        let mut map = Map::new();
        while !self.take('}') {
            let Value::String(key) = self.value(depth + 1)? else {
                return None;
            };
            if !self.take(':') {
                return None;
            }
            let value = self.value(depth + 1)?;
            map.insert(key, value);
            if !self.take(',') {
                return self.take('}').then_some(map.into());
            }
        }
        Some(map.into())
    }

    fn string(&mut self) -> Option<String> {
        let mut characters = self.rest.chars();
        let quote = characters.next()?;
        let mut text = String::new();
        loop {
            match characters.next()? {
                '\\' => match characters.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    '\n' => {}
                    'x' => text.push(code(&mut characters, 2)?),
                    'u' => text.push(code(&mut characters, 4)?),
                    'U' => text.push(code(&mut characters, 8)?),
                    plain @ ('\\' | '\'' | '"') => text.push(plain),
                    // Python keeps a backslash that escapes nothing.
                    other => text.extend(['\\', other]),
                },
                end if end == quote => break,
                plain => text.push(plain),
            }
        }
        self.rest = characters.as_str();
        Some(text)
    }

    fn word(&mut self) -> Option<Value> {
        let end = self
            .rest
            .find(|c: char| c.is_whitespace() || ",:]})".contains(c));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        let value = match word {
            "None" | "null" => Value::Null,
            "True" | "true" => true.into(),
            "False" | "false" => false.into(),
            number => Value::Number(serde_json::from_str::<Number>(number).ok()?),
        };
        self.rest = rest;
        Some(value)
    }
}

/// The character of so many hexadecimal digits.
fn code(characters: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let mut value = 0;
    for _ in 0..digits {
        value = 16 * value + characters.next()?.to_digit(16)?;
    }
    char::from_u32(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn literals() {
        for (text, expected) in [
            (
                "{'a': [True, None, -1.5], }",
                json!({"a": [true, null, -1.5]}),
            ),
            ("('x', \"y\",)", json!(["x", "y"])),
            (r"'it\'s \x41\u00e9\n\q'", json!("it's Aé\n\\q")),
            ("{}", json!({})),
            ("[ ]", json!([])),
            ("[[1], {'b': {'c': 2}}]", json!([[1], {"b": {"c": 2}}])),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_literals() {
        for text in [
            "", "[", "[1", "[1 2]", "{1: 2}", "{'a'}", "{'a': }", "'a", "f()", "[1] x", "[,]",
            r"'\xzz'", "nan", "'\\",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&"[".repeat(100_000)), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in r#"[\[\](){}'"\\,: a1xuUTrue\né.-]{0,24}"#) {
            let _ = parse(&text);
        }
    }
}

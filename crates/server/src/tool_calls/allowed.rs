//! Openings of calls whose names are restricted.

use super::tags::{CALL_OPEN, FUNCTION_OPEN, Found, begins};
use crate::text_stream::Ahead;
use crate::text_stream::marks::blank;

/// Behind the outer mark, where `<` may as well be that of the closing one, this is a function's.
const FUNCTION_BEGUN: &[u8] = b"<f";

/// The only names that calls may have.
#[derive(Debug)]
pub(crate) struct AllowedNames {
    /// In the mark of a function, whole.
    marks: Vec<Vec<u8>>,
}

/// What bytes that begin with `<` are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head<'a> {
    /// No opening of a call.
    Text,
    /// More bytes will tell.
    Maybe,
    /// The mark of a function, or so much of it that nothing else is meant, and what is behind it.
    Function(&'a [u8]),
    /// An opening that no allowed name can follow.
    Refused,
}

impl AllowedNames {
    /// Names without any of `>`, `<` and line breaks.
    pub(crate) fn new(names: &[String]) -> Self {
        let mark = |name: &String| format!("<function={name}>").into_bytes();
        AllowedNames {
            marks: names.iter().map(mark).collect(),
        }
    }

    /// What must follow where the mark of a function is being spelled: one of these texts, then
    /// anything. `None` where none is.
    pub(crate) fn rests(&self, ahead: &Ahead<'_>) -> Option<Vec<&[u8]>> {
        let Head::Function(part) = self.head(ahead.held, ahead.content, ahead.line_start) else {
            return None;
        };
        let rests = self.marks.iter().filter_map(|mark| mark.strip_prefix(part));
        Some(rests.collect())
    }

    /// Whether a token of these bytes would open a call of another name.
    pub(crate) fn refuses(&self, ahead: &Ahead<'_>, token: &[u8]) -> bool {
        let text = [ahead.held, token].concat();
        for start in (0..text.len()).filter(|&at| text[at] == b'<') {
            let line_start = match start {
                0 => ahead.line_start,
                _ => text[start - 1] == b'\n',
            };
            match self.head(&text[start..], ahead.content, line_start) {
                Head::Text => {}
                Head::Maybe => return false,
                Head::Refused => return true,
                Head::Function(part) => {
                    let fits = |mark: &Vec<u8>| mark.starts_with(part) || part.starts_with(mark);
                    return !self.marks.iter().any(fits);
                }
            }
        }
        false
    }

    /// Whether the outer mark of a call is there.
    pub(crate) fn is_behind_mark(ahead: &Ahead<'_>) -> bool {
        ahead.held.starts_with(CALL_OPEN)
    }

    /// Whether no name is allowed at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    fn head<'a>(&self, bytes: &'a [u8], content: bool, line_start: bool) -> Head<'a> {
        match begins(bytes, CALL_OPEN) {
            Found::Open => return Head::Maybe,
            Found::Yes if self.is_empty() => return Head::Refused,
            Found::Yes => {
                let rest = &bytes[CALL_OPEN.len()..];
                let rest = &rest[blank(rest)..];
                // A model that may not go on to the name it wants must not leave the mark, either:
                // names can begin in the token of the `=`.
                if rest.starts_with(FUNCTION_BEGUN) {
                    return Head::Function(rest);
                }
                return match begins(rest, FUNCTION_OPEN) {
                    Found::Yes | Found::Open => Head::Maybe,
                    // The name inside an object is not followed byte by byte.
                    Found::No if content && rest[0] == b'{' => Head::Refused,
                    Found::No => Head::Text,
                };
            }
            Found::No => {}
        }
        match begins(bytes, FUNCTION_OPEN) {
            Found::Yes if content && line_start => Head::Function(bytes),
            Found::Open if content && line_start => Head::Maybe,
            _ => Head::Text,
        }
    }
}

/// Whether a token of these bytes may be one that [`AllowedNames::refuses`], where at most a part of
/// the outer mark is there. It then has the first byte that decides: one behind the mark of a
/// function, that mark's last one or the outer mark's where no name is allowed, or what comes behind
/// the outer mark.
pub(crate) fn may_decide(token: &[u8]) -> bool {
    let spells = |text: &[u8], mark: &[u8]| mark.ends_with(text) || text.ends_with(mark);
    token.iter().enumerate().any(|(at, byte)| match byte {
        b'=' => spells(&token[..=at], FUNCTION_OPEN),
        b'>' => spells(&token[..=at], CALL_OPEN),
        _ => false,
    })
}

/// The same behind the outer mark.
pub(crate) fn may_decide_behind_mark(token: &[u8]) -> bool {
    let rest = &token[blank(token)..];
    let rest = rest.strip_prefix(b"<").unwrap_or(rest);
    rest.starts_with(b"f") || rest.starts_with(b"{") || may_decide(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(held: &str, content: bool, line_start: bool) -> Ahead<'_> {
        Ahead {
            held: held.as_bytes(),
            content,
            line_start,
        }
    }

    #[test]
    fn tokens_that_open_other_calls_are_refused() {
        let names = AllowedNames::new(&["get".to_owned(), "get_all".to_owned()]);
        let none = AllowedNames::new(&[]);
        // What is held, the token, whether it is refused in the answer and in the reasoning.
        for (held, token, content, reasoning) in [
            ("", "<tool_call>", false, false),
            ("", "text <b> = {", false, false),
            ("<tool_call>\n<function", "=", false, false),
            ("<tool_call>\n<function", "=g", false, false),
            ("<tool_call>\n<function", "=x", true, true),
            ("<tool_call>\n<function", "=\"", true, true),
            ("<tool_call>\n<function", " =x", true, true),
            ("<tool_call>\n<function", "<tool_call>", true, true),
            ("<tool_call>\n<fun", "c", false, false),
            ("<tool_call>\n<", "form", true, true),
            ("<tool_call>\n", "<form", true, true),
            ("<tool_call", ">\n<form", true, true),
            ("<tool_call", ">{", true, false),
            ("<tool_call>\n", "</tool_call>", false, false),
            ("<", "form", false, false),
            ("<tool_call>", " <function=get>\n", false, false),
            ("<tool_call>", " <function=got", true, true),
            ("<tool_call>\n<function=g", "et", false, false),
            ("<tool_call>\n<function=get", ">\n<", false, false),
            ("<tool_call>\n<function=get", "\n", true, true),
            ("<tool_call>\n<function=get", "_", false, false),
            ("<tool_call>\n<function=get", "_b", true, true),
            ("<tool_call>\n<function=get_all", "s>", true, true),
            ("<tool_call>\n", "{", true, false),
            ("<tool_call>", " {\"name", true, false),
            ("<tool_call>", "[{", false, false),
            ("", "\n<function=x", true, false),
            ("", "a<function=x", false, false),
            ("<fun", "ction=x", true, false),
            ("<fun", "ction=get", false, false),
            ("<tool", "s>", false, false),
            ("<tool", "<tool_call>\n<function=x", true, true),
        ] {
            let token = token.as_bytes();
            let refused = |content| names.refuses(&ahead(held, content, true), token);
            assert_eq!(refused(true), content, "{held:?} {token:?}");
            assert_eq!(refused(false), reasoning, "{held:?} {token:?}");
            let own = ahead(held, true, true);
            let listed = match AllowedNames::is_behind_mark(&own) {
                true => may_decide_behind_mark(token),
                false => may_decide(token),
            };
            assert!(
                !content || listed || names.rests(&own).is_some(),
                "{held:?} {token:?}"
            );
        }
        for (held, token) in [
            ("", "<tool_call>"),
            ("<tool_call", ">x"),
            ("<", "function="),
        ] {
            let token = token.as_bytes();
            assert!(none.refuses(&ahead(held, true, true), token) && may_decide(token));
        }
        assert!(
            !names.refuses(&ahead("<fun", true, false), b"ction=x"),
            "no line"
        );
    }

    #[test]
    fn rests_of_names() {
        let names = AllowedNames::new(&["get".to_owned(), "get_all".to_owned()]);
        let rests = |held| {
            let rests = names.rests(&ahead(held, true, true))?;
            let text = |rest: &&[u8]| String::from_utf8_lossy(rest).into_owned();
            Some(rests.iter().map(text).collect::<Vec<_>>())
        };
        assert_eq!(rests("<tool_call>\n<"), None);
        assert_eq!(rests("<tool_call>x<function="), None);
        assert_eq!(rests("<function"), None);
        let whole = vec!["unction=get>".to_owned(), "unction=get_all>".to_owned()];
        assert_eq!(rests("<tool_call>\n<f"), Some(whole));
        let both = vec!["get>".to_owned(), "get_all>".to_owned()];
        assert_eq!(rests("<tool_call>\n<function="), Some(both.clone()));
        assert_eq!(rests("<function="), Some(both));
        let rest = vec![">".to_owned(), "_all>".to_owned()];
        assert_eq!(rests("<tool_call><function=get"), Some(rest));
        assert_eq!(rests("<function=get_a"), Some(vec!["ll>".to_owned()]));
    }
}

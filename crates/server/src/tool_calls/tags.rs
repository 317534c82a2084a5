//! The marks of a call.

pub(super) const CALL_OPEN: &[u8] = b"<tool_call>";
pub(super) const CALL_CLOSE: &[u8] = b"</tool_call>";
pub(super) const FUNCTION_OPEN: &[u8] = b"<function=";
pub(super) const FUNCTION_CLOSE: &[u8] = b"</function>";
pub(super) const PARAMETER_OPEN: &[u8] = b"<parameter=";
pub(super) const PARAMETER_CLOSE: &[u8] = b"</parameter>";

/// Whether bytes begin with something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Yes,
    No,
    /// More bytes will tell.
    Open,
}

/// Whether `bytes` begin with `tag`.
pub(super) fn begins(bytes: &[u8], tag: &[u8]) -> Found {
    if bytes.starts_with(tag) {
        Found::Yes
    } else if tag.starts_with(bytes) {
        Found::Open
    } else {
        Found::No
    }
}

/// The tag that `bytes` begin with; `Err(Found::Open)` when they may yet become one.
pub(super) fn tag_of<'a>(bytes: &[u8], tags: &[&'a [u8]]) -> Result<&'a [u8], Found> {
    let mut otherwise = Found::No;
    for tag in tags {
        match begins(bytes, tag) {
            Found::Yes => return Ok(tag),
            Found::Open => otherwise = Found::Open,
            Found::No => {}
        }
    }
    Err(otherwise)
}

/// A name that ends with `>`, and the number of bytes up to and with it; `None` until the end is
/// there. A line break or the next mark ends a name whose `>` was forgotten; neither is taken.
pub(super) fn name(bytes: &[u8]) -> Option<(String, usize)> {
    let at = bytes.iter().position(|byte| b">\n<".contains(byte))?;
    let text = String::from_utf8_lossy(&bytes[..at]);
    let mut name = text.trim();
    for quote in ['"', '\''] {
        let inner = name.strip_prefix(quote).and_then(|n| n.strip_suffix(quote));
        if let Some(inner) = inner {
            name = inner;
            break;
        }
    }
    Some((name.to_owned(), at + usize::from(bytes[at] == b'>')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tolerate_quotes_and_forgotten_ends() {
        let read = |text: &str| name(text.as_bytes());
        assert_eq!(read("f>x"), Some(("f".into(), 2)));
        assert_eq!(read(" 'f' >x"), Some(("f".into(), 6)));
        assert_eq!(read("\"f\">"), Some(("f".into(), 4)));
        assert_eq!(read("\"f>"), Some(("\"f".into(), 3)));
        assert_eq!(read("'>"), Some(("'".into(), 2)));
        assert_eq!(read("f\n>"), Some(("f".into(), 1)));
        assert_eq!(read("f</function>"), Some(("f".into(), 1)));
        assert_eq!(read("f"), None);
    }

    #[test]
    fn beginnings_stay_open() {
        assert_eq!(begins(b"", CALL_OPEN), Found::Open);
        assert_eq!(begins(b"<tool", CALL_OPEN), Found::Open);
        assert_eq!(begins(b"<tool_call>x", CALL_OPEN), Found::Yes);
        assert_eq!(begins(b"<toolx", CALL_OPEN), Found::No);
        assert_eq!(tag_of(b"</", &[CALL_OPEN, CALL_CLOSE]), Err(Found::Open));
        assert_eq!(tag_of(b"<a", &[CALL_OPEN, CALL_CLOSE]), Err(Found::No));
    }
}

//! Searching bytes for marks that may have arrived in part.

/// First position of `mark` in `bytes`.
pub(crate) fn position(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}

/// Length of the longest end of `bytes` that is a beginning of `mark`, the whole mark excluded.
pub(crate) fn held_tail(bytes: &[u8], mark: &[u8]) -> usize {
    let longest = bytes.len().min(mark.len() - 1);
    (1..=longest)
        .rev()
        .find(|&length| bytes.ends_with(&mark[..length]))
        .unwrap_or(0)
}

/// Length of an unfinished UTF-8 character at the end of `bytes`.
pub(crate) fn incomplete_tail(bytes: &[u8]) -> usize {
    // A character has at most four bytes, so at most three of an unfinished one are there.
    for length in 1..=bytes.len().min(3) {
        let tail = &bytes[bytes.len() - length..];
        match tail[0] {
            0x80..=0xbf => continue,
            0xc0..=0xff => {
                let unfinished = std::str::from_utf8(tail).is_err_and(|e| e.error_len().is_none());
                return if unfinished { length } else { 0 };
            }
            _ => return 0,
        }
    }
    0
}

/// Number of white-space bytes in front.
pub(crate) fn blank(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count()
}

/// Length without trailing newlines.
pub(crate) fn without_newlines(bytes: &[u8]) -> usize {
    length_before(bytes, |byte| byte == b'\n')
}

/// Length without trailing white space.
pub(crate) fn without_space(bytes: &[u8]) -> usize {
    length_before(bytes, |byte| byte.is_ascii_whitespace())
}

fn length_before(bytes: &[u8], dropped: impl Fn(u8) -> bool) -> usize {
    bytes
        .iter()
        .rposition(|&byte| !dropped(byte))
        .map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_beginnings_of_the_mark() {
        assert_eq!(held_tail(b"abc<thi", b"<think>"), 4);
        assert_eq!(held_tail(b"<think>", b"<think>"), 0);
        assert_eq!(held_tail(b"aab", b"aabaab"), 3);
        assert_eq!(held_tail(b"xaaba", b"aabaab"), 4);
        assert_eq!(held_tail(b"", b"a"), 0);
    }

    #[test]
    fn unfinished_characters() {
        let crab = "🦀".as_bytes();
        for length in 1..4 {
            assert_eq!(incomplete_tail(&crab[..length]), length);
        }
        assert_eq!(incomplete_tail(crab), 0);
        assert_eq!(incomplete_tail(b"a\xff"), 0);
        assert_eq!(incomplete_tail(b"\x80\x80\x80\x80"), 0);
        // E0 must be followed by A0 or more: this can never become a character.
        assert_eq!(incomplete_tail(b"\xe0\x80"), 0);
    }
}

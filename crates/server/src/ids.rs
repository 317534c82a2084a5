//! Names of requests and answers.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// Characters of a client's own name for its request at most.
pub(crate) const RID_LENGTH_MAX: usize = 128;

/// `prefix` and 24 random hexadecimal digits.
pub(crate) fn random_id(prefix: &str) -> String {
    let word = || RandomState::new().hash_one(0_u8);
    format!("{prefix}{:016x}{:08x}", word(), word() >> 32)
}

/// Unix time in seconds.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// Whether a client's request id is fit to be repeated.
pub(crate) fn is_request_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/=+-".contains(&byte);
    (1..=128).contains(&id.len()) && id.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_have_a_fixed_length() {
        let (first, second) = (random_id("req_"), random_id("req_"));
        assert_ne!(first, second);
        assert_eq!((first.len(), second.len()), (28, 28));
        assert!(is_request_id(&first));
    }

    #[test]
    fn request_ids_are_short_and_plain() {
        for id in ["a", "a.b_c:d/e=f+g-9", &"x".repeat(128)] {
            assert!(is_request_id(id), "{id}");
        }
        for id in ["", "a b", "é", "a\n", &"x".repeat(129)] {
            assert!(!is_request_id(id), "{id}");
        }
    }
}

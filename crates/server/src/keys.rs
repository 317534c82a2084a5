//! API keys.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// Where keys come from.
#[derive(Clone, Debug, Default)]
pub struct KeySource {
    /// Keys themselves.
    pub keys: Vec<String>,
    /// A file with one per line; `#` begins a comment.
    pub file: Option<PathBuf>,
}

impl KeySource {
    /// All keys as of now; the error says what is wrong with the file.
    pub fn read(&self) -> Result<Vec<String>, String> {
        let mut keys = self.keys.clone();
        if let Some(path) = &self.file {
            let shown = path.display();
            let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
            let lines = text.lines().map(str::trim);
            keys.extend(
                lines
                    .filter(|line| !line.is_empty() && !line.starts_with('#'))
                    .map(str::to_owned),
            );
            if keys.is_empty() {
                return Err(format!("{shown}: expected a key per line, found none"));
            }
        }
        Ok(keys)
    }
}

/// Digests of the keys that are let in; none = everybody is. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    digests: Arc<RwLock<Vec<[u8; 32]>>>,
}

impl Keys {
    /// Keys as they were given.
    pub(crate) fn new(keys: &[String]) -> Self {
        let fresh = Keys::default();
        fresh.replace(keys);
        fresh
    }

    /// Lets these in from now on, and no others.
    pub(crate) fn replace(&self, keys: &[String]) {
        let digests = keys.iter().map(|key| digest(key.as_bytes())).collect();
        *self.digests.write().unwrap_or_else(PoisonError::into_inner) = digests;
    }

    /// Whether one of a request's keys is known.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        let digests = self.digests.read().unwrap_or_else(PoisonError::into_inner);
        digests.is_empty() || candidates(headers).any(|key| knows(&digests, key))
    }
}

/// Compares with every key and every byte, whatever is found.
fn knows(digests: &[[u8; 32]], key: &[u8]) -> bool {
    let found = digest(key);
    digests.iter().fold(false, |known, digest| {
        let difference = digest
            .iter()
            .zip(&found)
            .fold(0, |bits, (a, b)| bits | (a ^ b));
        known | (difference == 0)
    })
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// `Authorization: Bearer KEY`, `x-api-key: KEY`, `api-key: KEY`.
fn candidates(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let value = value.as_bytes();
        let (scheme, key) = value.split_at_checked(7)?;
        scheme
            .eq_ignore_ascii_case(b"Bearer ")
            .then(|| key.trim_ascii())
    });
    let plain = ["x-api-key", "api-key"]
        .into_iter()
        .filter_map(|name| Some(headers.get(name)?.as_bytes()));
    bearer.into_iter().chain(plain)
}

/// Refuses requests without a known key.
pub(crate) async fn require(
    State(keys): State<Keys>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if keys.admit(request.headers()) {
        return Ok(next.run(request).await);
    }
    Err(ApiError::request(
        StatusCode::UNAUTHORIZED,
        "invalid_api_key",
        "Incorrect or missing API key. Send it as 'Authorization: Bearer KEY'.",
    ))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn admitted(keys: &[&str], name: &'static str, value: &'static str) -> bool {
        let keys: Vec<_> = keys.iter().map(|&key| key.to_owned()).collect();
        let mut headers = HeaderMap::new();
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
        Keys::new(&keys).admit(&headers)
    }

    #[test]
    fn keys_come_in_three_headers() {
        for (name, value) in [
            ("authorization", "Bearer two"),
            ("authorization", "bearer two"),
            ("x-api-key", "two"),
            ("api-key", "one"),
        ] {
            assert!(admitted(&["one", "two"], name, value), "{name}: {value}");
        }
        for (name, value) in [
            ("authorization", "Basic two"),
            ("authorization", "two"),
            ("authorization", "Bearer "),
            ("authorization", "Bearer tw"),
            ("x-api-key", "three"),
        ] {
            assert!(!admitted(&["one", "two"], name, value), "{name}: {value}");
        }
    }

    #[test]
    fn a_file_is_read_again_and_never_opens_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let source = KeySource {
            keys: Vec::new(),
            file: Some(file.clone()),
        };
        assert!(source.read().unwrap_err().contains("keys: "), "no file");
        std::fs::write(&file, "# ours\n\n one \ntwo\n").unwrap();
        assert_eq!(source.read().unwrap(), ["one", "two"]);
        std::fs::write(&file, "# nobody\n").unwrap();
        assert!(source.read().unwrap_err().contains("found none"));
    }

    #[test]
    fn without_keys_everybody_may() {
        assert!(admitted(&[], "accept", "x"));
        assert!(!admitted(&["k"], "accept", "x"));
    }
}

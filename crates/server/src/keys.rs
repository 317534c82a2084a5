//! API keys.

use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// Digests of the keys that are let in; none = everybody is. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    digests: Arc<RwLock<Arc<[[u8; 32]]>>>,
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

    fn digests(&self) -> Arc<[[u8; 32]]> {
        Arc::clone(&self.digests.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether one of a request's keys is known.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        self.digests().is_empty() || candidates(headers).any(|key| self.knows(key))
    }

    /// Compares with every key and every byte, whatever is found.
    fn knows(&self, key: &[u8]) -> bool {
        let found = digest(key);
        self.digests().iter().fold(false, |known, digest| {
            let difference = digest
                .iter()
                .zip(&found)
                .fold(0, |bits, (a, b)| bits | (a ^ b));
            known | (difference == 0)
        })
    }
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
    fn without_keys_everybody_may() {
        assert!(admitted(&[], "accept", "x"));
        assert!(!admitted(&["k"], "accept", "x"));
    }
}

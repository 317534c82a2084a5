//! API keys.

use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::peer::Peer;

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
        self.is_empty() || self.holds(headers)
    }

    fn is_empty(&self) -> bool {
        self.digests().is_empty()
    }

    fn holds(&self, headers: &HeaderMap) -> bool {
        candidates(headers).any(|key| self.knows(key))
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
    Err(wrong_key())
}

fn wrong_key() -> ApiError {
    ApiError::request(
        StatusCode::UNAUTHORIZED,
        "invalid_api_key",
        "Incorrect or missing API key. Send it as 'Authorization: Bearer KEY'.",
    )
}

/// Who may use the administrative paths: holders of the administrator's key; without such a key
/// every user; without any key whoever is on this machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdminKeys {
    /// The administrator's.
    pub(crate) admin: Keys,
    /// The users'.
    pub(crate) user: Keys,
}

impl AdminKeys {
    fn check(&self, headers: &HeaderMap, peer: Option<Peer>) -> Result<(), ApiError> {
        let known = |keys: &Keys| !keys.is_empty() && keys.holds(headers);
        if !self.admin.is_empty() {
            return match (known(&self.admin), known(&self.user)) {
                (true, _) => Ok(()),
                (false, true) => Err(ApiError::forbidden(
                    "This URL needs the administrator's key, not a user's.",
                )),
                (false, false) => Err(wrong_key()),
            };
        }
        if !self.user.is_empty() {
            return match known(&self.user) {
                true => Ok(()),
                false => Err(wrong_key()),
            };
        }
        match peer.is_some_and(|peer| peer.ip().is_loopback()) {
            true => Ok(()),
            false => Err(ApiError::forbidden(
                "Without keys this URL is for clients on the server's own machine only.",
            )),
        }
    }
}

/// Refuses requests that may not administrate.
pub(crate) async fn require_admin(
    State(keys): State<AdminKeys>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let peer = request.extensions().get::<Peer>().copied();
    keys.check(request.headers(), peer)?;
    Ok(next.run(request).await)
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
    fn administrators_have_a_key_or_sit_at_the_machine() {
        let key = |key: &str| match key {
            "" => Keys::default(),
            key => Keys::new(&[key.to_owned()]),
        };
        let near = "127.0.0.1:1";
        for (admin, user, sent, peer, status) in [
            ("a", "u", "a", near, 200),
            ("a", "u", "u", near, 403),
            ("a", "u", "x", near, 401),
            ("a", "", "", near, 401),
            ("a", "", "a", "10.0.0.1:1", 200),
            ("", "u", "u", "10.0.0.1:1", 200),
            ("", "u", "", near, 401),
            ("", "", "", near, 200),
            ("", "", "", "[::1]:1", 200),
            ("", "", "", "[::ffff:127.0.0.1]:1", 200),
            ("", "", "a", "10.0.0.1:1", 403),
        ] {
            let keys = AdminKeys {
                admin: key(admin),
                user: key(user),
            };
            let mut headers = HeaderMap::new();
            headers.insert("x-api-key", HeaderValue::from_static(sent));
            let peer = Peer(peer.parse().unwrap());
            let found = keys.check(&headers, Some(peer)).err();
            let found = found.map_or(200, |error| error.status.as_u16());
            assert_eq!(found, status, "{admin:?} {user:?} {sent:?} {peer:?}");
        }
        let error = AdminKeys::default().check(&HeaderMap::new(), None);
        assert!(error.is_err(), "nobody is known to be near");
    }

    #[test]
    fn without_keys_everybody_may() {
        assert!(admitted(&[], "accept", "x"));
        assert!(!admitted(&["k"], "accept", "x"));
    }
}

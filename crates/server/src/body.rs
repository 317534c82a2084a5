//! Request bodies: type, size, time, JSON.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};
use tokio_stream::StreamExt;

use crate::error::ApiError;
use crate::fields::wrong_type;

/// Objects, arrays and keys of a body at most. Each takes a hundred bytes or more, so that without
/// a limit 32 MiB of `{"":0},` would take gigabytes.
const PARTS_MAX: usize = 1 << 19;

/// Reads a body that says it is JSON, within limits on bytes and time (zero = none).
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
    timeout: Duration,
) -> Result<Vec<u8>, ApiError> {
    if !is_json(headers) {
        return Err(ApiError::request(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "The request's Content-Type must be application/json.",
        ));
    }
    if headers
        .get(CONTENT_ENCODING)
        .is_some_and(|encoding| encoding != "identity")
    {
        return Err(ApiError::request(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "The request's body must come without a Content-Encoding.",
        ));
    }
    let declared = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    let reading = collect(body, bytes_max);
    if timeout.is_zero() {
        return reading.await;
    }
    tokio::time::timeout(timeout, reading)
        .await
        .unwrap_or_else(|_| {
            Err(ApiError::request(
                StatusCode::REQUEST_TIMEOUT,
                "request_timeout",
                format!("The request's body did not arrive within {timeout:?}."),
            ))
        })
}

async fn collect(body: Body, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|_| ApiError::not_json("The request's body ended too early."))?;
        if bytes.len() + part.len() > bytes_max {
            return Err(too_large(bytes_max));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

/// The JSON object of a body. Nesting deeper than 127 levels is refused.
pub(crate) fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        ApiError::not_json(format!("The request's body is not UTF-8 (byte {at})."))
    })?;
    if !is_wieldy(text) {
        return Err(ApiError::not_json(format!(
            "The request's body has more than {PARTS_MAX} objects, arrays and keys."
        )));
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(ApiError {
            param: None,
            code: None,
            ..wrong_type("body", "an object", &other)
        }),
        Err(error) => Err(ApiError::not_json(format!(
            "The request's body is not JSON: {error}."
        ))),
    }
}

/// Whether a text of JSON can be parsed within reasonable memory. In a text of anything else parts
/// are counted as well as they can be.
pub(crate) fn is_wieldy(text: &str) -> bool {
    if text.len() <= PARTS_MAX {
        return true;
    }
    let (mut parts, mut quoted, mut escaped) = (0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'{' | b'[' | b':' if !quoted => parts += 1,
            _ => {}
        }
    }
    parts <= PARTS_MAX
}

/// `application/json` or `application/*+json`, parameters ignored.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()) else {
        return false;
    };
    let kind = value.split(';').next().unwrap_or_default().trim();
    let kind = kind.to_ascii_lowercase();
    kind.strip_prefix("application/")
        .is_some_and(|rest| rest == "json" || rest.ends_with("+json"))
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::request(
        StatusCode::PAYLOAD_TOO_LARGE,
        "request_too_large",
        format!("The request's body is larger than the limit of {bytes_max} bytes."),
    )
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn parts_are_counted_outside_of_strings() {
        // Without the object around them.
        for (part, each) in [
            ("[]", 1),
            ("{}", 1),
            ("{\"\":0}", 2),
            ("{\"a{[:\\\"[\":0}", 2),
        ] {
            let body = |count: usize| {
                let parts = vec![part; count].join(",");
                format!(
                    "{{\"text\":\"{}\",\"x\":[{parts}]}}",
                    "[{:".repeat(PARTS_MAX)
                )
            };
            let most = (PARTS_MAX - 4) / each;
            assert!(object(body(most).as_bytes()).is_ok(), "{part}");
            let error = object(body(most + 1).as_bytes()).unwrap_err();
            assert!(error.message.contains("more than"), "{part}: {error}");
        }
    }

    #[test]
    fn content_types() {
        let json = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            is_json(&headers)
        };
        for value in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/problem+json",
        ] {
            assert!(json(value), "{value}");
        }
        for value in ["text/plain", "application/jsonx", "text/json", ""] {
            assert!(!json(value), "{value}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }

    #[test]
    fn bodies_that_are_no_objects_are_refused_in_words() {
        for (bytes, part) in [
            (&b"[1]"[..], "expected an object"),
            (b"{\"a\":", "not JSON"),
            (b"\xff{}", "not UTF-8 (byte 0)"),
            (b"", "not JSON"),
            (b"NaN", "not JSON"),
        ] {
            let error = object(bytes).unwrap_err();
            assert!(error.message.contains(part), "{}", error.message);
            assert_eq!((error.status.as_u16(), error.code), (400, None));
        }
        let deep = "[".repeat(200) + &"]".repeat(200);
        let error = object(format!("{{\"a\":{deep}}}").as_bytes()).unwrap_err();
        assert!(error.message.contains("recursion"), "{}", error.message);
    }

    #[test]
    fn the_last_of_equal_keys_wins() {
        assert_eq!(object(b"{\"a\":1,\"a\":2}").unwrap()["a"], 2);
    }

    #[tokio::test]
    async fn limits_hold_while_reading() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let second = Duration::from_secs(1);
        let body = || {
            Body::from_stream(tokio_stream::iter(
                [0; 3].map(|_| Ok::<_, std::io::Error>("0123456789")),
            ))
        };
        let fits = read(&headers, body(), 30, second).await.unwrap();
        assert_eq!(fits.len(), 30);
        let error = read(&headers, body(), 29, second).await.unwrap_err();
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
        let never = Body::from_stream(tokio_stream::pending::<Result<&str, std::io::Error>>());
        let error = read(&headers, never, 30, Duration::from_millis(1))
            .await
            .unwrap_err();
        assert_eq!(error.code, Some("request_timeout"));
    }
}

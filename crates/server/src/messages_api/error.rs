//! Errors as Anthropic's clients read them.

use std::sync::Arc;

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::{ApiError, Overflow};
use crate::trace::RequestId;

const PATH: &str = "/v1/messages";
/// Where these clients look for the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Gives every error below the path of this API its form, whoever made it: the guard, the router
/// and the reader of bodies know one form only.
pub(crate) async fn translate(request: Request, next: Next) -> Response {
    let ours = is_ours(request.uri().path());
    let id = request.extensions().get::<RequestId>().cloned();
    let response = next.run(request).await;
    match (ours, id) {
        (true, Some(RequestId(id))) => in_form(response, &id),
        _ => response,
    }
}

fn is_ours(path: &str) -> bool {
    path.strip_prefix(PATH)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn in_form(mut response: Response, request_id: &str) -> Response {
    if let Some(error) = response.extensions().get::<Arc<ApiError>>() {
        let mut object = object(error);
        object["request_id"] = request_id.into();
        *response.body_mut() = Json(object).into_response().into_body();
    }
    if let Ok(id) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// The error object, as it is in a stream.
pub(super) fn object(error: &ApiError) -> Value {
    json!({"type": "error", "error": {"type": kind(error.status), "message": message(error)}})
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}

/// Clients match on the text of an overflow and shorten the conversation.
fn message(error: &ApiError) -> String {
    match error.overflow {
        None => error.message.clone(),
        Some(Overflow {
            prompt,
            output: None,
            context,
        }) => format!("prompt is too long: {prompt} tokens > {context} maximum"),
        Some(Overflow {
            prompt,
            output: Some(output),
            context,
        }) => format!(
            "input length and `max_tokens` exceed context limit: {prompt} + {output} > {context}, \
             decrease input length or `max_tokens` and try again"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_type() {
        for (status, expected) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (405, "invalid_request_error"),
            (408, "invalid_request_error"),
            (413, "request_too_large"),
            (415, "invalid_request_error"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (503, "overloaded_error"),
            (504, "timeout_error"),
        ] {
            assert_eq!(
                kind(StatusCode::from_u16(status).unwrap()),
                expected,
                "{status}"
            );
        }
    }

    #[test]
    fn overflow_text_is_exact() {
        let text = |error: &ApiError| object(error)["error"]["message"].clone();
        let error = ApiError::context_length(20, 30, "messages");
        assert_eq!(text(&error), "prompt is too long: 30 tokens > 20 maximum");
        let error = ApiError::context_length_with_output(20, 15, 10, "messages");
        assert_eq!(
            text(&error),
            "input length and `max_tokens` exceed context limit: 15 + 10 > 20, decrease input \
             length or `max_tokens` and try again"
        );
        assert_eq!(text(&ApiError::not_json("no")), "no");
    }

    #[test]
    fn the_path_is_matched_whole() {
        for path in ["/v1/messages", "/v1/messages/", "/v1/messages/count_tokens"] {
            assert!(is_ours(path), "{path}");
        }
        for path in ["/v1/messagesx", "/v1/models", "/messages", "/"] {
            assert!(!is_ours(path), "{path}");
        }
    }

    #[test]
    fn a_response_keeps_its_status_and_headers() {
        let error = ApiError::unavailable("model_loading", "Loading.", 5_000);
        let response = in_form(error.into_response(), "req_1");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "5");
        assert_eq!(response.headers()["request-id"], "req_1");
        assert_eq!(response.headers()["content-type"], "application/json");
        assert!(response.headers().get("content-length").is_none());
    }
}

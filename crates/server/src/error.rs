//! The error object of the OpenAI-style paths, and the one place that maps errors onto it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::header::{CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::SubmitError;
use serde_json::{Value, json};

/// Characters of a client's value that a message may repeat.
const ECHO_CHARS_MAX: usize = 200;

/// `type` of the error object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    /// The request is wrong.
    InvalidRequest,
    /// The key may not do this.
    Permission,
    /// Too many requests.
    RateLimit,
    /// The server is at fault or not ready.
    Server,
}

impl ErrorType {
    fn name(self) -> &'static str {
        match self {
            ErrorType::InvalidRequest => "invalid_request_error",
            ErrorType::Permission => "permission_error",
            ErrorType::RateLimit => "rate_limit_error",
            ErrorType::Server => "server_error",
        }
    }
}

/// An error as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status, as long as no header was sent.
    pub status: StatusCode,
    /// `type`.
    pub kind: ErrorType,
    /// `code`.
    pub code: Option<&'static str>,
    /// Path of the offending field.
    pub param: Option<String>,
    /// One or two sentences.
    pub message: String,
    /// Milliseconds after which trying again makes sense.
    pub retry_ms: Option<u64>,
    /// The numbers of tokens that do not fit.
    pub overflow: Option<Overflow>,
}

/// A request that is longer than a sequence can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens asked for, if they count.
    pub output: Option<usize>,
    /// Tokens of a sequence at most.
    pub context: usize,
}

impl ApiError {
    /// 400 about one field.
    pub fn invalid(
        code: &'static str,
        param: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            kind: ErrorType::InvalidRequest,
            code: Some(code),
            param: Some(param.into()),
            message: message.into(),
            retry_ms: None,
            overflow: None,
        }
    }

    /// An `invalid_request_error` with another status than 400.
    pub fn request(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError {
            status,
            kind: ErrorType::InvalidRequest,
            code: Some(code),
            param: None,
            message: message.into(),
            retry_ms: None,
            overflow: None,
        }
    }

    /// 403: the key, or the place the request comes from, is not enough.
    pub fn forbidden(message: impl Into<String>) -> Self {
        ApiError {
            kind: ErrorType::Permission,
            ..Self::request(StatusCode::FORBIDDEN, "insufficient_permissions", message)
        }
    }

    /// The body is not a JSON object.
    pub fn not_json(message: impl Into<String>) -> Self {
        ApiError {
            code: None,
            ..Self::request(StatusCode::BAD_REQUEST, "", message)
        }
    }

    /// 503 with a hint when to come back.
    pub fn unavailable(code: &'static str, message: impl Into<String>, retry_ms: u64) -> Self {
        ApiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: ErrorType::Server,
            code: Some(code),
            param: None,
            message: message.into(),
            retry_ms: Some(retry_ms),
            overflow: None,
        }
    }

    /// The server is ending.
    pub fn draining() -> Self {
        Self::unavailable("server_draining", "The server is shutting down.", 5_000)
    }

    /// The engine is gone.
    pub fn engine_stopped() -> Self {
        Self::unavailable("engine_unavailable", "The engine has stopped.", 5_000)
    }

    /// The engine hangs.
    pub fn engine_silent(age: Duration) -> Self {
        let message = format!("The engine has been silent for {} seconds.", age.as_secs());
        Self::unavailable("engine_unavailable", message, 5_000)
    }

    /// A request waited for too long; trying again makes sense after `retry_ms`.
    pub fn queue_timeout(retry_ms: u64) -> Self {
        let message = "The request waited in the queue for longer than this server allows.";
        Self::unavailable("queue_timeout", message, retry_ms)
    }

    /// 504; nothing was sent in time.
    pub fn too_slow() -> Self {
        ApiError {
            kind: ErrorType::Server,
            ..Self::request(
                StatusCode::GATEWAY_TIMEOUT,
                "request_timeout",
                "The request took longer than this server allows.",
            )
        }
    }

    /// 500; the detail goes to the log, the client gets the request id.
    pub fn internal(request_id: &str, detail: &str) -> Self {
        tracing::error!(request_id, detail, "request failed");
        ApiError {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: ErrorType::Server,
            code: Some("internal_error"),
            param: None,
            message: format!(
                "The server had an error while processing your request. Request id: {request_id}."
            ),
            retry_ms: None,
            overflow: None,
        }
    }

    /// 500; somebody ended the request, who would not want it to be sent again.
    pub fn aborted() -> Self {
        ApiError {
            kind: ErrorType::Server,
            ..Self::request(
                StatusCode::INTERNAL_SERVER_ERROR,
                "aborted",
                "The request was ended by an administrator of the server.",
            )
        }
    }

    /// The prompt is longer than a sequence can be; clients match on the text.
    pub fn context_length(context: usize, prompt: usize, param: &str) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, your messages \
             resulted in {prompt} tokens. Please reduce the length of the messages."
        );
        ApiError {
            overflow: Some(Overflow {
                prompt,
                output: None,
                context,
            }),
            ..Self::invalid("context_length_exceeded", param, message)
        }
    }

    /// Prompt and requested output are longer than a sequence can be.
    pub fn context_length_with_output(
        context: usize,
        prompt: usize,
        output: usize,
        param: &str,
    ) -> Self {
        let total = prompt.saturating_add(output);
        let message = format!(
            "This model's maximum context length is {context} tokens. However, you requested \
             {total} tokens ({prompt} in the messages, {output} in the completion). Please \
             reduce the length of the messages or completion."
        );
        ApiError {
            overflow: Some(Overflow {
                prompt,
                output: Some(output),
                context,
            }),
            ..Self::invalid("context_length_exceeded", param, message)
        }
    }

    /// The same error about another field.
    pub fn with_param(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// The error object.
    pub fn object(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind.name(),
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.object())).into_response();
        let headers = response.headers_mut();
        if let Some(retry_ms) = self.retry_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(retry_ms.div_ceil(1_000)));
            headers.insert(
                HeaderName::from_static("retry-after-ms"),
                HeaderValue::from(retry_ms),
            );
        }
        if self.status == StatusCode::INTERNAL_SERVER_ERROR {
            // It is the request at which something broke: clients that tried it again would break
            // it again. What the request had no part in is a 503.
            headers.insert(
                HeaderName::from_static("x-should-retry"),
                HeaderValue::from_static("false"),
            );
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.code == Some("server_draining") {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(ErrorCode(self.code));
        // For APIs with another form of errors.
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// `code` of an error response, left for the access log and the metrics.
#[derive(Clone, Copy, Debug)]
pub struct ErrorCode(pub Option<&'static str>);

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match &error {
            SubmitError::EmptyPrompt => {
                ApiError::invalid("invalid_value", "prompt", error.to_string())
            }
            SubmitError::ContextLength { prompt, context } => {
                ApiError::context_length(*context, *prompt, "messages")
            }
            SubmitError::UnknownToken { .. } => {
                ApiError::invalid("invalid_value", "prompt", error.to_string())
            }
            SubmitError::QueueFull { .. } => ApiError {
                status: StatusCode::TOO_MANY_REQUESTS,
                kind: ErrorType::RateLimit,
                code: Some("queue_full"),
                param: None,
                message: format!("The queue is full: {error}."),
                retry_ms: Some(1_000),
                overflow: None,
            },
            SubmitError::Invalid(reason) => ApiError {
                param: None,
                ..ApiError::invalid("invalid_value", "", shorten(reason))
            },
            SubmitError::Unavailable(_) => ApiError::unavailable(
                "engine_unavailable",
                "The engine is not taking requests.",
                5_000,
            ),
        }
    }
}

/// At most 200 characters of a client's text.
pub fn shorten(text: &str) -> String {
    match text.char_indices().nth(ECHO_CHARS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_keys_are_always_there() {
        let object = ApiError::not_json("no").object();
        let error = object["error"].as_object().unwrap();
        let keys: Vec<_> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["message", "type", "param", "code"]);
        assert!(error["param"].is_null() && error["code"].is_null());
    }

    #[test]
    fn overflow_text_is_exact() {
        let error = ApiError::from(SubmitError::ContextLength {
            prompt: 30,
            context: 20,
        });
        assert_eq!(
            error.message,
            "This model's maximum context length is 20 tokens. However, your messages resulted \
             in 30 tokens. Please reduce the length of the messages."
        );
        assert_eq!(error.code, Some("context_length_exceeded"));
        let error = ApiError::context_length_with_output(20, 15, 10, "prompt");
        assert_eq!(
            error.message,
            "This model's maximum context length is 20 tokens. However, you requested 25 tokens \
             (15 in the messages, 10 in the completion). Please reduce the length of the \
             messages or completion."
        );
    }

    #[test]
    fn queue_full_says_when_to_come_back() {
        let error = ApiError::from(SubmitError::QueueFull {
            waiting: 3,
            limit: 3,
        });
        let error = ApiError {
            retry_ms: Some(1_500),
            ..error
        };
        let response = error.into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(response.headers()["retry-after-ms"], "1500");
    }

    #[test]
    fn what_failed_inside_is_not_sent_again() {
        let retry = |error: ApiError| {
            let response = error.into_response();
            response.headers().get("x-should-retry").cloned()
        };
        let never = HeaderValue::from_static("false");
        assert_eq!(retry(ApiError::internal("req_1", "why")), Some(never));
        assert_eq!(retry(ApiError::draining()), None);
        assert_eq!(retry(ApiError::engine_stopped()), None);
        assert_eq!(retry(ApiError::queue_timeout(1_000)), None);
        assert_eq!(retry(ApiError::too_slow()), None);
    }

    #[test]
    fn long_values_are_cut() {
        assert_eq!(shorten("abc"), "abc");
        let cut = shorten(&"é".repeat(300));
        assert_eq!(cut.chars().count(), 203);
    }
}

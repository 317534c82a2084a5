//! The playground at `/ui`: one page that needs nothing but this server.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const HTML: &str = include_str!("ui/page.html");
const STYLE: &str = include_str!("ui/style.css");
/// In the order in which they use each other.
const SCRIPTS: [&str; 4] = [
    include_str!("ui/tokens.js"),
    include_str!("ui/tree.js"),
    include_str!("ui/chart.js"),
    include_str!("ui/chat.js"),
];

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let script = format!("\"use strict\";\n{}", SCRIPTS.concat());
    // Nothing else is ever run or applied, whatever a model writes.
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source(&script),
        source(STYLE)
    );
    Page {
        html: HTML
            .replace("/*style*/", STYLE)
            .replace("/*script*/", &script)
            .into(),
        policy,
    }
});

struct Page {
    html: Bytes,
    policy: String,
}

/// A text by its hash, as a policy names it.
fn source(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

/// The page.
pub(crate) async fn page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, PAGE.policy.as_str()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
    ];
    let mut response = PAGE.html.clone().into_response();
    for (name, value) in headers {
        // All are ASCII.
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_and_script_are_in_place() {
        let html = std::str::from_utf8(&PAGE.html).unwrap();
        for (open, close, count) in [("<style>", "</style>", 1), ("<script>", "</script>", 1)] {
            assert_eq!(html.matches(open).count(), count);
            assert_eq!(html.matches(close).count(), count);
            let inner = html
                .split(open)
                .nth(1)
                .unwrap()
                .split(close)
                .next()
                .unwrap();
            assert!(PAGE.policy.contains(&source(inner)), "{open}");
        }
        assert!(!html.contains("/*style*/") && !html.contains("/*script*/"));
    }
}

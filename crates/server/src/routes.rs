//! Paths, methods and what surrounds every handler.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::app::App;
use crate::error::ApiError;
use crate::keys::{self, Keys};
use crate::serve::ServeError;
use crate::trace::trace;
use crate::{chat, completions, health, messages_api, model_list, responses};

type AppRouter = Router<Arc<App>>;

/// The whole server as a service.
pub(crate) fn router(app: Arc<App>) -> Result<Router, ServeError> {
    let config = &app.config;
    let keys = Keys::new(&config.api_keys);
    let guard = middleware::from_fn_with_state(keys, keys::require);
    let mut guarded = AppRouter::new();
    for prefix in ["/v1", ""] {
        guarded = both(
            guarded,
            &format!("{prefix}/chat/completions"),
            post(chat::complete),
        );
        guarded = both(
            guarded,
            &format!("{prefix}/completions"),
            post(completions::complete),
        );
        guarded = both(guarded, &format!("{prefix}/models"), get(model_list::list));
        guarded = guarded.route(&format!("{prefix}/models/{{*id}}"), get(model_list::one));
    }
    guarded = other_apis(guarded);
    let mut open = AppRouter::new().route("/", get(health::root));
    open = both(open, "/health", get(health::health));
    open = both(open, "/ready", get(health::health));
    open = both(open, "/livez", get(health::live));
    match config.metrics_require_key {
        true => guarded = both(guarded, "/metrics", get(metrics)),
        false => open = both(open, "/metrics", get(metrics)),
    }
    let cors = cors(&config.allowed_origins)?;
    let router = open
        .merge(guarded.route_layer(guard))
        .fallback(unknown_url)
        .method_not_allowed_fallback(wrong_method)
        .layer(CatchPanicLayer::custom(panicked))
        // Bodies have limits of their own.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(messages_api::translate_errors))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), trace));
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    Ok(router.with_state(app))
}

/// APIs that are made of chat requests.
fn other_apis(router: AppRouter) -> AppRouter {
    let count = post(messages_api::count_tokens);
    let router = both(router, "/v1/messages", post(messages_api::create));
    let router = both(router, "/v1/messages/count_tokens", count);
    let router = both(router, "/v1/responses", post(responses::create));
    let count = post(responses::input_tokens);
    let router = both(router, "/v1/responses/input_tokens", count);
    let stored = get(responses::stored).delete(responses::stored);
    router.route("/v1/responses/{id}", stored)
}

/// With and without a slash at the end.
fn both(router: AppRouter, path: &str, method: MethodRouter<Arc<App>>) -> AppRouter {
    router
        .route(path, method.clone())
        .route(&format!("{path}/"), method)
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let stats = app.engine.stats();
    let text = app.metrics.report(app.engine.info(), &stats);
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response()
}

async fn unknown_url(request: axum::extract::Request) -> ApiError {
    let path = crate::error::shorten(request.uri().path());
    let message = format!("Unknown request URL: {} {path}.", request.method());
    ApiError::request(StatusCode::NOT_FOUND, "unknown_url", message)
}

async fn wrong_method(method: Method) -> ApiError {
    let method = crate::error::shorten(method.as_str());
    let message = format!("This URL does not support the method {method}.");
    ApiError::request(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_supported",
        message,
    )
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    ApiError::internal("see x-request-id", text).into_response()
}

/// `None` when no page of another origin may ask.
fn cors(origins: &[String]) -> Result<Option<CorsLayer>, ServeError> {
    if origins.is_empty() {
        return Ok(None);
    }
    let origin = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => {
            let parsed: Result<Vec<HeaderValue>, _> =
                origins.iter().map(|origin| origin.parse()).collect();
            let parsed = parsed.map_err(|_| {
                let origins = origins.join(" ");
                ServeError::Config(format!(
                    "--allowed-origins: expected origins such as https://example.org, found \
                     {origins}"
                ))
            })?;
            AllowOrigin::list(parsed)
        }
    };
    let exposed = ["x-request-id", "retry-after", "retry-after-ms"];
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::OPTIONS])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(exposed.map(HeaderName::from_static))
        .max_age(Duration::from_secs(600));
    Ok(Some(layer))
}

//! Paths, methods and what surrounds every handler.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::handler::Handler;
use axum::http::header::{ACCESS_CONTROL_ALLOW_METHODS, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use serde_json::Value;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::app::App;
use crate::error::ApiError;
use crate::keys::{self, AdminKeys, Keys};
use crate::metrics::openmetrics;
use crate::openapi::{self, Operation, operation};
use crate::serve::{ServeConfig, ServeError};
use crate::trace::trace;
use crate::{
    admin, chat, completions, generate, health, health_probe, introspection, messages_api,
    model_list, responses, tokens, ui,
};

type AppRouter = Router<Arc<App>>;

/// Who may use a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Everybody.
    Open,
    /// Holders of a user's key, if there are keys.
    User,
    /// See [`AdminKeys`].
    Admin,
}

/// A path as it was added.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// `GET` or `POST`.
    pub(crate) method: Method,
    /// With `{name}` and `{*rest}`.
    pub(crate) path: String,
    /// Who may use it.
    pub(crate) guard: Guard,
    /// What it does.
    pub(crate) operation: Operation,
}

/// Paths in the making. Nothing is added without its description.
#[derive(Default)]
struct Routes {
    open: AppRouter,
    user: AppRouter,
    admin: AppRouter,
    added: Vec<Route>,
}

impl Routes {
    fn get<H, T>(&mut self, guard: Guard, path: &str, operation: Operation, handler: H)
    where
        H: Handler<T, Arc<App>>,
        T: 'static,
    {
        self.add(Method::GET, guard, path, operation, get(handler));
    }

    fn post<H, T>(&mut self, guard: Guard, path: &str, operation: Operation, handler: H)
    where
        H: Handler<T, Arc<App>>,
        T: 'static,
    {
        self.add(Method::POST, guard, path, operation, post(handler));
    }

    /// With and without a slash at the end.
    fn add(
        &mut self,
        method: Method,
        guard: Guard,
        path: &str,
        operation: Operation,
        handler: MethodRouter<Arc<App>>,
    ) {
        let router = match guard {
            Guard::Open => &mut self.open,
            Guard::User => &mut self.user,
            Guard::Admin => &mut self.admin,
        };
        let mut with = std::mem::take(router).route(path, handler.clone());
        if path != "/" && !path.ends_with('}') {
            with = with.route(&format!("{path}/"), handler);
        }
        *router = with;
        self.added.push(Route {
            method,
            path: path.to_owned(),
            guard,
            operation,
        });
    }

    fn all(config: &ServeConfig) -> Self {
        let mut routes = Routes::default();
        routes.generation();
        routes.native();
        routes.other_apis();
        routes.tokens();
        routes.about(config);
        routes.administration();
        routes
    }

    fn generation(&mut self) {
        for prefix in ["/v1", ""] {
            let at = |path: &str| format!("{prefix}{path}");
            let path = at("/chat/completions");
            self.post(Guard::User, &path, operation::CHAT, chat::complete);
            let path = at("/completions");
            self.post(
                Guard::User,
                &path,
                operation::COMPLETION,
                completions::complete,
            );
            let path = at("/models");
            self.get(Guard::User, &path, operation::MODELS, model_list::list);
            let path = at("/models/{*id}");
            self.get(Guard::User, &path, operation::MODEL, model_list::one);
        }
    }

    fn native(&mut self) {
        let operation = operation::GENERATE;
        self.post(Guard::User, "/generate", operation, generate::generate);
    }

    /// What is made of chat requests.
    fn other_apis(&mut self) {
        let path = "/v1/messages";
        self.post(Guard::User, path, operation::MESSAGE, messages_api::create);
        let path = "/v1/messages/count_tokens";
        let operation = operation::COUNT_TOKENS;
        self.post(Guard::User, path, operation, messages_api::count_tokens);
        let path = "/v1/responses";
        self.post(Guard::User, path, operation::RESPONSE, responses::create);
        let path = "/v1/responses/input_tokens";
        let operation = operation::INPUT_TOKENS;
        self.post(Guard::User, path, operation, responses::input_tokens);
    }

    fn tokens(&mut self) {
        for prefix in ["/v1", ""] {
            let path = format!("{prefix}/tokenize");
            self.post(Guard::User, &path, operation::TOKENIZE, tokens::tokenize);
            let path = format!("{prefix}/detokenize");
            self.post(
                Guard::User,
                &path,
                operation::DETOKENIZE,
                tokens::detokenize,
            );
        }
        let template = operation::TEMPLATE;
        self.post(
            Guard::User,
            "/apply-template",
            template,
            tokens::apply_template,
        );
    }

    fn about(&mut self, config: &ServeConfig) {
        self.get(Guard::Open, "/", operation::ROOT, health::root);
        self.get(Guard::Open, "/ui", operation::UI, ui::page);
        for path in ["/health", "/ready", "/ping"] {
            self.get(Guard::Open, path, operation::HEALTH, health::health);
        }
        self.get(Guard::Open, "/livez", operation::LIVE, health::live);
        let generate = operation::HEALTH_GENERATE;
        let probe = health_probe::health_generate;
        self.get(Guard::Open, "/health_generate", generate, probe);
        if config.metrics.served {
            let guard = match config.metrics_require_key {
                true => Guard::User,
                false => Guard::Open,
            };
            self.get(guard, "/metrics", operation::METRICS, metrics);
        }
        for path in ["/model_info", "/get_model_info"] {
            let operation = operation::MODEL_INFO;
            self.get(Guard::User, path, operation, introspection::model_info);
        }
        for path in ["/server_info", "/get_server_info"] {
            let operation = operation::SERVER_INFO;
            self.get(Guard::User, path, operation, introspection::server_info);
        }
        self.get(
            Guard::User,
            "/v1/loads",
            operation::LOADS,
            introspection::loads,
        );
    }

    fn administration(&mut self) {
        let flush = operation::FLUSH;
        self.get(Guard::Admin, "/flush_cache", flush, admin::flush_cache);
        self.post(Guard::Admin, "/flush_cache", flush, admin::flush_cache);
        let abort = operation::ABORT;
        self.post(Guard::Admin, "/abort_request", abort, admin::abort_request);
    }
}

/// The whole server as a service.
pub(crate) fn router(app: Arc<App>) -> Result<Router, ServeError> {
    let config = &app.config;
    let keys = AdminKeys {
        admin: Keys::new(config.admin_api_key.as_slice()),
        // Not of the configuration: these follow the file when it is read again.
        user: app.keys.clone(),
    };
    let mut routes = Routes::all(config);
    let document = Arc::new(std::sync::OnceLock::<Value>::new());
    let listed = Arc::clone(&document);
    let describe = move || async move { Json(listed.get().cloned().unwrap_or_default()) };
    routes.get(Guard::Open, "/openapi.json", operation::OPENAPI, describe);
    for route in &routes.added {
        app.metrics.expect_http(&route.path, route.method.as_str());
    }
    document.get_or_init(|| openapi::document(&app, &routes.added));
    let Routes {
        open, user, admin, ..
    } = routes;
    let cors = cors(&config.allowed_origins)?;
    let user_guard = middleware::from_fn_with_state(keys.user.clone(), keys::require);
    let admin_guard = middleware::from_fn_with_state(keys, keys::require_admin);
    let router = open
        .merge(user.route_layer(user_guard))
        .merge(admin.route_layer(admin_guard))
        .fallback(unknown_url)
        .method_not_allowed_fallback(wrong_method)
        .layer(CatchPanicLayer::custom(panicked))
        // Bodies have limits of their own.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(messages_api::translate_errors));
    let router = match cors {
        Some(cors) => router
            .layer(cors)
            .layer(middleware::map_response(no_content)),
        None => router,
    };
    // Around all of it: every response has an id and a line in the log.
    let trace = middleware::from_fn_with_state(Arc::clone(&app), trace);
    Ok(router.layer(trace).with_state(app))
}

async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let stats = app.engine.stats();
    let status = app.engine.status();
    let text = app.metrics.report(app.engine.info(), &stats, &status);
    let (kind, text) = match openmetrics::is_wanted(&headers) {
        true => (openmetrics::CONTENT_TYPE, openmetrics::of(&text)),
        false => ("text/plain; version=0.0.4; charset=utf-8", text),
    };
    ([(CONTENT_TYPE, kind), (VARY, "accept")], text).into_response()
}

/// The layer in front answers a page that asks whether it may ask with 200 and without a word.
async fn no_content(mut response: Response) -> Response {
    let preflight = response
        .headers()
        .contains_key(ACCESS_CONTROL_ALLOW_METHODS);
    if preflight && response.status() == StatusCode::OK {
        *response.status_mut() = StatusCode::NO_CONTENT;
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    response
}

async fn unknown_url(request: axum::extract::Request) -> ApiError {
    let path = crate::error::shorten(request.uri().path());
    let method = crate::error::shorten(request.method().as_str());
    let message = format!("Unknown request URL: {method} {path}.");
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

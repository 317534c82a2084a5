//! `/health`, `/livez` and the root page.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use engine::{Phase, Status};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;

/// Whether requests should be sent here.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let status = app.engine.status();
    if let Some(error) = app.not_ready() {
        return failed(&app, error, &status);
    }
    if app.is_leaving() {
        return failed(&app, ApiError::draining(), &status);
    }
    Json(json!({"status": "ok"})).into_response()
}

/// Whether the process should be left alone.
pub(crate) async fn live(State(app): State<Arc<App>>) -> Response {
    let status = app.engine.status();
    let dead = matches!(status.phase, Phase::Failed);
    match dead || is_stale(&status, app.config.limits.watchdog_timeout) {
        true => failed(&app, silent(&status), &status),
        false => Json(json!({"status": "ok"})).into_response(),
    }
}

/// What this is.
pub(crate) async fn root(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({
        "name": "spinney",
        "version": env!("CARGO_PKG_VERSION"),
        "model": app.config.served_model_names.first(),
    }))
}

/// `ready`, or the `status` that `/health` has instead.
pub(crate) fn condition(app: &App, status: &Status) -> &'static str {
    match app.not_ready().is_some() || app.is_leaving() {
        true => why_not(app, status).0,
        false => "ready",
    }
}

/// `status` and `phase` of a server to which no requests should be sent.
fn why_not(app: &App, status: &Status) -> (&'static str, &'static str) {
    match status.phase {
        _ if app.is_leaving() => ("draining", "draining"),
        Phase::Init => ("loading", "init"),
        Phase::Download => ("loading", "download"),
        Phase::Weights => ("loading", "weights"),
        Phase::Warmup => ("loading", "warmup"),
        Phase::Ready => ("stalled", "ready"),
        Phase::Draining | Phase::Stopped => ("draining", "draining"),
        Phase::Failed => ("failed", "failed"),
    }
}

fn is_stale(status: &Status, limit: Duration) -> bool {
    !limit.is_zero() && status.heartbeat_age > limit
}

fn silent(status: &Status) -> ApiError {
    match status.phase {
        Phase::Failed => ApiError::engine_stopped(),
        _ => ApiError::engine_silent(status.heartbeat_age),
    }
}

fn failed(app: &App, error: ApiError, status: &Status) -> Response {
    let mut body = error.object();
    let (name, phase) = why_not(app, status);
    body["status"] = name.into();
    body["phase"] = phase.into();
    body["progress"] = json!(status.bytes_done as f64 / status.bytes_total.max(1) as f64);
    body["bytes_done"] = status.bytes_done.into();
    body["bytes_total"] = status.bytes_total.into();
    let seconds = status.phase_age.as_secs_f64();
    if matches!(status.phase, Phase::Download | Phase::Weights) && seconds > 0.0 {
        body["gb_per_s"] = json!(status.bytes_done as f64 / 1e9 / seconds);
    }
    body["elapsed_s"] = json!(app.elapsed().as_secs_f64());
    (
        StatusCode::SERVICE_UNAVAILABLE,
        [(RETRY_AFTER, "5")],
        Json(body),
    )
        .into_response()
}

//! `/flush_cache` and `/abort_request`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::app::App;
use crate::body;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::ids::RID_LENGTH_MAX;

/// How often a server that should become idle is looked at.
const POLL: Duration = Duration::from_millis(20);
/// Seconds that `/flush_cache` waits at most.
const WAIT_MAX: f64 = 600.0;

/// A name is short: nothing larger is read.
const ABORT_BYTES_MAX: usize = 64 << 10;

/// Empties the prefix cache of an idle server.
pub(crate) async fn flush_cache(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    let end = Instant::now() + wait(&query)?;
    while !flush(&app).await? {
        if Instant::now() >= end {
            let message = "The server is not idle: requests are running or waiting.";
            return Err(ApiError {
                param: None,
                ..ApiError::invalid("invalid_value", "", message)
            });
        }
        sleep(POLL).await;
    }
    let message = "The prefix cache is empty.";
    Ok(Json(json!({"success": true, "message": message})))
}

/// `false`: requests run or wait.
async fn flush(app: &Arc<App>) -> Result<bool, ApiError> {
    if let Some(error) = app.not_ready() {
        return Err(error);
    }
    if !app.is_idle() {
        return Ok(false);
    }
    // The engine answers between two calls to its device.
    let engine = app.engine.clone();
    let flushed = spawn_blocking(move || engine.flush_cache()).await;
    match flushed {
        Ok(Some(flushed)) => Ok(flushed),
        Ok(None) | Err(_) => Err(app.not_ready().unwrap_or_else(ApiError::engine_stopped)),
    }
}

fn wait(query: &HashMap<String, String>) -> Result<Duration, ApiError> {
    let Some(text) = query.get("timeout") else {
        return Ok(Duration::ZERO);
    };
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=WAIT_MAX).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => {
            let message = format!("Invalid 'timeout': expected 0 to {WAIT_MAX} seconds.");
            Err(ApiError::invalid("invalid_value", "timeout", message))
        }
    }
}

/// Ends the requests of a name, or all.
pub(crate) async fn abort_request(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    // Not behind the requests that wait to be parsed: it may be there to end them.
    let limits = &app.config.limits;
    let most = ABORT_BYTES_MAX.min(limits.body_bytes_max);
    let bytes = body::read(&headers, body, most, limits.body_timeout).await?;
    let name = named(&body::object(&bytes)?)?;
    let aborted = match &name {
        None => app.active.abort_all(&app.engine),
        Some(name) => app.active.abort(&app.engine, name),
    };
    tracing::info!(aborted, all = name.is_none(), "aborted on request");
    Ok(Json(json!({"aborted": aborted})))
}

/// The name of the requests to end; `None`: all of them.
fn named(body: &Map<String, Value>) -> Result<Option<String>, ApiError> {
    let fields = Fields::root(body);
    let all = fields.boolean("abort_all")?.unwrap_or(false);
    let name = fields.text("rid", RID_LENGTH_MAX)?;
    if all {
        return Ok(None);
    }
    fields.required("rid")?;
    Ok(name.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_all() {
        let read = |body: Value| named(body.as_object().unwrap()).map_err(|error| error.param);
        assert_eq!(read(json!({"rid": "a"})), Ok(Some("a".to_owned())));
        assert_eq!(read(json!({"rid": "a", "abort_all": true})), Ok(None));
        for body in [json!({}), json!({"rid": null, "abort_all": false})] {
            assert_eq!(read(body), Err(Some("rid".to_owned())));
        }
        let wrong = read(json!({"rid": "a", "abort_all": 1}));
        assert_eq!(wrong, Err(Some("abort_all".to_owned())));
    }

    #[test]
    fn waits_have_bounds() {
        let read = |text: &str| {
            let query = HashMap::from([("timeout".to_owned(), text.to_owned())]);
            wait(&query).ok()
        };
        assert_eq!(wait(&HashMap::new()).unwrap(), Duration::ZERO);
        assert_eq!(read("1.5"), Some(Duration::from_millis(1_500)));
        for wrong in ["-1", "601", "nan", "", "5s"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}

//! `/health_generate`: proof that tokens still come out of the engine.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use engine::{EngineHandle, Request, RequestId, SamplingParams};
use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep};

use crate::app::App;
use crate::error::ApiError;
use crate::updates::Numbered;

/// How often a token is looked for.
const POLL: Duration = Duration::from_millis(5);

/// Answers as soon as any request gets a token. A request of its own makes sure that there is one:
/// a single one for all callers, so that they cannot fill the queue.
pub(crate) async fn health_generate(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let before = app.updates.tokens();
    let limit = app.config.limits.health_check_timeout;
    let end = Instant::now() + limit;
    let mut probe = None;
    loop {
        if app.updates.tokens() != before {
            return Ok(Json(json!({"status": "ok"})));
        }
        if let Some(error) = app.not_ready() {
            return Err(error);
        }
        if Instant::now() >= end {
            let message = format!("No token was produced within {limit:?}.");
            return Err(ApiError::unavailable("engine_unavailable", message, 5_000));
        }
        if probe.is_none() {
            probe = Probe::submit(&app);
        }
        sleep(POLL).await;
    }
}

/// A request for one token that no client made and no counter of requests sees.
struct Probe<'a> {
    engine: &'a EngineHandle,
    id: RequestId,
    _updates: UnboundedReceiver<Numbered>,
    _alone: SemaphorePermit<'a>,
}

impl<'a> Probe<'a> {
    /// `None` while another one runs or the engine takes nothing: with a full queue the tokens of
    /// others are proof enough.
    fn submit(app: &'a App) -> Option<Self> {
        let alone = app.probe.try_acquire().ok()?;
        let (sender, updates) = unbounded_channel();
        let request = Request {
            // What waits would hide how quick the engine is.
            priority: i64::MIN,
            prompt: vec![0],
            sampling: SamplingParams::default(),
            max_tokens: 1,
            min_tokens: 0,
            stop_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            trace: false,
            speculative: false,
            shape: None,
            cache_salt: None,
            turn_end: None,
            constraint: None,
        };
        let submitted = app.updates.submit(&app.engine, vec![request], &sender);
        let id = submitted.ok()?.pop()?;
        Some(Probe {
            engine: &app.engine,
            id,
            _updates: updates,
            _alone: alone,
        })
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.engine.abort(self.id);
    }
}

//! What all handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use engine::{EngineHandle, Phase, SubmitError};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::active_requests::ActiveRequests;
use crate::body;
use crate::error::{ApiError, shorten};
use crate::fields::Fields;
use crate::grammar::{self, Form, Grammars};
use crate::ids;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::model_files::ModelFiles;
use crate::queue_wait::wait_ms;
use crate::sequence_group::Planned;
use crate::serve::ServeConfig;
use crate::updates::Updates;
use crate::vocabulary::Encoded;

/// A server's state.
#[derive(Debug)]
pub(crate) struct App {
    /// Options.
    pub(crate) config: ServeConfig,
    /// Tokenizer, template, defaults.
    pub(crate) files: ModelFiles,
    /// Constraints of answers.
    pub(crate) grammars: Grammars,
    /// The engine.
    pub(crate) engine: EngineHandle,
    /// Its news.
    pub(crate) updates: Arc<Updates>,
    /// Requests that the engine works on.
    pub(crate) active: Arc<ActiveRequests>,
    /// Held by the one health probe that may run.
    pub(crate) probe: Semaphore,
    /// Counters.
    pub(crate) metrics: Arc<Metrics>,
    /// Who may use it.
    pub(crate) keys: Keys,
    /// When the process started, in Unix seconds.
    pub(crate) created: u64,
    /// `system_fingerprint`.
    pub(crate) fingerprint: String,
    started: Instant,
    leaving: AtomicBool,
    draining: AtomicBool,
    in_flight: Arc<AtomicUsize>,
    /// Requests that may be parsed, rendered and tokenised at the same time.
    parsing: Arc<Semaphore>,
}

/// A generation request that the drain waits for.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl App {
    /// A server that takes requests.
    pub(crate) fn new(
        config: ServeConfig,
        files: ModelFiles,
        engine: EngineHandle,
        updates: Arc<Updates>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let fingerprint = fingerprint(
            &config.model_path,
            &files.config_text,
            &engine.info().device,
        );
        let end_ids = &files.generation.end_ids;
        App {
            grammars: Grammars::new(config.grammar, &files.vocabulary, end_ids),
            keys: Keys::new(&config.api_keys),
            config,
            files,
            engine,
            updates,
            active: Arc::default(),
            probe: Semaphore::new(1),
            metrics,
            created: ids::unix_seconds(),
            fingerprint,
            started: Instant::now(),
            leaving: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            in_flight: Arc::new(AtomicUsize::new(0)),
            parsing: Arc::new(Semaphore::new(cores)),
        }
    }

    /// Reads the files of keys again; what they were stays where that fails.
    pub(crate) fn read_keys(&self) {
        if self.config.key_source.file.is_none() {
            return;
        }
        match self.config.key_source.read() {
            Ok(keys) => {
                tracing::info!(keys = keys.len(), "read the API keys again");
                self.keys.replace(&keys);
            }
            Err(reason) => {
                tracing::error!("--api-key-file {reason}; the keys are what they were");
            }
        }
    }

    /// Since start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Tells those who ask that requests should go elsewhere, and still takes them.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Whether requests should go elsewhere.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) || self.is_draining()
    }

    /// Takes no more generation requests.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether it takes none.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Generation requests that were let in and are not answered in full.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Whether nothing runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        let stats = self.engine.stats();
        (stats.running, stats.waiting) == (0, 0)
    }

    /// Lets a generation request in.
    pub(crate) fn admit(&self) -> Result<InFlight, ApiError> {
        // Counted first: a drain that begins now waits for it or it sees the drain.
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        let guard = InFlight(Arc::clone(&self.in_flight));
        match self.not_ready() {
            Some(error) => Err(error),
            None => Ok(guard),
        }
    }

    /// Why no request can be taken now.
    pub(crate) fn not_ready(&self) -> Option<ApiError> {
        if self.is_draining() {
            return Some(ApiError::draining());
        }
        let status = self.engine.status();
        match status.phase {
            Phase::Ready => {
                let limit = self.config.limits.health_stale_timeout;
                let silent = !limit.is_zero() && status.heartbeat_age > limit;
                silent.then(|| ApiError::engine_silent(status.heartbeat_age))
            }
            Phase::Init | Phase::Download | Phase::Weights | Phase::Warmup => Some(
                ApiError::unavailable("model_loading", "The model is loading.", 5_000),
            ),
            Phase::Draining => Some(ApiError::draining()),
            Phase::Failed | Phase::Stopped => Some(ApiError::engine_stopped()),
        }
    }

    /// Reads a request's body and makes of its object what `work` does.
    pub(crate) async fn receive<T: Send + 'static>(
        self: &Arc<Self>,
        request_id: &str,
        headers: &HeaderMap,
        body: Body,
        work: impl FnOnce(&App, &Map<String, Value>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let limits = &self.config.limits;
        let bytes = body::read(headers, body, limits.body_bytes_max, limits.body_timeout).await?;
        let read = move |app: &App| work(app, &body::object(&bytes)?);
        self.compute(request_id, read).await
    }

    /// Work for a processor core, away from the threads that serve connections.
    async fn compute<T: Send + 'static>(
        self: &Arc<Self>,
        request_id: &str,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed =
            |error: &dyn std::fmt::Display| ApiError::internal(request_id, &error.to_string());
        let permit = Arc::clone(&self.parsing).acquire_owned().await;
        let permit = permit.map_err(|error| failed(&error))?;
        let app = Arc::clone(self);
        let result = tokio::task::spawn_blocking(move || {
            // Kept to the end of the work, not to that of its client.
            let _permit = permit;
            work(&app)
        })
        .await;
        result.unwrap_or_else(|error| Err(failed(&error)))
    }

    /// Holds all sequences of a request to its form, and to the calls that it allows.
    pub(crate) async fn constrain(
        &self,
        request_id: &str,
        form: Option<Form>,
        mut planned: Vec<Planned>,
    ) -> Result<Vec<Planned>, ApiError> {
        let Some(first) = planned.first() else {
            return Ok(planned);
        };
        let banned = grammar::banned(&first.request);
        let made =
            self.grammars
                .constraint(form, (&first.text, &banned), request_id, &self.metrics);
        if let Some(constraint) = made.await? {
            for plan in &mut planned {
                plan.request.constraint = Some(constraint.clone());
            }
        }
        Ok(planned)
    }

    /// The name to answer with; refuses models that are not served.
    pub(crate) fn model(&self, fields: &Fields) -> Result<String, ApiError> {
        let names = &self.config.served_model_names;
        let first = names.first().cloned().unwrap_or_default();
        fields.required("model")?;
        let asked = fields.string("model")?.unwrap_or_default();
        if names.iter().any(|name| name == asked) {
            return Ok(asked.to_owned());
        }
        if asked.is_empty() || asked == "default" || self.config.any_model_name {
            return Ok(first);
        }
        Err(unknown_model(asked, &first))
    }

    /// Ids of a prompt, which came in the field `param`.
    pub(crate) fn encode(&self, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
        let info = self.engine.info();
        let context = info.context_length.min(info.tokens_total);
        match self.files.vocabulary.encode_within(text, context) {
            Ok(Encoded::Ids(ids)) => Ok(ids),
            Ok(Encoded::TooMany(count)) => Err(ApiError::context_length(context, count, param)),
            Err(reason) => {
                let message = format!("The prompt cannot be tokenised: {}.", shorten(&reason));
                Err(ApiError::invalid("invalid_value", param, message))
            }
        }
    }

    /// Refuses more choices than sequences can ever run.
    pub(crate) fn check_choices(&self, choices: usize) -> Result<(), ApiError> {
        let slots = self.engine.stats().slots_total;
        if choices <= slots {
            return Ok(());
        }
        let message = format!("Invalid 'n': this server runs at most {slots} sequences at once.");
        Err(ApiError::invalid("integer_above_max_value", "n", message))
    }

    /// Refuses more sequences than slots and queue ever hold together.
    pub(crate) fn check_sequences(&self, prompts: usize, choices: usize) -> Result<(), ApiError> {
        let slots = self.engine.stats().slots_total;
        match too_many_sequences(prompts, choices, slots, self.engine.queue_max()) {
            None => Ok(()),
            Some(message) => Err(ApiError::invalid(
                "array_above_max_length",
                "prompt",
                message,
            )),
        }
    }

    /// The client's form of an engine's refusal.
    pub(crate) fn refusal(&self, error: SubmitError) -> ApiError {
        let full = matches!(error, SubmitError::QueueFull { .. });
        let mut error = match (error, self.not_ready()) {
            (SubmitError::Unavailable(_), Some(reason)) => reason,
            (error, _) => error.into(),
        };
        if full {
            let status = self.config.limits.queue_full_status;
            error.status = StatusCode::from_u16(status).unwrap_or(error.status);
            error.retry_ms = Some(wait_ms(&self.engine.stats()));
        }
        error
    }
}

/// What to say about a request whose sequences cannot all be taken, however idle the server is.
/// A `queue` of 0 has no limit.
fn too_many_sequences(
    prompts: usize,
    choices: usize,
    slots: usize,
    queue: usize,
) -> Option<String> {
    let sequences = prompts.saturating_mul(choices);
    let most = slots.saturating_add(queue);
    (queue > 0 && sequences > most).then(|| {
        format!(
            "Invalid 'prompt': {prompts} prompts with n = {choices} make {sequences} sequences, \
             but this server takes at most {most} at a time ({slots} running, {queue} waiting). \
             Send fewer prompts per request or a smaller n."
        )
    })
}

/// 404 about a model.
pub(crate) fn unknown_model(name: &str, served: &str) -> ApiError {
    let message = format!(
        "The model '{}' does not exist. This server has '{served}'.",
        shorten(name)
    );
    ApiError {
        param: Some("model".to_owned()),
        ..ApiError::request(StatusCode::NOT_FOUND, "model_not_found", message)
    }
}

fn fingerprint(model_path: &str, config: &str, device: &str) -> String {
    let mut hash = Sha256::new();
    for part in [model_path, config, device, env!("CARGO_PKG_VERSION")] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let digits: String = digest[..5]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("fp_{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_beyond_slots_and_queue_are_too_many() {
        assert_eq!(too_many_sequences(3, 2, 4, 2), None);
        let message = too_many_sequences(7, 1, 4, 2).unwrap();
        assert!(message.contains("7 sequences"), "{message}");
        assert!(message.contains("at most 6 at a time"), "{message}");
        assert!(too_many_sequences(4, 2, 4, 3).is_some());
        assert_eq!(too_many_sequences(64, 128, 1, 0), None, "no limit");
        assert_eq!(too_many_sequences(64, 128, 1, usize::MAX), None);
    }
}

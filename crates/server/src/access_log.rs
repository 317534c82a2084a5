//! One line in the log per request, written when its answer has been sent or its client is gone.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use axum::response::Response;
use engine::RequestStats;

use crate::generation::Outcome;
use crate::peer::Peer;

/// Status in the log of a request whose client went away.
const CLIENT_GONE: u16 = 499;

/// What the work behind an answer adds to its line; shared by whoever works and whoever logs.
#[derive(Clone, Debug, Default)]
pub(crate) struct GenerationRecord(Arc<Mutex<Totals>>);

#[derive(Clone, Debug, Default)]
struct Totals {
    answer_id: Option<String>,
    prompt_tokens: Option<usize>,
    cached_tokens: usize,
    output_tokens: usize,
    /// Of the first sequence that ended, unless another one ended differently.
    finish_reason: Option<&'static str>,
    first_token_ms: Option<f64>,
    queue_ms: Option<f64>,
    /// Of the sequences of which the engine has reported, if any.
    passes: Option<RequestStats>,
    /// Of the error that ended a stream.
    code: Option<&'static str>,
}

impl GenerationRecord {
    /// `id` of the answer.
    pub(crate) fn answer(&self, id: &str) {
        self.totals().answer_id = Some(id.to_owned());
    }

    /// Tokens of all prompts.
    pub(crate) fn prompt(&self, tokens: usize) {
        self.totals().prompt_tokens = Some(tokens);
    }

    /// A sequence has left the queue; `cached` tokens of all prompts came from the prefix cache.
    pub(crate) fn started(&self, cached: usize, queue_ms: f64) {
        let mut totals = self.totals();
        totals.cached_tokens = cached;
        totals.queued(queue_ms);
    }

    /// The first token came.
    pub(crate) fn first_token(&self, ms: f64) {
        self.totals().first_token_ms = Some(ms);
    }

    /// Output tokens of all sequences so far.
    pub(crate) fn output(&self, tokens: usize) {
        self.totals().output_tokens = tokens;
    }

    /// A sequence has ended, and the engine has said how.
    pub(crate) fn sequence(&self, outcome: &Outcome) {
        let mut totals = self.totals();
        totals.ended(outcome.finish_reason());
        let stats = &outcome.stats;
        totals.queued(stats.queue_ms);
        let sum = totals.passes.get_or_insert_default();
        sum.steps += stats.steps;
        sum.accepted += stats.accepted;
    }

    /// A sequence was given up.
    pub(crate) fn cut(&self, reason: &'static str, queue_ms: f64) {
        let mut totals = self.totals();
        totals.ended(reason);
        totals.queued(queue_ms);
    }

    /// An error ended a stream whose status was sent long ago.
    pub(crate) fn failed(&self, code: Option<&'static str>) {
        self.totals().code = code;
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Totals {
    fn ended(&mut self, reason: &'static str) {
        self.finish_reason = match self.finish_reason {
            Some(other) if other != reason => Some("several"),
            _ => Some(reason),
        };
    }

    /// The longest time counts.
    fn queued(&mut self, ms: f64) {
        self.queue_ms = Some(self.queue_ms.unwrap_or_default().max(ms));
    }
}

/// The line of one request. Dropped before [`Self::answered`] or before the end of the body: the
/// client is gone.
#[derive(Debug)]
pub(crate) struct AccessLine {
    request_id: String,
    method: &'static str,
    path: String,
    peer: Option<Peer>,
    began: Instant,
    /// Status and code once there is an answer.
    answer: Option<(StatusCode, Option<&'static str>)>,
    record: GenerationRecord,
    complete: bool,
}

impl AccessLine {
    /// A request came in.
    pub(crate) fn new(
        request_id: &str,
        method: &'static str,
        path: &str,
        peer: Option<Peer>,
    ) -> Self {
        AccessLine {
            request_id: request_id.to_owned(),
            method,
            path: crate::error::shorten(path),
            peer,
            began: Instant::now(),
            answer: None,
            record: GenerationRecord::default(),
            complete: false,
        }
    }

    /// There is an answer; the line is written when its body has been sent.
    pub(crate) fn answered(
        mut self,
        mut response: Response,
        code: Option<&'static str>,
    ) -> Response {
        if let Some(record) = response.extensions_mut().remove::<GenerationRecord>() {
            self.record = record;
        }
        self.answer = Some((response.status(), code));
        response.map(|body| {
            // Nothing is read from a body without bytes.
            self.complete = body.is_end_stream() || self.method == "HEAD";
            Body::new(LoggedBody { body, line: self })
        })
    }
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        let totals = self.record.totals().clone();
        let (status, code) = match (self.complete, self.answer) {
            (true, Some((status, code))) => (status.as_u16(), code.or(totals.code)),
            _ => (CLIENT_GONE, None),
        };
        let generates = totals.prompt_tokens.is_some();
        // Whoever works may not have noticed yet that the client is gone.
        let gone = generates && status == CLIENT_GONE;
        let finish_reason = totals.finish_reason.or(gone.then_some("abort"));
        let passes = totals.passes.as_ref();
        tracing::info!(
            request_id = self.request_id,
            completion_id = totals.answer_id,
            method = self.method,
            path = self.path,
            status,
            code,
            prompt_tokens = totals.prompt_tokens,
            cached_tokens = generates.then_some(totals.cached_tokens),
            output_tokens = generates.then_some(totals.output_tokens),
            finish_reason,
            queue_ms = totals.queue_ms.map(rounded),
            ttft_ms = totals.first_token_ms.map(rounded),
            total_ms = rounded(self.began.elapsed().as_secs_f64() * 1e3),
            accept_length = passes.map(|sum| rounded(sum.mean_acceptance_length())),
            client = self.peer.map(|peer| peer.ip().to_string()),
            "answered"
        );
    }
}

/// A number for people: three decimals.
pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// A body whose end is the end of the request.
struct LoggedBody {
    body: Body,
    line: AccessLine,
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.line.complete = true;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

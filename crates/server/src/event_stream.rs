//! Server-sent events: order, keep-alive, slow and vanished readers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::Value;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::app::{App, InFlight};
use crate::error::ApiError;
use crate::metrics::ActiveHttp;
use crate::sequence_group::{News, SequenceGroup};

/// Writes that may wait for a client to read them.
const PENDING_MAX: usize = 1_024;

/// Turns news into the chunks of one API.
pub(crate) trait StreamFormat: Send + 'static {
    /// Whether every event is named by the `type` of its chunk.
    const NAMED: bool = false;
    /// What is sent while there is nothing to say.
    const KEEP_ALIVE: &'static str = ": keep-alive\n\n";
    /// What follows the last chunk.
    const DONE: &'static str = "data: [DONE]\n\n";

    /// Appends what comes before all news.
    fn begin(&mut self, _group: &SequenceGroup, _chunks: &mut Vec<Value>) {}

    /// Appends what `news` means; `group` is the state after it.
    fn news(&mut self, news: News, group: &SequenceGroup, chunks: &mut Vec<Value>);

    /// Appends what follows the last choice's end.
    fn end(&mut self, group: &SequenceGroup, chunks: &mut Vec<Value>);

    /// Appends an error, after which nothing follows.
    fn failed(&mut self, error: &ApiError, _group: &SequenceGroup, chunks: &mut Vec<Value>) {
        chunks.push(error.object());
    }
}

/// Waits for the engine's first word or the first keep-alive, whichever comes first, so that quick
/// failures have a status of their own; then streams.
pub(crate) async fn respond<F: StreamFormat>(
    app: &Arc<App>,
    in_flight: InFlight,
    mut group: SequenceGroup,
    mut format: F,
) -> Result<Response, ApiError> {
    let limits = &app.config.limits;
    let patience = match limits.keep_alive_interval {
        Duration::ZERO => Duration::MAX,
        interval => interval,
    };
    let first = timeout(patience, group.next()).await.ok();
    let first = match first {
        Some(Some(Err(error))) => return Err(error),
        Some(Some(Ok(news))) => Some(news),
        Some(None) | None => None,
    };
    let record = group.record();
    let (sender, receiver) = channel(PENDING_MAX);
    let silent = first.is_none();
    let cut = Arc::new(AtomicBool::new(false));
    let mut writer = Writer {
        sender,
        cut: Arc::clone(&cut),
        slow: limits.slow_client_timeout,
        keep_alive: patience,
        written: Instant::now(),
    };
    let active = ActiveHttp::new(Arc::clone(&app.metrics));
    tokio::spawn(async move {
        let mut chunks = Vec::new();
        format.begin(&group, &mut chunks);
        // The headers go out because nothing happened for long: something has to be said now.
        if !silent || writer.write(text_of::<F>(&mut chunks, F::KEEP_ALIVE)).await {
            writer.run(group, format, first, chunks).await;
        }
        drop((in_flight, active));
    });
    // A stream that was given up must not look as if it had ended well.
    let broken = move |()| {
        let cut = cut.load(Ordering::Acquire);
        cut.then(|| Err(io::Error::from(io::ErrorKind::TimedOut)))
    };
    let end = tokio_stream::once(()).filter_map(broken);
    let body = Body::from_stream(ReceiverStream::new(receiver).map(Ok).chain(end));
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response.extensions_mut().insert(record);
    Ok(response)
}

/// Chunks as they are on the wire, and what follows them.
fn text_of<F: StreamFormat>(chunks: &mut Vec<Value>, then: &str) -> Bytes {
    let mut text = String::new();
    for chunk in chunks.drain(..) {
        if let (true, Some(name)) = (F::NAMED, chunk["type"].as_str()) {
            text.push_str("event: ");
            text.push_str(name);
            text.push('\n');
        }
        text.push_str("data: ");
        text.push_str(&chunk.to_string());
        text.push_str("\n\n");
    }
    text.push_str(then);
    text.into()
}

struct Writer {
    sender: Sender<Bytes>,
    /// Set when the client does not read.
    cut: Arc<AtomicBool>,
    slow: Duration,
    keep_alive: Duration,
    /// When something was last written: news need not have any text to show.
    written: Instant,
}

impl Writer {
    /// Writes until the end; returning early drops the group, which ends its work.
    async fn run<F: StreamFormat>(
        mut self,
        mut group: SequenceGroup,
        mut format: F,
        mut first: Option<News>,
        mut chunks: Vec<Value>,
    ) {
        loop {
            let news = match first.take() {
                Some(news) => Some(Ok(news)),
                None => match self.wait::<F>(&mut group).await {
                    Some(news) => news,
                    None => return,
                },
            };
            let last = match news {
                Some(Ok(news)) => {
                    format.news(news, &group, &mut chunks);
                    false
                }
                Some(Err(error)) => {
                    group.record().failed(error.code);
                    format.failed(&error, &group, &mut chunks);
                    true
                }
                None => {
                    format.end(&group, &mut chunks);
                    true
                }
            };
            // One write for all of it: the first token never lags behind its role chunk.
            let bytes = text_of::<F>(&mut chunks, if last { F::DONE } else { "" });
            if !bytes.is_empty() && !self.write(bytes).await || last {
                return;
            }
        }
    }

    /// The next news; comments while there is nothing to show. `None`: the client is gone.
    async fn wait<F: StreamFormat>(
        &mut self,
        group: &mut SequenceGroup,
    ) -> Option<Option<Result<News, ApiError>>> {
        loop {
            let rest = self.keep_alive.saturating_sub(self.written.elapsed());
            if rest.is_zero() {
                if !self
                    .write(Bytes::from_static(F::KEEP_ALIVE.as_bytes()))
                    .await
                {
                    return None;
                }
                continue;
            }
            tokio::select! {
                biased;
                () = self.sender.closed() => return None,
                news = timeout(rest, group.next()) => if let Ok(news) = news {
                    return Some(news);
                },
            }
        }
    }

    /// Whether the client still reads.
    async fn write(&mut self, bytes: Bytes) -> bool {
        let sent = match self.slow {
            Duration::ZERO => self.sender.send(bytes).await.is_ok(),
            limit => self.sender.send_timeout(bytes, limit).await.is_ok(),
        };
        if !sent {
            self.cut.store(true, Ordering::Release);
        }
        self.written = Instant::now();
        sent
    }
}

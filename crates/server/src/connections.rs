//! Accepts connections and serves HTTP/1.1 and HTTP/2 without TLS on each.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_io_timeout::TimeoutStream;

use crate::peer::Peer;

/// Longer than proxies keep idle connections, so that they close first.
const IDLE: Duration = Duration::from_secs(90);
/// A connection so young may have a request under way that was not read yet: closing it now would
/// be a reset instead of an answer.
const FRESH: Duration = Duration::from_millis(500);
/// Pause after a failed accept: usually the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    closing: watch::Sender<bool>,
    open: mpsc::Receiver<()>,
}

impl Connections {
    /// Accepts until the runtime ends. A client that takes nothing of what it is sent for as long as
    /// `slow` is closed (zero = never).
    pub(crate) fn serve(listener: TcpListener, router: Router, slow: Duration) -> Self {
        let (closing, closes) = watch::channel(false);
        let (guard, open) = mpsc::channel(1);
        tokio::spawn(accept(listener, router, slow, closes, guard));
        Connections { closing, open }
    }

    /// Closes idle connections now and busy ones after their response. New ones are still served,
    /// so that they hear why they cannot be.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until those connections are gone, up to a limit.
    pub(crate) async fn closed(&mut self, limit: Duration) {
        let _ = timeout(limit, self.open.recv()).await;
    }
}

async fn accept(
    listener: TcpListener,
    router: Router,
    slow: Duration,
    mut closes: watch::Receiver<bool>,
    guard: mpsc::Sender<()>,
) {
    // Dropped when closing begins: later connections are not waited for.
    let mut guard = Some(guard);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing_begins(&mut closes), if guard.is_some() => {
                guard = None;
                continue;
            }
        };
        match accepted {
            Ok((stream, address)) => {
                let guard = guard.as_ref().map(|guard| (closes.clone(), guard.clone()));
                let peer = Peer(address);
                tokio::spawn(connection(stream, peer, router.clone(), slow, guard));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: Peer,
    router: Router,
    slow: Duration,
    guard: Option<(watch::Receiver<bool>, mpsc::Sender<()>)>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE);
    builder.http2().timer(TokioTimer::new());
    let service = TowerToHyperService::new(peer.tell(router));
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout((!slow.is_zero()).then_some(slow));
    let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let settled = Instant::now() + FRESH;
    let result = match guard {
        None => connection.await,
        Some((mut closes, guard)) => {
            let result = tokio::select! {
                result = connection.as_mut() => result,
                () = async {
                    closing_begins(&mut closes).await;
                    tokio::time::sleep_until(settled).await;
                } => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            drop(guard);
            result
        }
    };
    if let Err(error) = result {
        tracing::debug!(error, "a connection ended early");
    }
}

/// Also the end of the server itself is the beginning of the end of its connections.
async fn closing_begins(closes: &mut watch::Receiver<bool>) {
    let _ = closes.wait_for(|closing| *closing).await;
}

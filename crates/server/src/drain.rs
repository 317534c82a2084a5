//! The end of a server that is told to end.

use std::time::{Duration, Instant};

use engine::Phase;
use tokio::sync::oneshot;

use crate::access_log::rounded;
use crate::app::App;
use crate::connections::Connections;
use crate::serve::{FLUSH, POLL, ServeError};
use crate::signals::Signals;

/// What is left for goodbyes after a second signal.
const HASTE: Duration = Duration::from_secs(1);

/// First sends requests elsewhere while it still takes them, then lets those that run and wait
/// end, up to a limit. A second signal ends the wait.
pub(crate) async fn drain(
    app: &App,
    connections: &mut Connections,
    signals: &mut Signals,
    ended: &mut oneshot::Receiver<()>,
) -> Result<(), ServeError> {
    let config = &app.config;
    let began = Instant::now();
    app.leave();
    tracing::info!(requests = app.in_flight(), "draining");
    let waiting = async {
        // A sleep of no time is one of a millisecond or more.
        if !config.drain_delay.is_zero() {
            tokio::time::sleep(config.drain_delay).await;
        }
        app.drain();
        connections.close();
        tokio::time::timeout(config.drain_timeout, until_idle(app))
            .await
            .is_ok()
    };
    let (idle, stopped) = tokio::select! {
        idle = waiting => (idle, false),
        () = signals.end(app) => (false, true),
    };
    app.drain();
    connections.close();
    let cut = match idle {
        true => 0,
        false => app.in_flight(),
    };
    match cut {
        0 => app.engine.drain(),
        _ => app.engine.shutdown(),
    }
    let patience = match stopped {
        true => HASTE,
        false => FLUSH,
    };
    connections.closed(patience).await;
    // A receiver that heard of the end before must not be asked again.
    if app.engine.status().phase != Phase::Failed {
        let _ = tokio::time::timeout(patience, ended).await;
    }
    let status = app.engine.status();
    let seconds = began.elapsed().as_secs_f64();
    tracing::info!(
        seconds = rounded(seconds),
        requests_cut_off = cut,
        "drained"
    );
    match (status.error, cut) {
        (Some(reason), _) => Err(ServeError::Engine(reason)),
        (None, 0) => Ok(()),
        (None, cut) if stopped => Err(ServeError::Stopped(cut)),
        (None, cut) => Err(ServeError::DrainCut(cut)),
    }
}

async fn until_idle(app: &App) {
    while app.in_flight() > 0 {
        tokio::time::sleep(POLL).await;
    }
}

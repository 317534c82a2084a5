//! Signals of the process.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::App;

/// SIGTERM and SIGINT end the server, SIGHUP reads its files of keys again.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Also held so that a lost terminal does not end the server.
    hangup: Signal,
}

impl Signals {
    /// From now on they do nothing else.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one that ends the server; obeys the others meanwhile.
    pub(crate) async fn end(&mut self, app: &App) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                hangup = self.hangup.recv() => match hangup {
                    Some(()) => app.read_keys(),
                    // No more will come.
                    None => std::future::pending().await,
                },
            }
        }
    }
}

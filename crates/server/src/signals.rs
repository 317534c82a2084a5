//! Signals of the process.

use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::App;
use crate::cli::STOPPED_EXIT;

/// What the orderly end gets after a second signal.
const LAST: Duration = Duration::from_secs(8);

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
        end_after_second()?;
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

/// The second signal ends the process even if the server is stuck: a thread of its own sees to it.
fn end_after_second() -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if signals.forever().nth(1).is_some() {
                std::thread::sleep(LAST);
                signal_hook::low_level::exit(i32::from(STOPPED_EXIT));
            }
        })?;
    Ok(())
}

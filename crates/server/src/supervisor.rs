//! Watches the engine and keeps the service manager informed, from a thread of its own: neither a
//! stuck engine nor a stuck server can stop it.

mod turn;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use engine::Phase;
use sd_notify::NotifyState;
use tokio::sync::oneshot;

use crate::app::App;
use crate::cli::WATCHDOG_EXIT;
use crate::stage::Stage;
use crate::usage;
use turn::{Notice, Turns, View};

/// How often it looks.
const LOOK: Duration = Duration::from_secs(1);
/// What the server has to answer its own question within.
const ANSWER: Duration = Duration::from_secs(2);
/// What the ordinary end of the process gets once the engine hangs. It may hang too: at the exit
/// of a process, a driver waits for its device.
const EXIT: Duration = Duration::from_secs(5);

/// Ends with the server.
#[derive(Debug)]
pub(crate) struct Supervisor {
    stopping: Option<Sender<()>>,
    /// Lives as long as the server is served.
    _running: Sender<()>,
}

impl Supervisor {
    /// Starts the thread. The receiver hears how long the engine was silent if that is for too
    /// long, unless systemd's watchdog runs: that one is starved instead, and gets a core dump.
    pub(crate) fn start(
        app: &Arc<App>,
        name: &str,
        address: SocketAddr,
    ) -> std::io::Result<(Self, oneshot::Receiver<Duration>)> {
        let (stopping, stops) = mpsc::channel();
        let (stalled, stall) = oneshot::channel();
        let ping = ping();
        let config = &app.config;
        let limit = config.limits.watchdog_timeout;
        let turns = Turns::new(limit, ping, serving(app, name, address.port()));
        let watch = Watch {
            app: Arc::clone(app),
            address: own(address),
            look: ping.map_or(LOOK, |ping| (ping / 4).min(LOOK)),
            stops: config.drain_delay.saturating_add(config.drain_timeout),
            turns,
            hung: false,
        };
        let running = stopping.clone();
        std::thread::Builder::new()
            .name("supervisor".into())
            .spawn(move || watch.run(&stops, stalled))?;
        let supervisor = Supervisor {
            stopping: Some(stopping),
            _running: running,
        };
        Ok((supervisor, stall))
    }

    /// The server was told to end.
    pub(crate) fn stopping(&mut self) {
        if let Some(stopping) = self.stopping.take() {
            // The thread ends only with us or with the process.
            let _ = stopping.send(());
        }
    }
}

struct Watch {
    app: Arc<App>,
    /// Where the server answers from here.
    address: SocketAddr,
    look: Duration,
    /// How long an orderly end may take.
    stops: Duration,
    turns: Turns,
    /// The engine hung when last looked at.
    hung: bool,
}

impl Watch {
    fn run(mut self, stops: &mpsc::Receiver<()>, stalled: oneshot::Sender<Duration>) {
        let mut stalled = Some(stalled);
        loop {
            let view = view(&self.app);
            let address = self.address;
            let notices = self.turns.turn(Instant::now(), &view, || answers(address));
            tell(&notices);
            let hung = std::mem::replace(&mut self.hung, self.turns.hangs(&view));
            if self.hung && !hung {
                tracing::error!(seconds = view.silence.as_secs(), "the engine hangs");
            }
            if self.turns.must_end(&view) {
                if let Some(stalled) = stalled.take() {
                    // Whoever hears of it ends the process; if nobody does, we do.
                    let _ = stalled.send(view.silence);
                }
                std::thread::sleep(EXIT);
                signal_hook::low_level::exit(i32::from(WATCHDOG_EXIT));
            }
            match stops.recv_timeout(self.look) {
                Ok(()) => self.turns.stop(self.stops),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// How often a watchdog wants to hear from this process, if there is one.
fn ping() -> Option<Duration> {
    // Without a socket nobody listens.
    std::env::var_os("NOTIFY_SOCKET")?;
    let period = sd_notify::watchdog_enabled()?;
    (!period.is_zero()).then_some(period / 2)
}

fn view(app: &App) -> View {
    let status = app.engine.status();
    let stats = app.engine.stats();
    View {
        stage: Stage::of(&status).map(|stage| (stage.name, stage.line())),
        ready: status.phase == Phase::Ready,
        gone: matches!(status.phase, Phase::Failed | Phase::Stopped),
        silence: status.heartbeat_age,
        running: stats.running,
        waiting: stats.waiting,
        tokens_per_second: stats.tokens_per_second,
        steps: stats.drafts,
        accepted: stats.accepted_tokens,
        in_flight: app.in_flight(),
    }
}

/// The line about a server at work.
fn serving(app: &App, name: &str, port: u16) -> String {
    let info = app.engine.info();
    let algorithm = usage::algorithm(info.algorithm);
    let budget = match usage::budget(info) {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => format!(" b={text}"),
        number => format!(" b={number}"),
    };
    format!("Serving {name} {algorithm}{budget} on :{port}")
}

/// Without a service manager nothing is sent.
fn tell(notices: &[Notice]) {
    if notices.is_empty() {
        return;
    }
    let usec = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let states: Vec<NotifyState<'_>> = notices
        .iter()
        .map(|notice| match notice {
            Notice::Ready => NotifyState::Ready,
            Notice::Stopping => NotifyState::Stopping,
            Notice::Status(text) => NotifyState::Status(text),
            Notice::Extend(time) => NotifyState::ExtendTimeoutUsec(usec(*time)),
            Notice::Alive => NotifyState::Watchdog,
        })
        .collect();
    if let Err(error) = sd_notify::notify(&states) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

/// A server that listens everywhere also listens here.
fn own(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Whether the server says of itself that it is alive.
fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut line = [0; 12];
        stream.read_exact(&mut line)?;
        Ok(&line == b"HTTP/1.1 200")
    };
    ask().unwrap_or_else(|error| {
        tracing::warn!(%error, "the server does not answer itself");
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_asked_where_it_listens() {
        let at = |text: &str| own(text.parse().unwrap()).to_string();
        assert_eq!(at("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(at("[::]:80"), "[::1]:80");
        assert_eq!(at("10.1.2.3:80"), "10.1.2.3:80");
    }

    #[test]
    fn only_a_server_that_answers_well_is_alive() {
        for (answer, alive) in [
            ("HTTP/1.1 200 OK\r\n\r\n", true),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n", false),
            ("", false),
        ] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                let _ = stream.read(&mut [0; 256]);
            });
            assert_eq!(answers(address), alive, "{answer}");
            server.join().unwrap();
        }
    }
}

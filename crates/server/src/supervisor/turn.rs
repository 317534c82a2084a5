//! What there is to say at a time, as a function of what is seen.

use std::time::{Duration, Instant};

/// How often a service manager hears how far a load is, and is asked for more time.
const LOADING: Duration = Duration::from_secs(5);
/// Time that a load that goes on asks for, and silence after which it asks no more.
const EXTENSION: Duration = Duration::from_secs(60);
const LOAD_SILENCE: Duration = Duration::from_secs(30);
/// How often a server at work says how it is.
const SERVING: Duration = Duration::from_secs(10);
/// The same of one that ends.
const DRAINING: Duration = Duration::from_secs(1);
/// What an orderly end takes besides the drain.
const STOP_SLACK: Duration = Duration::from_secs(15);

/// What is seen of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// What it is doing before it is ready: a name, and a line about it.
    pub(super) stage: Option<(&'static str, String)>,
    /// It takes requests.
    pub(super) ready: bool,
    /// The engine has ended, which others see to.
    pub(super) gone: bool,
    /// Since the engine's last sign of life.
    pub(super) silence: Duration,
    /// Sequences in a slot.
    pub(super) running: usize,
    /// Sequences in the queue.
    pub(super) waiting: usize,
    /// Output of the last seconds.
    pub(super) tokens_per_second: f64,
    /// Verify passes since start.
    pub(super) steps: u64,
    /// Accepted nodes since start.
    pub(super) accepted: u64,
    /// Requests that are not answered in full.
    pub(super) in_flight: usize,
}

/// A message to the service manager.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Notice {
    Ready,
    Stopping,
    Status(String),
    Extend(Duration),
    Alive,
}

/// Remembers what was said.
#[derive(Debug)]
pub(super) struct Turns {
    /// Silence of the engine that is too long; 0 = none is.
    limit: Duration,
    /// How often a watchdog wants to hear from a healthy server.
    ping: Option<Duration>,
    serving: String,
    was_ready: bool,
    /// Time that the end may take, until that was said.
    stops: Option<Duration>,
    stopping: bool,
    last_stage: Option<&'static str>,
    next_status: Option<Instant>,
    next_ping: Option<Instant>,
    /// Steps and accepted nodes as of the last status.
    counted: (u64, u64),
}

impl Turns {
    /// Before anything was said; `serving` is the status of a server that has just become ready.
    pub(super) fn new(limit: Duration, ping: Option<Duration>, serving: String) -> Self {
        Turns {
            limit,
            ping,
            serving,
            was_ready: false,
            stops: None,
            stopping: false,
            last_stage: None,
            next_status: None,
            next_ping: None,
            counted: (0, 0),
        }
    }

    /// The server ends, which takes so long at most.
    pub(super) fn stop(&mut self, time: Duration) {
        self.stops = Some(time.saturating_add(STOP_SLACK));
        self.stopping = true;
        self.next_status = None;
    }

    /// Whether the engine has been silent for too long.
    pub(super) fn hangs(&self, view: &View) -> bool {
        !view.gone && !self.limit.is_zero() && view.silence > self.limit
    }

    /// Whether the process has to end by itself: a watchdog outside would see to that, and one
    /// that drains has a limit of its own.
    pub(super) fn must_end(&self, view: &View) -> bool {
        self.hangs(view) && self.ping.is_none() && !self.stopping
    }

    /// What to say now; `answers` asks the server whether it is alive.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        view: &View,
        answers: impl FnOnce() -> bool,
    ) -> Vec<Notice> {
        let mut notices = Vec::new();
        if self.stopping {
            self.say_stopping(now, view, &mut notices);
        } else if view.ready {
            self.say_serving(now, view, &mut notices);
        } else {
            self.say_loading(now, view, &mut notices);
        }
        // A watchdog runs from the moment a service is ready.
        let due = self.next_ping.is_none_or(|next| now >= next);
        if let (Some(ping), true, true) = (self.ping, self.was_ready, due)
            && !self.hangs(view)
            && answers()
        {
            notices.push(Notice::Alive);
            self.next_ping = Some(now + ping);
        }
        notices
    }

    fn status_due(&self, now: Instant) -> bool {
        self.next_status.is_none_or(|next| now >= next)
    }

    fn say_loading(&mut self, now: Instant, view: &View, notices: &mut Vec<Notice>) {
        let Some((stage, line)) = &view.stage else {
            return;
        };
        let begins = self.last_stage.replace(stage) != Some(stage);
        if !begins && !self.status_due(now) {
            return;
        }
        notices.push(Notice::Status(line.clone()));
        if view.silence < LOAD_SILENCE {
            notices.push(Notice::Extend(EXTENSION));
        }
        self.next_status = Some(now + LOADING);
    }

    fn say_serving(&mut self, now: Instant, view: &View, notices: &mut Vec<Notice>) {
        if !self.was_ready {
            self.was_ready = true;
            notices.push(Notice::Ready);
            notices.push(Notice::Status(self.serving.clone()));
        } else if self.status_due(now) {
            notices.push(Notice::Status(self.at_work(view)));
        } else {
            return;
        }
        self.counted = (view.steps, view.accepted);
        self.next_status = Some(now + SERVING);
    }

    fn at_work(&self, view: &View) -> String {
        let steps = view.steps.saturating_sub(self.counted.0);
        let accepted = view.accepted.saturating_sub(self.counted.1);
        let mut line = format!(
            "{} running, {} waiting, {:.0} tok/s",
            view.running, view.waiting, view.tokens_per_second
        );
        if steps > 0 {
            let length = 1.0 + accepted as f64 / steps as f64;
            line.push_str(&format!(", accept {length:.1}"));
        }
        line
    }

    fn say_stopping(&mut self, now: Instant, view: &View, notices: &mut Vec<Notice>) {
        if let Some(time) = self.stops.take() {
            notices.push(Notice::Stopping);
            notices.push(Notice::Extend(time));
        }
        if self.status_due(now) {
            let left = match view.in_flight {
                1 => "1 request left".to_owned(),
                count => format!("{count} requests left"),
            };
            notices.push(Notice::Status(format!("Draining, {left}")));
            self.next_status = Some(now + DRAINING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn turns(ping: Option<u64>) -> Turns {
        let ping = ping.map(Duration::from_secs);
        Turns::new(300 * SECOND, ping, "Serving".to_owned())
    }

    fn status(text: &str) -> Notice {
        Notice::Status(text.to_owned())
    }

    fn loading(stage: &'static str, line: &str, silence: u32) -> View {
        View {
            stage: Some((stage, line.to_owned())),
            silence: silence * SECOND,
            ..View::default()
        }
    }

    fn ready() -> View {
        View {
            ready: true,
            ..View::default()
        }
    }

    #[test]
    fn a_load_asks_for_time_as_long_as_it_goes_on() {
        let mut turns = turns(Some(10));
        let began = Instant::now();
        let mut at = |seconds, view| turns.turn(began + seconds * SECOND, &view, || true);
        let extended = Notice::Extend(60 * SECOND);
        let both = |text| vec![status(text), extended.clone()];
        assert_eq!(at(0, loading("a", "Loading 1 %", 0)), both("Loading 1 %"));
        assert_eq!(at(4, loading("a", "Loading 9 %", 0)), []);
        assert_eq!(at(5, loading("a", "Loading 12 %", 0)), both("Loading 12 %"));
        assert_eq!(at(6, loading("b", "Warming up", 0)), both("Warming up"));
        assert_eq!(at(8, loading("b", "Warming up", 0)), []);
        let hangs = at(45, loading("b", "Warming up", 39));
        assert_eq!(hangs, [status("Warming up")], "no more time for a hang");
        let first = at(50, ready());
        assert_eq!(first, [Notice::Ready, status("Serving"), Notice::Alive]);
    }

    #[test]
    fn a_server_at_work_says_how_it_is() {
        let mut turns = turns(None);
        let began = Instant::now();
        turns.turn(began, &ready(), || panic!("no watchdog asks"));
        let view = View {
            running: 2,
            waiting: 3,
            tokens_per_second: 123.6,
            steps: 100,
            accepted: 490,
            ..ready()
        };
        assert_eq!(turns.turn(began + 9 * SECOND, &view, || true), []);
        let line = status("2 running, 3 waiting, 124 tok/s, accept 5.9");
        assert_eq!(turns.turn(began + 10 * SECOND, &view, || true), [line]);
        let idle = View {
            running: 0,
            waiting: 0,
            tokens_per_second: 0.0,
            ..view
        };
        let line = status("0 running, 0 waiting, 0 tok/s");
        assert_eq!(turns.turn(began + 20 * SECOND, &idle, || true), [line]);
    }

    #[test]
    fn only_a_healthy_server_is_said_to_be_alive() {
        let mut turns = turns(Some(10));
        let began = Instant::now();
        let mut alive = |seconds, silence: u32, answers: bool| {
            let view = View {
                silence: silence * SECOND,
                ..ready()
            };
            let now = began + seconds * SECOND;
            let notices = turns.turn(now, &view, || answers);
            notices.contains(&Notice::Alive)
        };
        assert!(alive(0, 0, true));
        assert!(!alive(9, 0, true), "not yet");
        assert!(alive(10, 300, true), "as long as it may be silent");
        assert!(!alive(20, 301, true), "the engine hangs");
        assert!(!alive(21, 0, false), "the server does not answer");
        assert!(alive(22, 0, true), "as soon as it is well again");
        assert!(!alive(31, 0, true));
    }

    #[test]
    fn a_hang_ends_the_process_unless_somebody_else_does() {
        let view = View {
            silence: 301 * SECOND,
            ..ready()
        };
        assert!(turns(None).must_end(&view));
        assert!(!turns(Some(10)).must_end(&view), "the watchdog's");
        let quiet = View {
            silence: 299 * SECOND,
            ..ready()
        };
        assert!(!turns(None).must_end(&quiet));
        let gone = View {
            gone: true,
            ready: false,
            ..view.clone()
        };
        assert!(!turns(None).must_end(&gone), "it has ended by itself");
        let mut off = Turns::new(Duration::ZERO, None, String::new());
        assert!(!off.must_end(&view), "switched off");
        off.stop(SECOND);
        let mut stopping = turns(None);
        stopping.stop(SECOND);
        assert!(!stopping.must_end(&view), "the drain has a limit");
    }

    #[test]
    fn an_end_is_announced_at_once_and_counted_down() {
        let mut turns = turns(Some(10));
        let began = Instant::now();
        turns.turn(began, &ready(), || true);
        turns.stop(60 * SECOND);
        let left = |in_flight| View {
            in_flight,
            ..View::default()
        };
        let first = turns.turn(began, &left(2), || true);
        let lines = [
            Notice::Stopping,
            Notice::Extend(75 * SECOND),
            status("Draining, 2 requests left"),
        ];
        assert_eq!(first, lines);
        let later = turns.turn(began + 11 * SECOND, &left(1), || true);
        assert_eq!(later, [status("Draining, 1 request left"), Notice::Alive]);
    }
}

//! What the engine thread and its handles share: phase, counters, heartbeat.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::LoadProgress;

use crate::stats::Counters;
use crate::{EngineStats, FailureCause, ModelInfo, Phase, RequestId, Status};

/// The engine's life. Requests are taken under its lock, so none slips in after an end.
#[derive(Debug)]
pub(crate) struct Life {
    /// Where it is.
    pub(crate) phase: Phase,
    /// Why it failed.
    pub(crate) error: Option<Failure>,
    entered: Instant,
    past: Vec<(Phase, Duration)>,
    step_times_ms: Vec<(String, f64)>,
    last_id: u64,
}

/// Why an engine ended, and whose fault that is.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) cause: FailureCause,
    pub(crate) reason: String,
}

impl Life {
    /// The next request's id.
    pub(crate) fn mint(&mut self) -> RequestId {
        self.last_id += 1;
        RequestId(self.last_id)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Facts.
    pub(crate) info: ModelInfo,
    /// Requests waiting at most; 0 = no limit.
    pub(crate) queue_max: usize,
    /// Requests that were taken and are not in a slot yet.
    waiting: AtomicUsize,
    /// Tokens of their prompts.
    waiting_tokens: AtomicUsize,
    /// Bytes loaded.
    pub(crate) progress: LoadProgress,
    /// Bytes downloaded.
    pub(crate) download: LoadProgress,
    life: Mutex<Life>,
    counters: Mutex<Counters>,
    born: Instant,
    beat_ms: AtomicU64,
    /// Bytes of both when last looked at: loading counts as a sign of life.
    progress_seen: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Before loading.
    pub(crate) fn new(info: ModelInfo, queue_max: usize, pages: usize, slots: usize) -> Self {
        Shared {
            info,
            queue_max,
            waiting: AtomicUsize::new(0),
            waiting_tokens: AtomicUsize::new(0),
            progress: LoadProgress::default(),
            download: LoadProgress::default(),
            life: Mutex::new(Life {
                phase: Phase::Init,
                error: None,
                entered: Instant::now(),
                past: Vec::new(),
                step_times_ms: Vec::new(),
                last_id: 0,
            }),
            counters: Mutex::new(Counters::new(pages, slots)),
            born: Instant::now(),
            beat_ms: AtomicU64::new(0),
            progress_seen: AtomicU64::new(0),
        }
    }

    /// Phase and ids, locked.
    pub(crate) fn life(&self) -> MutexGuard<'_, Life> {
        lock(&self.life)
    }

    /// Counters, locked.
    pub(crate) fn counters(&self) -> MutexGuard<'_, Counters> {
        lock(&self.counters)
    }

    /// Requests that were taken and are not in a slot yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A request with a prompt of so many tokens waits.
    pub(crate) fn count_waiting(&self, tokens: usize) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// It waits no more.
    pub(crate) fn uncount_waiting(&self, tokens: usize) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waiting_tokens.fetch_sub(tokens, Ordering::Relaxed);
    }

    /// Milliseconds since start.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The engine thread is alive.
    pub(crate) fn beat(&self) {
        self.beat_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Enters a phase, unless the engine is already on its way out.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut life = self.life();
        if matches!(
            life.phase,
            Phase::Init | Phase::Download | Phase::Weights | Phase::Warmup | Phase::Ready
        ) {
            let left = (life.phase, life.entered.elapsed());
            life.past.push(left);
            life.phase = phase;
            life.entered = Instant::now();
        }
    }

    /// The thread has ended or is about to, on request or because of `error`.
    pub(crate) fn end(&self, error: Option<Failure>) {
        let mut life = self.life();
        life.phase = match error {
            Some(_) => Phase::Failed,
            None => Phase::Stopped,
        };
        life.error = error;
    }

    /// Publishes start-up timings.
    pub(crate) fn set_step_times(&self, lines: Vec<(String, f64)>) {
        self.life().step_times_ms = lines;
    }

    /// See [`Status`].
    pub(crate) fn status(&self) -> Status {
        let heartbeat_age = self.heartbeat_age();
        let life = self.life();
        let progress = match life.phase {
            Phase::Download => &self.download,
            _ => &self.progress,
        };
        Status {
            phase: life.phase,
            phase_age: life.entered.elapsed(),
            phase_times: life.past.clone(),
            bytes_done: progress.done.load(Ordering::Relaxed),
            bytes_total: progress.total.load(Ordering::Relaxed),
            heartbeat_age,
            error: life.error.as_ref().map(|error| error.reason.clone()),
            cause: life.error.as_ref().map(|error| error.cause),
            step_times_ms: life.step_times_ms.clone(),
        }
    }

    /// See [`EngineStats`].
    pub(crate) fn stats(&self) -> EngineStats {
        let mut stats = self.counters().read(self.now_ms());
        stats.waiting = self.waiting();
        stats.waiting_tokens = self.waiting_tokens.load(Ordering::Relaxed);
        stats.heartbeat_age = self.heartbeat_age();
        stats
    }

    fn heartbeat_age(&self) -> Duration {
        let bytes = |progress: &LoadProgress| progress.done.load(Ordering::Relaxed);
        let done = bytes(&self.progress) + bytes(&self.download);
        if self.progress_seen.swap(done, Ordering::Relaxed) != done {
            self.beat();
        }
        let beat = self.beat_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.now_ms().saturating_sub(beat))
    }
}

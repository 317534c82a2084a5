//! The engine thread: commands in, one call to the runner, one message out, again.

mod admission;
mod decode;
mod decoded;
mod ending;
mod output;
mod prefill;
mod snapshots;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use model::{ModelError, Shape};

use crate::auto::Auto;
use crate::handle::Command;
use crate::kv_pool::KvPool;
use crate::prefix_cache::PrefixCache;
use crate::scheduler::{Scheduler, SchedulerLimits, Waiting, Work};
use crate::settings::Settings;
use crate::shape::Drafting;
use crate::shared::{Failure, Shared};
use crate::state_pool::StatePool;
use crate::step_plan::StepLimits;
use crate::step_runner::StepRunner;
use crate::timing_table::shown;
use crate::warm_up::{WarmUp, warm_up};
use crate::{FailureCause, FinishReason, Phase, RequestUpdate, StepOutput};

/// An idle thread shows that it is alive this often.
const IDLE_BEAT: Duration = Duration::from_secs(1);

/// Loads, warms up and serves until drained, shut down or broken.
pub(crate) fn run<R: StepRunner>(
    settings: Settings,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    outputs: flume::Sender<StepOutput>,
    load: impl FnOnce(&Shared) -> Result<R, ModelError>,
) {
    let (runner, auto) = match guarded(|| prepare(&settings, &shared, load)) {
        Ok(ready) => ready,
        Err(error) => {
            tracing::error!(error = error.reason, "the engine did not start");
            shared.end(Some(error));
            return;
        }
    };
    let mut step_loop = StepLoop::new(&settings, runner, auto, (shared, commands, outputs));
    step_loop.shared.beat();
    step_loop.shared.enter(Phase::Ready);
    let error = guarded(|| step_loop.serve()).err();
    if let Some(error) = &error {
        tracing::error!(error = error.reason, "the engine failed");
    }
    let reason = match &error {
        Some(error) => FinishReason::Error(error.reason.clone()),
        None => FinishReason::Aborted,
    };
    // First the phase: from here on nothing is taken, so what the channel holds is all there is.
    step_loop.shared.end(error);
    step_loop.end_all(&reason);
}

/// Errors and panics as text.
fn guarded<T>(work: impl FnOnce() -> Result<T, ModelError>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| Failure {
            cause: FailureCause::from(&error),
            reason: error.to_string(),
        }),
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(Failure {
                cause: FailureCause::Engine,
                reason: format!("a broken invariant: {text}"),
            })
        }
    }
}

fn prepare<R: StepRunner>(
    settings: &Settings,
    shared: &Shared,
    load: impl FnOnce(&Shared) -> Result<R, ModelError>,
) -> Result<(R, Option<Auto>), ModelError> {
    shared.enter(Phase::Weights);
    let mut runner = load(shared)?;
    if settings.skip_warmup {
        return Ok((runner, None));
    }
    shared.beat();
    shared.enter(Phase::Warmup);
    let auto = settings.drafting == Drafting::Auto;
    let plan = WarmUp {
        shapes: &settings.shapes,
        batch: auto,
        drafting_max: match settings.draft_batch_max {
            0 => usize::MAX,
            most => most,
        },
        share: settings.share_rows,
    };
    let table = warm_up(&mut runner, plan, || shared.beat())?;
    for (name, ms) in table.lines() {
        tracing::info!(shape = name, ms = shown(ms), "timed a step");
    }
    shared.set_step_times(table.lines());
    let timed = table
        .shapes
        .first()
        .is_some_and(|first| first.shape == Shape::Plain);
    Ok((
        runner,
        (auto && timed).then(|| Auto::new(table, settings.share_rows)),
    ))
}

/// Everything that the engine thread works with.
pub(crate) struct StepLoop<R> {
    pub(crate) runner: R,
    pub(crate) scheduler: Scheduler,
    /// In effect: the configured one unless a benchmark said otherwise.
    drafting: Drafting,
    configured: Drafting,
    draft_batch_max: usize,
    limits: StepLimits,
    auto: Option<Auto>,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    outputs: flume::Sender<StepOutput>,
    /// Whether the prefix cache takes states that decoding passes.
    decoded: bool,
    /// News that were not sent yet.
    updates: Vec<RequestUpdate>,
    /// Time in the constraints of the last call.
    mask_ms: Option<f64>,
    draining: bool,
}

impl<R: StepRunner> StepLoop<R> {
    /// A loop around a runner that is ready; the channels are those of the handles and of the server.
    pub(crate) fn new(
        settings: &Settings,
        runner: R,
        auto: Option<Auto>,
        (shared, commands, outputs): (Arc<Shared>, Receiver<Command>, flume::Sender<StepOutput>),
    ) -> Self {
        let sizes = &settings.runner;
        let cache = settings.prefix_cache.as_ref();
        let shapes = settings.shapes.iter().copied();
        let limits = SchedulerLimits {
            context: sizes.context_max,
            chunk: sizes.prefill_rows_max,
            tree_rows: shapes.map(Shape::rows).max().unwrap_or(1),
            replay_rows: sizes.replay_rows_max(),
            replay_rows_all: sizes.verify_rows_max(),
            interval: cache.map_or(usize::MAX, |cache| cache.interval),
        };
        let scheduler = Scheduler::new(
            KvPool::new(sizes.kv_pages),
            StatePool::new(sizes.sequences_max),
            cache.map(|_| PrefixCache::new(sizes.snapshots, sizes.host_snapshots)),
            limits,
        );
        StepLoop {
            runner,
            scheduler,
            drafting: settings.drafting,
            configured: settings.drafting,
            draft_batch_max: settings.draft_batch_max,
            limits: StepLimits {
                rows: sizes.step_rows_max,
                sequence_rows: sizes.tree_rows_max,
                share: settings.share_rows,
            },
            auto,
            shared,
            commands,
            outputs,
            decoded: cache.is_some_and(|cache| cache.decoded),
            updates: Vec::new(),
            mask_ms: None,
            draining: false,
        }
    }

    fn serve(&mut self) -> Result<(), ModelError> {
        while !(self.draining && self.scheduler.is_empty()) {
            self.await_command();
            self.take_commands();
            self.turn()?;
            self.shared.beat();
        }
        Ok(())
    }

    /// Admits who finds room, and makes the next call to the runner.
    pub(crate) fn turn(&mut self) -> Result<(), ModelError> {
        self.flush(None);
        self.admit()?;
        match self.scheduler.next_work() {
            Work::Idle => self.idle(),
            Work::Decode => self.decode()?,
            Work::Prefill(chunks) => self.prefill(&chunks)?,
            Work::Replay(replays) => self.replay(&replays)?,
        }
        Ok(())
    }

    /// With nothing to do, waits up to a second for a command and obeys it.
    fn await_command(&mut self) {
        if self.scheduler.is_empty() && !self.draining {
            match self.commands.recv_timeout(IDLE_BEAT) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.draining = true,
            }
        }
    }

    /// Obeys what has arrived.
    pub(crate) fn take_commands(&mut self) {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.draining = true;
                    return;
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit {
                id,
                request,
                submitted,
            } => self.scheduler.waiting.push(Waiting {
                id,
                request: *request,
                submitted,
                history: None,
            }),
            Command::FlushCache(done) => {
                let flushed = self.flush_cache();
                // Who asked may have left.
                let _ = done.send(flushed);
            }
            Command::Expire(ids) => self.expire(&ids),
            Command::Abort(id) => self.end(id, FinishReason::Aborted, usize::MAX),
            Command::Finish(id, kept) => self.end(id, FinishReason::Finished, kept),
            Command::Draft(shape) => {
                self.drafting = shape.map_or(self.configured, Drafting::Fixed);
            }
            Command::Drain => self.draining = true,
            Command::Shutdown => {
                self.draining = true;
                self.end_taken(&FinishReason::Aborted);
            }
        }
    }

    /// Nothing runs, so nothing may wait and nothing may be owned.
    fn idle(&self) {
        assert!(
            self.scheduler.waiting.is_empty(),
            "an empty pool refuses a request that fits the context"
        );
        if let Err(fault) = self.scheduler.audit() {
            debug_assert!(false, "{fault}");
            tracing::error!(fault, "the idle audit failed");
        }
    }
}

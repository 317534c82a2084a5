//! The server's side of the engine.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use model::Shape;

use crate::request::check_shape;
use crate::shared::{Life, Shared};
use crate::{EngineStats, ModelInfo, Phase, Request, RequestId, Status, SubmitError};

/// What handles tell the engine thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Queue a request.
    Submit {
        /// Its id.
        id: RequestId,
        /// What is asked for.
        request: Box<Request>,
        /// When.
        submitted: Instant,
    },
    /// End these requests if none of them has started.
    Expire(Vec<RequestId>),
    /// End a request.
    Abort(RequestId),
    /// End a request of which so many tokens count.
    Finish(RequestId, usize),
    /// Forget all prompts; the answer says whether that was possible.
    FlushCache(Sender<bool>),
    /// Draft like that from now on; `None`: as the engine was started.
    Draft(Option<Shape>),
    /// End when nothing is left to do.
    Drain,
    /// Abort everything and end.
    Shutdown,
}

/// Cloneable and `Send`; only sends commands and reads counters. When the last handle is dropped
/// the engine drains.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

impl EngineHandle {
    pub(crate) fn new(shared: Arc<Shared>, commands: Sender<Command>) -> Self {
        EngineHandle { shared, commands }
    }

    /// Queues a request. Checks everything that needs no device.
    pub fn submit(&self, request: Request) -> Result<RequestId, SubmitError> {
        let ids = self.submit_all(vec![request])?;
        Ok(ids[0])
    }

    /// Queues all of them or none.
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<RequestId>, SubmitError> {
        for request in &requests {
            request.check(&self.shared.info)?;
        }
        let mut life = self.shared.life();
        if life.phase != Phase::Ready {
            return Err(SubmitError::Unavailable(why_not_ready(&life)));
        }
        self.check_queue(requests.len())?;
        let submitted = Instant::now();
        let mut ids = Vec::with_capacity(requests.len());
        for request in requests {
            let id = life.mint();
            let tokens = request.prompt.len();
            // Counted before the thread can see it, so that the count never falls below zero.
            self.shared.count_waiting(tokens);
            let command = Command::Submit {
                id,
                request: Box::new(request),
                submitted,
            };
            if self.commands.send(command).is_err() {
                self.shared.uncount_waiting(tokens);
                return Err(SubmitError::Unavailable("its thread has ended".into()));
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Requests for which a slot is free do not queue, even if the thread has not seen them yet.
    fn check_queue(&self, more: usize) -> Result<(), SubmitError> {
        let limit = self.shared.queue_max;
        // Under this lock a request moves from the queue into its slot.
        let counters = self.shared.counters();
        let waiting = self.shared.waiting();
        let free = (counters.stats.slots_total).saturating_sub(counters.stats.running);
        if limit > 0 && waiting + more > limit + free {
            return Err(SubmitError::QueueFull { waiting, limit });
        }
        Ok(())
    }

    /// Ends requests that still wait: all of them, or none if one has started or ended. The
    /// terminal updates say `Expired`.
    pub fn expire(&self, ids: Vec<RequestId>) {
        self.send(Command::Expire(ids));
    }

    /// Ends a request before the next step; unknown ids are ignored. The terminal update says
    /// `Aborted`.
    pub fn abort(&self, id: RequestId) {
        self.send(Command::Abort(id));
    }

    /// Ends a request of which only the first `kept` output tokens count. Ignored once it ended.
    pub fn finish(&self, id: RequestId, kept: usize) {
        self.send(Command::Finish(id, kept));
    }

    /// Empties the prefix cache and waits until that is done; `false`, and nothing was done, while
    /// requests run or wait. `None`: the engine has ended.
    pub fn flush_cache(&self) -> Option<bool> {
        let (done, answer) = std::sync::mpsc::channel();
        self.send(Command::FlushCache(done));
        answer.recv().ok()
    }

    /// For benchmarks: whatever is submitted from now on, and what runs, drafts in this shape instead
    /// of the engine's choice, and shares rows as an engine does that was started with it. `None`
    /// goes back to what the engine was started with. A request's own shape still comes first.
    pub fn set_drafting(&self, shape: Option<Shape>) -> Result<(), SubmitError> {
        check_shape(shape, &self.shared.info).map_err(SubmitError::Invalid)?;
        self.send(Command::Draft(shape));
        Ok(())
    }

    /// Counters now.
    pub fn stats(&self) -> EngineStats {
        self.shared.stats()
    }

    /// Loading progress, readiness, failure.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Facts about the model; known before the weights are loaded.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// Requests that may wait; 0 = no limit.
    pub fn queue_max(&self) -> usize {
        self.shared.queue_max
    }

    /// Takes no more requests; the thread ends when the last one has ended.
    pub fn drain(&self) {
        self.shared.enter(Phase::Draining);
        self.send(Command::Drain);
    }

    /// Ends every request (`Aborted`) and then the thread.
    pub fn shutdown(&self) {
        self.shared.enter(Phase::Draining);
        self.send(Command::Shutdown);
    }

    /// A thread that has ended has nothing left to be told.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

fn why_not_ready(life: &Life) -> String {
    match life.phase {
        Phase::Init | Phase::Download | Phase::Weights => {
            "the model is loading; try again later".into()
        }
        Phase::Warmup | Phase::Ready => "it is warming up; try again later".into(),
        Phase::Draining => "it is shutting down".into(),
        Phase::Stopped => "it has stopped".into(),
        Phase::Failed => format!(
            "it failed: {}",
            life.error
                .as_ref()
                .map_or("no reason", |error| &error.reason)
        ),
    }
}

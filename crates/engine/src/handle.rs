//! The server's side of the engine.

use crate::{EngineStats, ModelInfo, Request, RequestId, Status, SubmitError};

/// Cloneable and `Send`; only sends commands and reads counters.
#[derive(Clone, Debug)]
pub struct EngineHandle {}

impl EngineHandle {
    /// Queues a request. Checks everything that needs no device.
    pub fn submit(&self, _request: Request) -> Result<RequestId, SubmitError> {
        todo!()
    }

    /// Ends a request before the next step; unknown ids are ignored. The terminal update says
    /// `Aborted`.
    pub fn abort(&self, _id: RequestId) {
        todo!()
    }

    /// Ends a request of which only the first `kept` output tokens count. Ignored once it ended.
    pub fn finish(&self, _id: RequestId, _kept: usize) {
        todo!()
    }

    /// Counters now.
    pub fn stats(&self) -> EngineStats {
        todo!()
    }

    /// Loading progress, readiness, failure.
    pub fn status(&self) -> Status {
        todo!()
    }

    /// Facts about the model; known before the weights are loaded.
    pub fn info(&self) -> &ModelInfo {
        todo!()
    }

    /// Takes no more requests; the thread ends when the last one has ended.
    pub fn drain(&self) {
        todo!()
    }

    /// Ends every request (`Aborted`) and then the thread.
    pub fn shutdown(&self) {
        todo!()
    }
}

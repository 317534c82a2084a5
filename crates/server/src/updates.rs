//! Brings the engine's updates to the requests they belong to.
//!
//! One task reads the engine's messages and never waits for a client: every receiver's channel
//! is unbounded, and what fills it is bounded by the context. A task and not a thread, so that a
//! token wakes one thread on its way to the socket.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{
    EngineHandle, Request, RequestId, RequestUpdate, StepOutput, StepOutputs, SubmitError,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::coop::cooperative;

use crate::metrics::Metrics;

/// An update and the number its receiver gave the sequence.
pub(crate) type Numbered = (usize, RequestUpdate);

#[derive(Debug)]
struct Route {
    number: usize,
    sender: UnboundedSender<Numbered>,
}

/// Where updates go.
#[derive(Debug, Default)]
pub(crate) struct Updates {
    routes: Mutex<HashMap<RequestId, Route>>,
    /// Tokens that came, of whatever request.
    tokens: AtomicU64,
}

impl Updates {
    /// Starts the task. The receiver hears of the end of the engine.
    pub(crate) fn start(
        outputs: StepOutputs,
        metrics: Arc<Metrics>,
    ) -> (Arc<Self>, oneshot::Receiver<()>) {
        let updates = Arc::new(Updates::default());
        let (sender, ended) = oneshot::channel();
        let task = Arc::clone(&updates);
        tokio::spawn(async move {
            // An engine that is never behind must not keep the others from this thread.
            while let Ok(output) = cooperative(outputs.recv_async()).await {
                if let Some(ms) = output.mask_ms {
                    metrics.observe_masks(ms / 1e3);
                }
                if let Some(timing) = &output.timing {
                    metrics.observe_timing(timing);
                }
                task.deliver(output);
            }
            // Whoever still waits sees its channel close.
            task.routes().clear();
            let _ = sender.send(());
        });
        (updates, ended)
    }

    /// Submits all requests or none; the updates of the first go to `sender` as number 0, and so
    /// on. The lock is held meanwhile, so no update can come before its route exists.
    pub(crate) fn submit(
        &self,
        engine: &EngineHandle,
        requests: Vec<Request>,
        sender: &UnboundedSender<Numbered>,
    ) -> Result<Vec<RequestId>, SubmitError> {
        let mut routes = self.routes();
        let ids = engine.submit_all(requests)?;
        for (number, &id) in ids.iter().enumerate() {
            let sender = sender.clone();
            routes.insert(id, Route { number, sender });
        }
        Ok(ids)
    }

    /// Tokens that came since start.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Acquire)
    }

    fn deliver(&self, output: StepOutput) {
        let mut routes = self.routes();
        for update in output.updates {
            let count = update.tokens.len() as u64;
            self.tokens.fetch_add(count, Ordering::Release);
            let (id, last) = (update.id, update.finish.is_some());
            if let Some(route) = routes.get(&id) {
                // A receiver that is gone has aborted its requests.
                let _ = route.sender.send((route.number, update));
            }
            if last {
                routes.remove(&id);
            }
        }
    }

    fn routes(&self) -> MutexGuard<'_, HashMap<RequestId, Route>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

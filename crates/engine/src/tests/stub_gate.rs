//! How tests hold a stub up, or let it fail.

use std::sync::{Arc, Condvar, Mutex};

/// Which call fails, counted from the first call of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    StartError(usize),
    PrefillError(usize),
    PrefillPanic(usize),
    StepError(usize),
    StepPanic(usize),
    /// The first sequence of the step has logits that are not finite.
    StepNotFinite(usize),
}

/// Lets calls to prefill and step through one by one.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    state: Arc<(Mutex<GateState>, Condvar)>,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    permits: usize,
    /// Calls that have arrived.
    arrived: usize,
}

impl Gate {
    /// From now on calls wait for permits.
    pub(crate) fn close(&self) {
        self.state.0.lock().unwrap().closed = true;
    }

    pub(crate) fn open(&self) {
        self.state.0.lock().unwrap().closed = false;
        self.state.1.notify_all();
    }

    pub(crate) fn permit(&self, calls: usize) {
        self.state.0.lock().unwrap().permits += calls;
        self.state.1.notify_all();
    }

    /// Waits until this many calls in all have arrived.
    pub(crate) fn await_calls(&self, calls: usize) {
        let state = self.state.0.lock().unwrap();
        drop(
            self.state
                .1
                .wait_while(state, |state| state.arrived < calls)
                .unwrap(),
        );
    }

    /// A call has arrived and waits for its permit.
    pub(super) fn pass(&self) {
        let mut state = self.state.0.lock().unwrap();
        state.arrived += 1;
        self.state.1.notify_all();
        let wait = |state: &mut GateState| state.closed && state.permits == 0;
        state = self.state.1.wait_while(state, wait).unwrap();
        state.permits = state.permits.saturating_sub(1);
    }
}

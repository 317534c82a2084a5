//! An engine without its thread: a test takes its turns.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::harness::{Setup, settings};
use super::stub_runner::{Gate, StubRunner};
use crate::auto::Auto;
use crate::handle::Command;
use crate::shared::Shared;
use crate::step_loop::StepLoop;
use crate::{EngineHandle, Phase, StepOutputs};

/// A loop over the stub and both ends of its channels.
pub(super) struct Single {
    pub(super) step_loop: StepLoop<StubRunner>,
    pub(super) handle: EngineHandle,
    pub(super) commands: Sender<Command>,
    pub(super) outputs: StepOutputs,
}

impl Single {
    /// Ready, without a warm-up.
    pub(super) fn new(setup: &Setup, auto: Option<Auto>) -> Self {
        let (settings, info) = settings(setup);
        let sizes = settings.runner.clone();
        let (pages, slots) = (sizes.kv_pages, sizes.sequences_max);
        let shared = Arc::new(Shared::new(info, settings.queue_max, pages, slots));
        let (commands, received) = channel();
        let (sender, outputs) = flume::unbounded();
        let runner = StubRunner::new(sizes, Gate::default(), setup.fault);
        let ends = (Arc::clone(&shared), received, sender);
        shared.enter(Phase::Ready);
        Single {
            step_loop: StepLoop::new(&settings, runner, auto, ends),
            handle: EngineHandle::new(shared, commands.clone()),
            commands,
            outputs,
        }
    }

    /// Obeys what was sent and takes a turn.
    pub(super) fn turn(&mut self) {
        self.step_loop.take_commands();
        self.step_loop.turn().expect("the stub does not fail");
    }
}

//! Waits for an engine and shows how far it is.

use std::time::Duration;

use engine::{EngineHandle, FailureCause, Phase};

use super::exit::{Exit, Failure};
use super::progress::Reporter;
use crate::stage::Stage;

/// How often the engine is looked at.
const POLL: Duration = Duration::from_millis(10);

/// Blocks until the engine takes requests.
pub fn wait_until_ready(handle: &EngineHandle) -> Result<(), Failure> {
    show(handle);
    let status = handle.status();
    if status.phase == Phase::Ready {
        return Ok(());
    }
    let cause = status.cause.unwrap_or(FailureCause::Engine);
    let reason = status.error.unwrap_or_else(|| "it was stopped".to_owned());
    Err(Failure::new(cause.into(), reason))
}

/// What to say when the engine's thread is gone while it is needed.
pub fn ended(handle: &EngineHandle) -> Failure {
    let reason = handle.status().error;
    let reason = reason.unwrap_or_else(|| "its thread has ended".to_owned());
    Failure::new(Exit::Runtime, format!("the engine failed: {reason}"))
}

/// Shows how far the engine is until it is ready or has failed.
pub fn report(handle: EngineHandle) {
    // Without a thread for it the model loads in silence.
    if let Err(error) = std::thread::Builder::new()
        .name("progress".into())
        .spawn(move || show(&handle))
    {
        tracing::warn!(%error, "no progress will be reported");
    }
}

fn show(handle: &EngineHandle) {
    let mut reporter = Reporter::new();
    while let Some(stage) = Stage::of(&handle.status()) {
        reporter.show(&stage);
        std::thread::sleep(POLL);
    }
}

//! Waits for an engine and says how far it is.

use std::time::{Duration, Instant};

use engine::{EngineHandle, Phase, Status};

use super::exit::{Exit, Failure};

/// How often the engine is looked at.
const POLL: Duration = Duration::from_millis(10);
/// How often a line is logged.
const REPORT: Duration = Duration::from_secs(5);

/// Blocks until the engine takes requests.
pub fn wait_until_ready(handle: &EngineHandle) -> Result<(), Failure> {
    let mut report = Instant::now() + REPORT;
    loop {
        let status = handle.status();
        match status.phase {
            Phase::Ready => return Ok(()),
            Phase::Init | Phase::Weights | Phase::Warmup => {}
            Phase::Draining | Phase::Failed | Phase::Stopped => {
                let reason = status.error.unwrap_or_else(|| "it was stopped".to_owned());
                return Err(Failure::new(Exit::ModelFiles, reason));
            }
        }
        if Instant::now() >= report {
            tracing::info!("{}", line(&status));
            report += REPORT;
        }
        std::thread::sleep(POLL);
    }
}

/// Logs a line every few seconds until the engine is ready or has failed.
pub fn report(handle: EngineHandle) {
    let work = move || {
        let mut last = None;
        let mut next = Instant::now();
        loop {
            let status = handle.status();
            if !matches!(status.phase, Phase::Init | Phase::Weights | Phase::Warmup) {
                return;
            }
            if last != Some(status.phase) || Instant::now() >= next {
                tracing::info!("{}", line(&status));
                last = Some(status.phase);
                next = Instant::now() + REPORT;
            }
            std::thread::sleep(POLL);
        }
    };
    // Without a thread for it the model loads in silence.
    if let Err(error) = std::thread::Builder::new()
        .name("progress".into())
        .spawn(work)
    {
        tracing::warn!(%error, "no progress will be reported");
    }
}

fn line(status: &Status) -> String {
    match status.phase {
        Phase::Init => "Reading the configuration".to_owned(),
        Phase::Weights if status.bytes_total == 0 => "Loading weights".to_owned(),
        Phase::Weights => {
            let percent = 100.0 * status.bytes_done as f64 / status.bytes_total as f64;
            format!(
                "Loading weights {percent:.0} % ({} of {} MiB)",
                status.bytes_done >> 20,
                status.bytes_total >> 20
            )
        }
        _ => "Warming up".to_owned(),
    }
}

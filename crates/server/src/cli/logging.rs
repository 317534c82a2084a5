//! Sets up the log: to standard error, as text or JSON.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::args::logging::{LogArgs, LogFormat};
use super::exit::{Exit, Failure};
use super::progress::BesideBars;
use super::variables;
use crate::log_queue::LogQueue;

/// What the end of the process waits for a log that is not read.
const STALLED: Duration = Duration::from_secs(1);
/// What it waits for one that is.
const LIMIT: Duration = Duration::from_secs(5);

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Starts logging at the level asked for, else at `default`.
pub fn start(args: &LogArgs, default: &str) -> Result<(), Failure> {
    let level = args.log_level.as_deref().unwrap_or(default);
    let filter = EnvFilter::builder().parse(level).map_err(|error| {
        Failure::usage(format!(
            "--log-level {level}: {error}; expected off, error, warn, info, debug or trace, \
                 or directives such as info,engine=debug"
        ))
    })?;
    let queue = queue()?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || queue.clone())
        .with_ansi(io::stderr().is_terminal());
    let result = match args.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    result.map_err(|error| Failure::new(Exit::Runtime, error.to_string()))?;
    for warning in variables::warnings(std::env::vars_os().map(|(name, _)| name)) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// The queue in front of standard error; panics are told through it, too.
fn queue() -> Result<&'static LogQueue, Failure> {
    let out: Box<dyn Write + Send> = match io::stderr().is_terminal() {
        true => Box::new(BesideBars),
        false => Box::new(io::stderr()),
    };
    let tell = |lines| {
        tracing::warn!(
            lines,
            "lines of the log were lost, since nobody read them in time"
        );
    };
    let queue = LogQueue::start(out, tell)
        .map_err(|error| Failure::new(Exit::Runtime, format!("no thread for the log: {error}")))?;
    let queue = QUEUE.get_or_init(|| queue);
    std::panic::set_hook(Box::new(|info| queue_panic(queue, info)));
    Ok(queue)
}

/// As the standard library tells it, but without waiting for standard error.
fn queue_panic(queue: &LogQueue, info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let mut text = format!("\nthread '{name}' {info}\n");
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        text += &format!("stack backtrace:\n{trace}\n");
    }
    queue.insist(text.as_bytes());
}

/// Writes to standard error behind everything logged so far. Does not wait for long if nobody reads
/// it.
pub fn last_words(text: &str) {
    match QUEUE.get() {
        Some(queue) => queue.insist(text.as_bytes()),
        // Nothing was logged, and nobody is left to be told if this fails.
        None => drop(io::stderr().write_all(text.as_bytes())),
    }
}

/// Writes out the log when dropped, as far as it is read.
#[derive(Debug)]
pub struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        if let Some(queue) = QUEUE.get() {
            // What nobody reads is lost; its process need not stay for it.
            let _ = queue.flush(STALLED, LIMIT);
        }
    }
}

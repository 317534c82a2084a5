//! Sets up the log: to standard error, as text or JSON.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use super::args::logging::{LogArgs, LogFormat};
use super::exit::Failure;
use super::progress::BesideBars;

/// Starts logging at the level asked for, else at `default`.
pub fn start(args: &LogArgs, default: &str) -> Result<(), Failure> {
    let level = args.log_level.as_deref().unwrap_or(default);
    let filter = EnvFilter::builder().parse(level).map_err(|error| {
        Failure::usage(format!(
            "--log-level {level}: {error}; expected off, error, warn, info, debug or trace, \
                 or directives such as info,engine=debug"
        ))
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| BesideBars)
        .with_ansi(io::stderr().is_terminal());
    let result = match args.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    result.map_err(|error| Failure::new(super::exit::Exit::Runtime, error.to_string()))
}

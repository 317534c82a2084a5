//! What is logged, and how.

use clap::{Args, ValueEnum};

/// Log flags. Logs go to standard error.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// off, error, warn, info, debug or trace, or directives such as `info,engine=debug`
    /// [default: info for serve, else warn]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,

    /// Form of a log line
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

/// Values of `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people
    Text,
    /// One JSON object per line
    Json,
}

//! How the process ends: exit codes and the one line that says why.

use std::fmt;
use std::process::ExitCode;

use engine::{EngineError, FailureCause, ModelError, SubmitError};

/// Exit codes, as service managers see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Clean = 0,
    /// Failed while running.
    Runtime = 1,
    /// Flags, configuration or request are wrong.
    Usage = 2,
    /// Files of the model are missing, damaged or do not fit together.
    ModelFiles = 3,
    /// No such device, or not enough memory on it.
    Device = 4,
    /// The drain limit cut off requests.
    DrainCut = 5,
    /// The engine hung.
    Watchdog = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a command ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What went wrong; empty when nobody is left to read it.
    pub message: String,
}

impl Failure {
    /// A failure with a message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure {
            exit,
            message: message.into(),
        }
    }

    /// Exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, message)
    }

    /// Output could not be written. A reader that went away, as in `spinney render | head`, is no
    /// fault.
    pub fn output(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::new(Exit::Clean, ""),
            _ => Failure::new(Exit::Runtime, format!("cannot write the output: {error}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Failure::new(FailureCause::from(&error).into(), error.to_string())
    }
}

impl From<FailureCause> for Exit {
    fn from(cause: FailureCause) -> Self {
        match cause {
            FailureCause::Files => Exit::ModelFiles,
            FailureCause::Device => Exit::Device,
            // Starting again may help.
            FailureCause::Network | FailureCause::Engine => Exit::Runtime,
        }
    }
}

/// Flags that make a memory plan smaller.
pub const SMALLER: &str = "smaller: --context-length and --max-total-tokens (KV pages), \
                           --max-running-requests (all but weights and workspace), \
                           --chunked-prefill-size (workspace), --speculative-ddtree-budget \
                           (journal); --speculative-algorithm NONE leaves the drafter out";

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Model(cause) => cause.into(),
            EngineError::Config(_) => Failure::usage(error.to_string()),
            EngineError::Memory { .. } => Failure::new(Exit::Device, format!("{error}\n{SMALLER}")),
            EngineError::Stopped(_) => Failure::new(Exit::Runtime, error.to_string()),
        }
    }
}

impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        let exit = match &error {
            SubmitError::QueueFull { .. } | SubmitError::Unavailable(_) => Exit::Runtime,
            _ => Exit::Usage,
        };
        Failure::new(exit, error.to_string())
    }
}

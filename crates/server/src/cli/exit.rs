//! How the process ends: exit codes and the one line that says why.

use std::fmt;
use std::process::ExitCode;

use engine::{EngineError, FailureCause, ModelError, ModelInfo, SubmitError};

use super::shortage::Shortage;

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
    /// A memory plan does not fit.
    pub shortage: Option<Shortage>,
}

impl Failure {
    /// A failure with a message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure {
            exit,
            message: message.into(),
            shortage: None,
        }
    }

    /// Exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, message)
    }

    /// The plan of `info` does not fit.
    pub fn shortage(info: &ModelInfo) -> Self {
        let room = info.room.unwrap_or(u64::MAX);
        Failure {
            shortage: Some(Shortage::new(&info.plan, room, &info.device)),
            ..Failure::new(
                Exit::Device,
                format!("the memory plan does not fit {}", info.device),
            )
        }
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

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Model(cause) => cause.into(),
            EngineError::Config(_) => Failure::usage(error.to_string()),
            EngineError::Memory {
                ref plan,
                room,
                ref device,
                ..
            } => Failure {
                shortage: Some(Shortage::new(plan, room, device)),
                ..Failure::new(Exit::Device, error.to_string())
            },
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

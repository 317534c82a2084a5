//! Errors of loading and running a model.

/// What is wrong with a checkpoint, a configuration or a device.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file is missing, unreadable or malformed.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: String,
        /// What was expected and what was found.
        reason: String,
    },
    /// A tensor is missing, unknown, mis-shaped or mis-typed.
    #[error("{file}: tensor {tensor}: {reason}")]
    Tensor {
        /// The file that holds it, or the index that names it.
        file: String,
        /// Its name in the checkpoint.
        tensor: String,
        /// What was expected and what was found.
        reason: String,
    },
    /// Files cannot be had from where they are.
    #[error("{0}")]
    Source(String),
    /// Files cannot be had right now; another try may help.
    #[error("{0}")]
    Unreachable(String),
    /// The drafter does not fit the target.
    #[error("the drafter does not fit the target: {0}")]
    Mismatch(String),
    /// A forward pass produced numbers that are not finite.
    #[error("{0}")]
    NotFinite(String),
    /// The device.
    #[error(transparent)]
    Ops(#[from] ops::OpsError),
}

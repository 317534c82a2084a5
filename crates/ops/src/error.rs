//! What can go wrong below the model: memory and devices. Shape mistakes are bugs and panic.

/// An error of a backend.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// The device cannot be used at all.
    #[error("{0}")]
    Device(String),
    /// There is no such device, or this build cannot use any.
    #[error("{0}")]
    Absent(String),
    /// The device has no kernels for the model.
    #[error("{0}")]
    Unsupported(String),
    /// A buffer could not be allocated.
    #[error("cannot allocate {bytes} bytes: {reason}")]
    OutOfMemory {
        /// Size of the refused buffer.
        bytes: usize,
        /// What the device said.
        reason: String,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file could not be mapped.
    #[error("cannot map {path}: {source}")]
    Map {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
}

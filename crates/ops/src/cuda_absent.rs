//! The CUDA device. Without the `cuda` feature it exists so that callers need no `cfg`, and says
//! why it cannot be opened.

use crate::OpsError;

/// An opened GPU; uninhabited in builds without CUDA.
#[derive(Debug)]
pub enum Cuda {}

impl Cuda {
    /// Opens GPU `ordinal`.
    pub fn open(_ordinal: usize) -> Result<Self, OpsError> {
        Err(OpsError::Device(
            "this build has no CUDA backend; use --device cpu or a build with the cuda feature"
                .into(),
        ))
    }
}

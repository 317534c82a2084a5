//! The CUDA backend: one context, one stream, kernels embedded as fat binaries.
//!
//! The driver is loaded when a device is opened, so the same binary starts on machines without one.
//! All work goes to one stream; [`crate::Backend::download`] is the only call that waits for it.

mod buf;
mod device;
mod graph;
mod kernel;
mod memory;
mod ops;
mod scratch;
mod tables;
mod upload;
#[cfg(test)]
mod tests;

pub use buf::CudaBuf;
pub use device::Cuda;
pub use graph::CudaGraph;
pub use upload::Stages;

//! Recorded sequences of kernels.

use std::fmt;
use std::sync::atomic::Ordering;

use cudarc::driver::{self, sys};

use super::device::{Cuda, device_error};
use crate::OpsError;

/// Kernels of a step, launched together.
pub struct CudaGraph(driver::CudaGraph);

impl Cuda {
    /// Records what `enqueue` enqueues; nothing runs.
    ///
    /// Where the driver refuses to record kernels that overlap, they are recorded one behind the
    /// other, and stay so.
    pub(super) fn capture(
        &self,
        enqueue: &mut dyn FnMut() -> Result<(), OpsError>,
    ) -> Result<CudaGraph, OpsError> {
        match self.try_capture(enqueue) {
            Err(_) if self.device.overlap.swap(false, Ordering::Relaxed) => {
                self.try_capture(enqueue)
            }
            done => done,
        }
    }

    fn try_capture(
        &self,
        enqueue: &mut dyn FnMut() -> Result<(), OpsError>,
    ) -> Result<CudaGraph, OpsError> {
        self.synchronize()?;
        let stream = &self.device.stream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream
            .begin_capture(mode)
            .map_err(|error| device_error(&error))?;
        let enqueued = enqueue();
        // Always: a stream left capturing is of no use any more.
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        enqueued?;
        let graph = graph
            .map_err(|error| device_error(&error))?
            .ok_or_else(|| OpsError::Device("a graph without any work was recorded".into()))?;
        graph.upload().map_err(|error| device_error(&error))?;
        self.synchronize()?;
        Ok(CudaGraph(graph))
    }

    /// Enqueues a recorded graph.
    pub(super) fn replay(&self, graph: &CudaGraph) -> Result<(), OpsError> {
        graph.0.launch().map_err(|error| device_error(&error))
    }
}

impl fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CudaGraph")
    }
}

//! Weights on their way to the device: read, converted and copied by all cores at once.
//!
//! A ring of page-locked stages is all the host memory that it takes. Every thread takes the stage
//! that was sent longest ago, waits for its copy, fills it and sends it again; copies run on
//! streams of their own while other stages are filled.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use cudarc::driver::{CudaEvent, CudaStream, result, sys};
use rayon::prelude::*;

use super::buf::DevicePtr;
use super::device::{Cuda, Device, device_error};
use super::memory::Pinned;
use crate::pieces::Joined;
use crate::{Dtype, OpsError, Piece, Storage};

/// Bytes of a stage: long enough for a copy at full speed, short enough that the last stages of a
/// matrix do not leave most threads idle.
const STAGE_BYTES: usize = 4 << 20;
/// Stages beyond the threads that fill them: those that are being copied.
const IN_FLIGHT: usize = 8;
/// Threads at most that a stage is allocated for.
const THREADS_MAX: usize = 16;
/// Streams that copies are spread over.
const STREAMS: usize = 4;

/// One buffer of the ring.
struct Stage {
    bytes: Pinned,
    /// What a file holds, where it has to be converted.
    raw: Vec<u8>,
    stream: Arc<CudaStream>,
    /// The end of the last copy from here.
    sent: CudaEvent,
}

/// The ring.
pub struct Stages {
    device: Arc<Device>,
    idle: Mutex<VecDeque<Stage>>,
    returned: Condvar,
}

impl Stage {
    fn new(device: &Arc<Device>, stream: &Arc<CudaStream>) -> Result<Self, OpsError> {
        // Waiting threads sleep: others have files to read.
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC;
        let sent = device.context.new_event(Some(flags));
        Ok(Stage {
            bytes: Pinned::new(device, STAGE_BYTES)?,
            raw: Vec::new(),
            stream: Arc::clone(stream),
            sent: sent.map_err(|error| device_error(&error))?,
        })
    }

    /// Makes numbers `first` to `first + len` of `joined` and sends them to `to`.
    fn send(
        &mut self,
        joined: &Joined<'_>,
        first: usize,
        len: usize,
        dtype: Dtype,
        to: DevicePtr,
    ) -> Result<(), OpsError> {
        self.sent
            .synchronize()
            .map_err(|error| device_error(&error))?;
        let bytes = &mut self.bytes.bytes_mut()[..len * dtype.bytes()];
        joined.write(first, dtype, bytes, &mut self.raw)?;
        // SAFETY: `load` checked the range behind `to`; the stage is not touched again before
        // `sent`, which is recorded behind the copy.
        unsafe { result::memcpy_htod_async(to.0, bytes, self.stream.cu_stream()) }
            .and_then(|()| self.sent.record(&self.stream))
            .map_err(|error| device_error(&error))
    }
}

impl Stages {
    fn take(&self) -> Stage {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match idle.pop_front() {
                Some(stage) => return stage,
                None => {
                    idle = self
                        .returned
                        .wait(idle)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn put_back(&self, stage: Stage) {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(stage);
        self.returned.notify_one();
    }

    /// Waits for every copy.
    fn wait(&self) {
        for stage in &*self.idle.lock().unwrap_or_else(PoisonError::into_inner) {
            self.device.context.record_err(stage.sent.synchronize());
        }
    }
}

impl Drop for Stages {
    /// Memory that the device still reads must not be freed.
    fn drop(&mut self) {
        self.wait();
    }
}

impl Cuda {
    /// Allocates the ring.
    pub(super) fn new_stages(&self) -> Result<Stages, OpsError> {
        let device = &self.device;
        let streams: Vec<_> = (0..STREAMS)
            .map(|_| device.context.new_stream())
            .collect::<Result<_, _>>()
            .map_err(|error| device_error(&error))?;
        let count = rayon::current_num_threads().min(THREADS_MAX) + IN_FLIGHT;
        let idle = streams
            .iter()
            .cycle()
            .take(count)
            .map(|stream| Stage::new(device, stream))
            .collect::<Result<_, _>>()?;
        Ok(Stages {
            device: Arc::clone(device),
            idle: Mutex::new(idle),
            returned: Condvar::new(),
        })
    }

    /// See [`crate::Backend::load`].
    pub(super) fn load_pieces(
        &self,
        stages: &Stages,
        pieces: &[Piece<'_>],
        storage: &mut Storage<Cuda>,
    ) -> Result<(), OpsError> {
        let dtype = storage.dtype();
        let joined = Joined::new(pieces);
        let (start, len) = match storage {
            Storage::F32(values) => (values.ptr(), values.len()),
            Storage::F16(values) => (values.ptr(), values.len()),
            Storage::Bf16(values) => (values.ptr(), values.len()),
        };
        assert_eq!(joined.len(), len, "pieces fill their buffer");
        // The buffer's zeros are written first.
        self.synchronize()?;
        let device = &self.device;
        let chunk = STAGE_BYTES / dtype.bytes();
        let sent = (0..len.div_ceil(chunk))
            .into_par_iter()
            .try_for_each(|index| {
                let first = index * chunk;
                let to = DevicePtr(start.0 + (first * dtype.bytes()) as u64);
                device
                    .context
                    .bind_to_thread()
                    .map_err(|error| device_error(&error))?;
                let mut stage = stages.take();
                let sent = stage.send(&joined, first, chunk.min(len - first), dtype, to);
                stages.put_back(stage);
                sent
            });
        if sent.is_err() {
            // Whoever drops the buffer now must not free what is still written.
            stages.wait();
            return sent;
        }
        for stage in &*stages.idle.lock().unwrap_or_else(PoisonError::into_inner) {
            device
                .stream
                .wait(&stage.sent)
                .map_err(|error| device_error(&error))?;
        }
        Ok(())
    }
}

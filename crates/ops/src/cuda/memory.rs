//! Copies between host and device.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result;

use super::buf::{CudaBuf, DevicePtr};
use super::device::{Cuda, Device, device_error};
use crate::{Element, OpsError};

/// Page-locked host memory, cached for reading.
pub(super) struct Pinned {
    ptr: *mut u8,
    len: usize,
    device: Arc<Device>,
}

impl Pinned {
    /// Zeroed memory of `len` bytes.
    pub(super) fn new(device: &Arc<Device>, len: usize) -> Result<Self, OpsError> {
        device
            .context
            .bind_to_thread()
            .map_err(|error| device_error(&error))?;
        // SAFETY: a fresh allocation, freed once by `drop`.
        let ptr = unsafe { result::malloc_host(len, 0) }
            .map_err(|error| OpsError::OutOfMemory {
                bytes: len,
                reason: format!("page-locked host memory: {}", device_error(&error)),
            })?
            .cast::<u8>();
        // SAFETY: `len` bytes at `ptr` are ours.
        unsafe { ptr.write_bytes(0, len) };
        Ok(Pinned {
            ptr,
            len,
            device: Arc::clone(device),
        })
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated and initialised in `new`; nobody writes while they are borrowed.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// All bytes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised in `new`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

/// Page-locked values that the device reads and writes itself.
pub struct PinnedBuf<T> {
    /// `None` holds nothing, which the driver does not allocate.
    memory: Option<Pinned>,
    values: PhantomData<T>,
}

impl<T: Element> PinnedBuf<T> {
    /// `len` zeros.
    pub(super) fn zeroed(device: &Arc<Device>, len: usize) -> Result<Self, OpsError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let memory = (bytes > 0)
            .then(|| Pinned::new(device, bytes))
            .transpose()?;
        Ok(PinnedBuf {
            memory,
            values: PhantomData,
        })
    }

    /// All of them.
    pub(super) fn values(&self) -> &[T] {
        let memory = self.memory.as_ref();
        memory.map_or(&[], |memory| bytemuck::cast_slice(memory.bytes()))
    }

    /// All of them.
    pub(super) fn values_mut(&mut self) -> &mut [T] {
        let memory = self.memory.as_mut();
        memory.map_or(&mut [], |memory| {
            bytemuck::cast_slice_mut(memory.bytes_mut())
        })
    }
}

// SAFETY: owns its memory, which any thread of the process may use; `drop` binds the context itself.
unsafe impl Send for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        let context = &self.device.context;
        context.record_err(context.bind_to_thread());
        // SAFETY: allocated by `new`, freed once.
        context.record_err(unsafe { result::free_host(self.ptr.cast()) });
    }
}

impl Cuda {
    /// Enqueues a copy of `values` to `offset` on.
    pub(super) fn copy_in<T: Pod>(
        &self,
        values: &[T],
        buf: &CudaBuf<T>,
        offset: usize,
    ) -> Result<(), OpsError> {
        let to = buf.range(offset, values.len());
        if values.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the range was checked; the driver stages pageable memory before it returns, so
        // `values` may change afterwards.
        unsafe { result::memcpy_htod_async(to.0, values, self.device.stream.cu_stream()) }
            .map_err(|error| device_error(&error))
    }

    /// Reads from `offset` on until `values` is full; waits for all enqueued work.
    pub(super) fn copy_out<T: Pod>(
        &self,
        buf: &CudaBuf<T>,
        offset: usize,
        values: &mut [T],
    ) -> Result<(), OpsError> {
        let from = buf.range(offset, values.len());
        if values.is_empty() {
            return Ok(());
        }
        self.bind()?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        let mut landing = self.landing.borrow_mut();
        match landing.bytes_mut().get_mut(..bytes.len()) {
            Some(landed) => {
                self.read(from, landed)?;
                bytes.copy_from_slice(landed);
                Ok(())
            }
            None => self.read(from, bytes),
        }
    }

    /// [`Cuda::copy_out`] into page-locked memory.
    pub(super) fn read_pinned<T: Pod>(
        &self,
        buf: &CudaBuf<T>,
        offset: usize,
        values: &mut [T],
    ) -> Result<(), OpsError> {
        let from = buf.range(offset, values.len());
        if values.is_empty() {
            return Ok(());
        }
        self.bind()?;
        self.read(from, bytemuck::cast_slice_mut(values))
    }

    /// Enqueues a copy of `len` values from one buffer to another.
    pub(super) fn copy_within_device<T>(
        &self,
        source: &CudaBuf<T>,
        from: usize,
        target: &CudaBuf<T>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        let (from, to) = (source.range(from, len), target.range(to, len));
        if len == 0 {
            return Ok(());
        }
        self.bind()?;
        let (bytes, stream) = (len * size_of::<T>(), self.device.stream.cu_stream());
        // SAFETY: both ranges were checked, and two buffers do not overlap.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, stream) }
            .map_err(|error| device_error(&error))
    }

    fn read(&self, from: DevicePtr, bytes: &mut [u8]) -> Result<(), OpsError> {
        let stream = &self.device.stream;
        // SAFETY: the caller checked the range; `bytes` outlives the copy, which ends below.
        unsafe { result::memcpy_dtoh_async(bytes, from.0, stream.cu_stream()) }
            .map_err(|error| device_error(&error))?;
        self.synchronize()
    }

    /// Waits for all enqueued work and reports what went wrong in it.
    pub(super) fn synchronize(&self) -> Result<(), OpsError> {
        self.device
            .stream
            .synchronize()
            .map_err(|error| device_error(&error))?;
        self.device
            .context
            .check_err()
            .map_err(|error| device_error(&error))
    }

    /// Bytes read and written per second by a copy of `bytes` bytes, the best of some.
    pub(super) fn measured_copy_rate(&self, bytes: usize) -> Result<f64, OpsError> {
        const COPIES: usize = 10;
        let from = CudaBuf::<u8>::zeroed(&self.device, bytes)?;
        let to = CudaBuf::<u8>::zeroed(&self.device, bytes)?;
        let stream = self.device.stream.cu_stream();
        let copy = || {
            // SAFETY: both buffers have `bytes` bytes and outlive the wait below.
            unsafe { result::memcpy_dtod_async(to.ptr().0, from.ptr().0, bytes, stream) }
                .map_err(|error| device_error(&error))
        };
        copy()?;
        let mut best = 0.0f64;
        for _ in 0..3 {
            self.synchronize()?;
            let began = std::time::Instant::now();
            for _ in 0..COPIES {
                copy()?;
            }
            self.synchronize()?;
            let moved = (2 * COPIES * bytes) as f64;
            best = best.max(moved / began.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    /// Enqueues zeros.
    pub(super) fn fill_zero<T>(
        &self,
        buf: &CudaBuf<T>,
        offset: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        let to = buf.range(offset, len);
        if len == 0 {
            return Ok(());
        }
        self.bind()?;
        let stream = self.device.stream.cu_stream();
        // SAFETY: the range was checked.
        unsafe { result::memset_d8_async(to.0, 0, len * size_of::<T>(), stream) }
            .map_err(|error| device_error(&error))
    }

    /// Free and total bytes of the device.
    pub(super) fn memory_info(&self) -> Result<(u64, u64), OpsError> {
        let (free, total) = self
            .device
            .context
            .mem_get_info()
            .map_err(|error| device_error(&error))?;
        Ok((free as u64, total as u64))
    }

    pub(super) fn bind(&self) -> Result<(), OpsError> {
        self.device
            .context
            .bind_to_thread()
            .map_err(|error| device_error(&error))
    }
}

//! Device memory of fixed length.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::result;

use super::device::{Device, device_error};
use crate::OpsError;

/// An address on the device, as kernels take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(super) struct DevicePtr(pub(super) u64);

impl DevicePtr {
    /// No memory: what a kernel is told to leave out.
    pub(super) const NULL: DevicePtr = DevicePtr(0);

    /// The address `offset` bytes on.
    pub(super) fn add(self, offset: usize) -> DevicePtr {
        DevicePtr(self.0 + offset as u64)
    }
}

/// `len` values of `T` on a GPU.
pub struct CudaBuf<T> {
    ptr: DevicePtr,
    len: usize,
    device: Arc<Device>,
    values: PhantomData<T>,
}

impl<T> CudaBuf<T> {
    /// Zeroed memory.
    pub(super) fn zeroed(device: &Arc<Device>, len: usize) -> Result<Self, OpsError> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(OpsError::OutOfMemory {
                bytes: usize::MAX,
                reason: "more than an address can name".into(),
            })?;
        if bytes == 0 {
            return Ok(CudaBuf {
                ptr: DevicePtr::NULL,
                len,
                device: Arc::clone(device),
                values: PhantomData,
            });
        }
        let refused = |error: &cudarc::driver::DriverError| OpsError::OutOfMemory {
            bytes,
            reason: device_error(error).to_string(),
        };
        device
            .context
            .bind_to_thread()
            .map_err(|error| device_error(&error))?;
        // SAFETY: a fresh allocation, freed once by `drop`.
        let ptr = unsafe { result::malloc_sync(bytes) }.map_err(|error| refused(&error))?;
        let buf = CudaBuf {
            ptr: DevicePtr(ptr),
            len,
            device: Arc::clone(device),
            values: PhantomData,
        };
        device
            .allocated_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        // SAFETY: `bytes` bytes at `ptr` were just allocated.
        unsafe { result::memset_d8_async(ptr, 0, bytes, device.stream.cu_stream()) }
            .map_err(|error| device_error(&error))?;
        Ok(buf)
    }

    /// Values.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Address of the first value.
    pub(super) fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Address of value `offset`.
    ///
    /// # Panics
    /// If there is no such value (one past the last is allowed).
    pub(super) fn at(&self, offset: usize) -> DevicePtr {
        assert!(
            offset <= self.len,
            "value {offset} of a buffer of {}",
            self.len
        );
        DevicePtr(self.ptr.0 + (offset * size_of::<T>()) as u64)
    }

    /// Address of `len` values from `offset` on.
    ///
    /// # Panics
    /// If the buffer ends before.
    pub(super) fn range(&self, offset: usize, len: usize) -> DevicePtr {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "values {offset} and {len} more of a buffer of {}",
            self.len
        );
        self.at(offset)
    }
}

impl<T> Drop for CudaBuf<T> {
    fn drop(&mut self) {
        if self.ptr == DevicePtr::NULL {
            return;
        }
        let context = &self.device.context;
        context.record_err(context.bind_to_thread());
        // Freeing waits for the work that uses the memory.
        // SAFETY: allocated by `zeroed`, freed once.
        context.record_err(unsafe { result::free_sync(self.ptr.0) });
    }
}

impl<T> fmt::Debug for CudaBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaBuf<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

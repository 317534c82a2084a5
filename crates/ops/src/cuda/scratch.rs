//! One arena that ops share: what an op leaves there lasts until the next op.

use super::buf::{CudaBuf, DevicePtr};
use super::device::Cuda;
use crate::{OpsError, ScratchNeeds};

/// The arena.
pub(super) struct Scratch {
    memory: CudaBuf<u8>,
}

impl Cuda {
    /// Makes the arena at least `bytes` long. Recorded graphs keep the address of the arena they
    /// saw, so it must not grow after the first.
    pub(super) fn reserve_bytes(&self, bytes: usize) -> Result<(), OpsError> {
        let mut scratch = self.scratch.borrow_mut();
        let enough = scratch
            .as_ref()
            .is_some_and(|scratch| scratch.memory.len() >= bytes);
        if !enough {
            *scratch = Some(Scratch {
                memory: CudaBuf::zeroed(&self.device, bytes)?,
            });
        }
        Ok(())
    }

    /// The arena's address, for an op that needs `bytes` of it.
    ///
    /// # Panics
    /// If less was reserved: the op's needs are missing from `scratch_bytes`.
    pub(super) fn scratch(&self, bytes: usize) -> DevicePtr {
        let scratch = self.scratch.borrow();
        let reserved = scratch.as_ref().map_or(0, |scratch| scratch.memory.len());
        match &*scratch {
            Some(scratch) if bytes <= reserved => scratch.memory.ptr(),
            _ if bytes == 0 => DevicePtr::NULL,
            _ => panic!("an op needs {bytes} bytes of scratch, {reserved} are reserved"),
        }
    }
}

/// What each op needs, in bytes.
const NEEDS: &[fn(&Cuda, &ScratchNeeds) -> usize] = &[super::linear_add_norm::scratch_bytes];

/// The largest need of any op.
pub(super) fn bytes(cuda: &Cuda, needs: &ScratchNeeds) -> usize {
    NEEDS
        .iter()
        .map(|need| need(cuda, needs))
        .max()
        .unwrap_or(0)
}

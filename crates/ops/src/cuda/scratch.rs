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

/// Arrays of one op behind each other in the arena.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout {
    /// Bytes so far.
    pub(super) bytes: usize,
}

impl Layout {
    /// Offset of `len` values of `T`, aligned to 16 bytes.
    pub(super) fn take<T>(&mut self, len: usize) -> usize {
        let offset = self.bytes.next_multiple_of(16);
        self.bytes = offset + len * size_of::<T>();
        offset
    }
}

/// What each op needs, in bytes.
const NEEDS: &[fn(&Cuda, &ScratchNeeds) -> usize] = &[
    super::build_tree::scratch_bytes,
    super::gdn_chunk::scratch_bytes,
    super::gdn_scan::scratch_bytes,
    super::linear_add_norm::scratch_bytes,
    super::sample::scratch_bytes,
    super::splits::scratch_bytes,
    super::token_logprobs::scratch_bytes,
    super::topk::scratch_bytes,
];

/// The largest need of any op.
pub(super) fn bytes(cuda: &Cuda, needs: &ScratchNeeds) -> usize {
    NEEDS
        .iter()
        .map(|need| need(cuda, needs))
        .max()
        .unwrap_or(0)
}

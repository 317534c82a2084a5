//! Read-only memory-mapped files.

use std::fs::File;
use std::path::Path;

use crate::OpsError;

/// A checkpoint file mapped into memory.
///
/// The file must not be truncated while it is mapped; that is the same assumption every loader of
/// mapped checkpoints makes, and breaking it ends the process with a bus error.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps `path` read-only.
    pub fn open(path: &Path) -> Result<Self, OpsError> {
        let error = |source| OpsError::Map {
            path: path.display().to_string(),
            source,
        };
        let file = File::open(path).map_err(error)?;
        // SAFETY: the map is read-only and private to this process; the file's contents are read
        // as plain bytes, for which every bit pattern is valid.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(error)?;
        Ok(MappedFile { map })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

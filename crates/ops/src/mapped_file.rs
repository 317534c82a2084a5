//! Read-only memory-mapped files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{OpsError, ReadAt};

/// A checkpoint file mapped into memory.
///
/// The file must not be truncated while it is mapped; that is the same assumption every loader of
/// mapped checkpoints makes, and breaking it ends the process with a bus error.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
    file: File,
    path: PathBuf,
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
        Ok(MappedFile {
            map,
            file,
            path: path.to_owned(),
        })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

/// Reads by system calls: large reads take no page faults, and a file that has become shorter is an
/// error.
impl ReadAt for MappedFile {
    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OpsError> {
        self.file
            .read_exact_at(out, offset as u64)
            .map_err(|source| OpsError::Read {
                path: self.path.display().to_string(),
                source,
            })
    }
}

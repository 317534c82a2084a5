//! Where the files of a checkpoint come from.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ops::{MappedFile, OpsError, ReadAt};

use crate::ModelError;

/// A checkpoint: a folder, or files compiled into the binary.
#[derive(Clone, Debug)]
pub enum CheckpointSource {
    /// A folder with `config.json` and safetensors files.
    Folder(PathBuf),
    /// Named files in memory.
    Memory {
        /// What to call it in messages.
        name: &'static str,
        /// File name and contents.
        files: &'static [(&'static str, &'static [u8])],
    },
}

impl CheckpointSource {
    /// How messages name a file of this checkpoint.
    pub fn display(&self, file: &str) -> String {
        match self {
            CheckpointSource::Folder(folder) => folder.join(file).display().to_string(),
            CheckpointSource::Memory { name, .. } => format!("{name}/{file}"),
        }
    }

    /// Whether the file exists.
    pub fn has(&self, file: &str) -> bool {
        match self {
            CheckpointSource::Folder(folder) => folder.join(file).is_file(),
            CheckpointSource::Memory { files, .. } => files.iter().any(|(name, _)| *name == file),
        }
    }

    /// A small file as text.
    pub fn text(&self, file: &str) -> Result<String, ModelError> {
        let error = |reason: String| ModelError::File {
            file: self.display(file),
            reason,
        };
        match self {
            CheckpointSource::Folder(folder) => {
                fs::read_to_string(folder.join(file)).map_err(|cause| error(cause.to_string()))
            }
            CheckpointSource::Memory { .. } => String::from_utf8(self.memory(file)?.to_vec())
                .map_err(|cause| error(format!("expected UTF-8 text: {cause}"))),
        }
    }

    /// A large file, mapped where it lies on disk.
    pub(crate) fn bytes(&self, file: &str) -> Result<FileBytes, ModelError> {
        match self {
            CheckpointSource::Folder(folder) => MappedFile::open(&folder.join(file))
                .map(|file| FileBytes::Mapped(Arc::new(file)))
                .map_err(|cause| ModelError::File {
                    file: self.display(file),
                    reason: cause.to_string(),
                }),
            CheckpointSource::Memory { .. } => Ok(FileBytes::Static(self.memory(file)?)),
        }
    }

    fn memory(&self, file: &str) -> Result<&'static [u8], ModelError> {
        let CheckpointSource::Memory { files, .. } = self else {
            unreachable!("only called for files in memory");
        };
        files
            .iter()
            .find(|(name, _)| *name == file)
            .map(|(_, bytes)| *bytes)
            .ok_or_else(|| ModelError::File {
                file: self.display(file),
                reason: "the file is not part of this build".into(),
            })
    }
}

/// Contents of a weight file.
#[derive(Clone)]
pub(crate) enum FileBytes {
    /// Mapped from disk.
    Mapped(Arc<MappedFile>),
    /// Part of the binary.
    Static(&'static [u8]),
}

impl FileBytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            FileBytes::Mapped(file) => file.bytes(),
            FileBytes::Static(bytes) => bytes,
        }
    }
}

impl ReadAt for FileBytes {
    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OpsError> {
        match self {
            FileBytes::Mapped(file) => file.read_at(offset, out),
            FileBytes::Static(bytes) => bytes.read_at(offset, out),
        }
    }
}

/// Bytes handled so far, shared with whoever reports progress.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress {
    /// Bytes loaded (or downloaded) so far.
    pub done: Arc<AtomicU64>,
    /// Bytes in all; 0 until known.
    pub total: Arc<AtomicU64>,
}

impl LoadProgress {
    /// More bytes will come.
    pub fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes have come.
    pub fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

//! Where the files of a checkpoint come from.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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

/// Bytes read so far, shared with whoever reports progress.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress {
    /// Bytes of tensors converted so far.
    pub done: Arc<AtomicU64>,
    /// Bytes of all tensors to convert; 0 until known.
    pub total: Arc<AtomicU64>,
}

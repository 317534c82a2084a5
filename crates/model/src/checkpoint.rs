//! The tensors of a checkpoint, taken one by one under strict rules.

use std::collections::BTreeMap;

use ops::{Dtype, Piece};
use safetensors::{Dtype as FileDtype, SafeTensors};

use crate::source::FileBytes;
use crate::weight_files::{INDEX, SINGLE, index};
use crate::{CheckpointSource, ModelError};

/// Where one tensor lies.
#[derive(Clone)]
struct Entry {
    /// Name as written in the file.
    written: String,
    shard: usize,
    dtype: FileDtype,
    shape: Vec<usize>,
    /// Bytes of the values inside the file.
    range: std::ops::Range<usize>,
}

/// Tensors by canonical name, from one file or a sharded set. Every tensor must be taken exactly
/// once; what is left at [`Checkpoint::finish`] is an error.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    shards: Vec<(String, FileBytes)>,
    entries: BTreeMap<String, Entry>,
    /// Tensors left out by rule.
    pub(crate) skipped: usize,
    /// Tensors taken.
    pub(crate) taken: usize,
    /// Values taken.
    pub(crate) values: u64,
    /// Refuse values that are not finite.
    check_finite: bool,
}

/// Values of a tensor, still in their file.
#[derive(Clone)]
pub(crate) struct FileTensor {
    bytes: FileBytes,
    start: usize,
    len: usize,
    dtype: Dtype,
}

impl FileTensor {
    /// All values.
    pub(crate) fn piece(&self) -> Piece<'_> {
        Piece {
            source: &self.bytes,
            start: self.start,
            len: self.len,
            dtype: self.dtype,
        }
    }

    /// Bytes in the file.
    pub(crate) fn bytes(&self) -> u64 {
        (self.len * self.dtype.bytes()) as u64
    }
}

/// Maps a tensor name of a file to the canonical one; `None` = skip.
pub(crate) type Naming = fn(&str) -> Option<String>;

/// The target: both prefixes are accepted, vision and multi-token prediction are skipped.
pub(crate) fn target_naming(name: &str) -> Option<String> {
    if name.starts_with("model.visual.") || name.starts_with("mtp.") {
        return None;
    }
    Some(match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.to_owned(),
    })
}

/// The drafter: names as they are.
pub(crate) fn drafter_naming(name: &str) -> Option<String> {
    Some(name.to_owned())
}

impl Checkpoint {
    /// Reads all headers.
    pub(crate) fn open(
        source: &CheckpointSource,
        naming: Naming,
        check_finite: bool,
    ) -> Result<Self, ModelError> {
        let index = index(source)?;
        let files = source.weight_files()?;
        let mut checkpoint = Checkpoint {
            shards: Vec::new(),
            entries: BTreeMap::new(),
            skipped: 0,
            taken: 0,
            values: 0,
            check_finite,
        };
        for file in &files {
            if !source.has(file) {
                let reason = match &index {
                    Some(_) => format!("the shard is missing, but {INDEX} names it"),
                    None => format!("expected {SINGLE} or {INDEX}, found neither"),
                };
                return Err(ModelError::File {
                    file: source.display(file),
                    reason,
                });
            }
            let bytes = source.bytes(file)?;
            checkpoint.add_shard(source.display(file), bytes, naming, |name| match &index {
                Some(map) => map.get(name) == Some(file),
                None => true,
            })?;
        }
        if let Some(map) = index {
            checkpoint.all_found(&source.display(INDEX), &map, naming)?;
        }
        Ok(checkpoint)
    }

    /// Bytes of all tensors that are left.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes: usize = self.entries.values().map(|entry| entry.range.len()).sum();
        bytes as u64
    }

    fn add_shard(
        &mut self,
        file: String,
        bytes: FileBytes,
        naming: Naming,
        in_index: impl Fn(&str) -> bool,
    ) -> Result<(), ModelError> {
        let error = |cause: safetensors::SafeTensorError| ModelError::File {
            file: file.clone(),
            reason: format!("not a complete safetensors file: {cause}"),
        };
        let data = bytes.as_slice();
        // `deserialize` checks that header and data have the lengths they claim.
        SafeTensors::deserialize(data).map_err(error)?;
        let (header_bytes, metadata) = SafeTensors::read_metadata(data).map_err(error)?;
        let data_start = size_of::<u64>() + header_bytes;
        let shard = self.shards.len();
        for (written, info) in metadata.tensors() {
            let tensor_error = |reason: &str| ModelError::Tensor {
                file: file.clone(),
                tensor: written.clone(),
                reason: reason.to_owned(),
            };
            if !in_index(&written) {
                return Err(tensor_error("the index does not place it in this file"));
            }
            let Some(name) = naming(&written) else {
                self.skipped += 1;
                continue;
            };
            let (start, end) = info.data_offsets;
            let entry = Entry {
                written: written.clone(),
                shard,
                dtype: info.dtype,
                shape: info.shape.clone(),
                range: data_start + start..data_start + end,
            };
            if self.entries.insert(name, entry).is_some() {
                return Err(tensor_error(
                    "stands twice, under two prefixes or in two files",
                ));
            }
        }
        self.shards.push((file, bytes));
        Ok(())
    }

    fn all_found(
        &self,
        index_file: &str,
        map: &BTreeMap<String, String>,
        naming: Naming,
    ) -> Result<(), ModelError> {
        for (written, file) in map {
            let Some(name) = naming(written) else {
                continue;
            };
            if !self.entries.contains_key(&name) {
                return Err(ModelError::Tensor {
                    file: index_file.to_owned(),
                    tensor: written.clone(),
                    reason: format!("the index places it in {file}, which does not have it"),
                });
            }
        }
        Ok(())
    }

    /// Whether a tensor is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Takes a tensor of this shape.
    pub(crate) fn take(&mut self, name: &str, shape: &[usize]) -> Result<FileTensor, ModelError> {
        let Some(entry) = self.entries.remove(name) else {
            return Err(ModelError::Tensor {
                file: self
                    .shards
                    .first()
                    .map(|(file, _)| file.clone())
                    .unwrap_or_default(),
                tensor: name.to_owned(),
                reason: format!("missing; expected shape {shape:?}"),
            });
        };
        let (file, bytes) = &self.shards[entry.shard];
        let error = |reason: String| ModelError::Tensor {
            file: file.clone(),
            tensor: entry.written.clone(),
            reason,
        };
        if entry.shape != shape {
            return Err(error(format!(
                "expected shape {shape:?}, found {:?}",
                entry.shape
            )));
        }
        let dtype = match entry.dtype {
            FileDtype::F32 => Dtype::F32,
            FileDtype::F16 => Dtype::F16,
            FileDtype::BF16 => Dtype::Bf16,
            other => return Err(error(format!("expected BF16, F16 or F32, found {other:?}"))),
        };
        let tensor = FileTensor {
            bytes: bytes.clone(),
            start: entry.range.start,
            len: shape.iter().product(),
            dtype,
        };
        if self.check_finite
            && let Some((at, value)) = tensor.piece().first_not_finite()?
        {
            return Err(error(format!(
                "value {at} is {value}; expected finite values"
            )));
        }
        self.taken += 1;
        self.values += tensor.len as u64;
        Ok(tensor)
    }

    /// Ends the loading: nothing may be left.
    pub(crate) fn finish(self) -> Result<crate::CheckReport, ModelError> {
        if let Some(entry) = self.entries.values().next() {
            return Err(ModelError::Tensor {
                file: self.shards[entry.shard].0.clone(),
                tensor: entry.written.clone(),
                reason: format!(
                    "unknown ({} unknown in all); expected only the tensors of the architecture",
                    self.entries.len()
                ),
            });
        }
        Ok(crate::CheckReport {
            tensors: self.taken,
            values: self.values,
            skipped: self.skipped,
        })
    }
}

//! The tensors of a checkpoint, taken one by one under strict rules.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use safetensors::{Dtype as FileDtype, SafeTensors};

use crate::source::FileBytes;
use crate::{CheckpointSource, LoadProgress, ModelError};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Where one tensor lies.
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
    progress: LoadProgress,
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
        progress: &LoadProgress,
    ) -> Result<Self, ModelError> {
        let index = source.has(INDEX).then(|| index(source)).transpose()?;
        let files: Vec<String> = match &index {
            Some(map) => {
                let mut files: Vec<String> = map.values().cloned().collect();
                files.sort();
                files.dedup();
                files
            }
            None => vec![SINGLE.to_owned()],
        };
        let mut checkpoint = Checkpoint {
            shards: Vec::new(),
            entries: BTreeMap::new(),
            skipped: 0,
            taken: 0,
            values: 0,
            check_finite,
            progress: progress.clone(),
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
        let bytes: usize = checkpoint
            .entries
            .values()
            .map(|entry| entry.range.len())
            .sum();
        progress.expect(bytes as u64);
        Ok(checkpoint)
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

    /// Takes a tensor of this shape as f32 on the host.
    pub(crate) fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
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
            FileDtype::F32 => DType::F32,
            FileDtype::F16 => DType::F16,
            FileDtype::BF16 => DType::BF16,
            other => return Err(error(format!("expected BF16, F16 or F32, found {other:?}"))),
        };
        let raw = &bytes.as_slice()[entry.range.clone()];
        let tensor = Tensor::from_raw_buffer(raw, dtype, shape, &Device::Cpu)
            .and_then(|tensor| tensor.to_dtype(DType::F32))
            .map_err(|cause| error(cause.to_string()))?;
        if self.check_finite {
            let values = flat(&tensor);
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return Err(error(format!(
                    "value {at} is {}; expected finite values",
                    values[at]
                )));
            }
        }
        self.progress.add(entry.range.len() as u64);
        self.taken += 1;
        self.values += tensor.elem_count() as u64;
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

/// A host tensor's values, row-major.
pub(crate) fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor
        .flatten_all()
        .and_then(|flat| flat.to_vec1::<f32>())
        .expect("host tensors of the loader are contiguous f32")
}

fn index(source: &CheckpointSource) -> Result<BTreeMap<String, String>, ModelError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = source.text(INDEX)?;
    let error = |reason: String| ModelError::File {
        file: source.display(INDEX),
        reason,
    };
    let index: Index = serde_json::from_str(&text)
        .map_err(|cause| error(format!("expected an object with weight_map: {cause}")))?;
    if index.weight_map.is_empty() {
        return Err(error("weight_map is empty".into()));
    }
    if let Some(bad) = index.weight_map.values().find(|file| {
        let mut parts = std::path::Path::new(file).components();
        !matches!(
            (parts.next(), parts.next()),
            (Some(std::path::Component::Normal(_)), None)
        )
    }) {
        return Err(error(format!(
            "\"{bad}\" is not the name of a file in the same folder"
        )));
    }
    Ok(index.weight_map)
}

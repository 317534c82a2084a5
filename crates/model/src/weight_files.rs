//! Which files hold the weights of a checkpoint.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use crate::{CheckpointSource, ModelError};

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The file of every tensor of a sharded checkpoint, by its written name; `None` = one file.
pub(crate) fn index(
    source: &CheckpointSource,
) -> Result<Option<BTreeMap<String, String>>, ModelError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    if !source.has(INDEX) {
        return Ok(None);
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
        let mut parts = Path::new(file).components();
        !matches!(
            (parts.next(), parts.next()),
            (Some(Component::Normal(_)), None)
        )
    }) {
        return Err(error(format!(
            "\"{bad}\" is not the name of a file in the same folder"
        )));
    }
    Ok(Some(index.weight_map))
}

impl CheckpointSource {
    /// Names of the files that hold the weights, in order: those of the index, else the single
    /// one. They need not exist.
    pub fn weight_files(&self) -> Result<Vec<String>, ModelError> {
        let Some(map) = index(self)? else {
            return Ok(vec![SINGLE.to_owned()]);
        };
        let mut files: Vec<String> = map.into_values().collect();
        files.sort();
        files.dedup();
        Ok(files)
    }
}

//! The tiny trained pair: compiled into the binary, or the same folder on disk.

use engine::CheckpointSource;
#[cfg(not(feature = "bundled-model"))]
use engine::ModelError;

/// Name of the pair, and of its folder.
pub const NAME: &str = "spinney-tiny";

/// Target and drafter.
#[derive(Clone, Debug)]
pub struct BundledPair {
    /// The target.
    pub target: CheckpointSource,
    /// Its drafter.
    pub drafter: CheckpointSource,
}

#[cfg(feature = "bundled-model")]
macro_rules! files {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../spinney-tiny/", $folder, $name)) as &[u8])),*]
    };
}

/// The pair inside the binary.
#[cfg(feature = "bundled-model")]
pub fn pair() -> Result<BundledPair, engine::ModelError> {
    Ok(BundledPair {
        target: CheckpointSource::Memory {
            name: NAME,
            files: files!("":
                "config.json",
                "model.safetensors",
                "tokenizer.json",
                "tokenizer_config.json",
                "generation_config.json",
                "chat_template.jinja",
            ),
        },
        drafter: CheckpointSource::Memory {
            name: "spinney-tiny/drafter",
            files: files!("drafter/": "config.json", "model.safetensors"),
        },
    })
}

/// The pair's folder: next to the executable or above it, as in an installation or in the source
/// tree. The variable SPINNEY_BUNDLED_MODEL names another one.
#[cfg(not(feature = "bundled-model"))]
pub fn pair() -> Result<BundledPair, ModelError> {
    const VARIABLE: &str = "SPINNEY_BUNDLED_MODEL";
    /// Folders above the executable that are looked into.
    const LEVELS: usize = 5;
    let fault = |reason: String| ModelError::File {
        file: NAME.to_owned(),
        reason,
    };
    let folder = match std::env::var_os(VARIABLE) {
        Some(folder) => {
            let folder = std::path::PathBuf::from(folder);
            if !folder.is_dir() {
                let shown = folder.display();
                return Err(fault(format!("{VARIABLE}={shown}: expected a folder")));
            }
            folder
        }
        None => std::env::current_exe()
            .ok()
            .and_then(|program| {
                program
                    .ancestors()
                    .skip(1)
                    .take(LEVELS)
                    .flat_map(|above| [above.join(NAME), above.join("crates/server").join(NAME)])
                    .find(|folder| folder.is_dir())
            })
            .ok_or_else(|| {
                fault(format!(
                    "this build has no bundled model and its folder is nowhere above the \
                     executable; give --model-path DIR or set {VARIABLE}"
                ))
            })?,
    };
    Ok(BundledPair {
        drafter: CheckpointSource::Folder(folder.join("drafter")),
        target: CheckpointSource::Folder(folder),
    })
}

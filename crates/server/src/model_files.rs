//! The text side of a checkpoint: tokenizer, chat template, generation defaults.

use std::path::Path;
use std::sync::Arc;

use engine::{CheckpointSource, ModelError};
use serde_json::{Map, Value};

use crate::template::ChatTemplate;
use crate::vocabulary::Vocabulary;

/// Everything of a checkpoint that the server reads itself.
#[derive(Debug)]
pub struct ModelFiles {
    /// The tokenizer.
    pub vocabulary: Arc<Vocabulary>,
    /// The chat template; a model without one serves completions only.
    pub template: Option<ChatTemplate>,
    /// `generation_config.json`.
    pub generation: GenerationDefaults,
    /// `config.json` as text, part of the fingerprint.
    pub config_text: String,
}

/// What `generation_config.json` says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Ids that end a turn.
    pub end_ids: Vec<u32>,
    /// The other entries, null ones left out.
    pub sampling: Map<String, Value>,
}

impl ModelFiles {
    /// Reads the files of `source`; `template_path` replaces the checkpoint's template.
    pub fn read(
        source: &CheckpointSource,
        template_path: Option<&Path>,
    ) -> Result<Self, ModelError> {
        Self::read_apart(source, source, template_path)
    }

    /// The configuration of `model` with the tokenizer, the template and the defaults of `source`.
    pub fn read_apart(
        model: &CheckpointSource,
        source: &CheckpointSource,
        template_path: Option<&Path>,
    ) -> Result<Self, ModelError> {
        let config_text = text(required(model, "config.json")?, "config.json")?;
        let vocabulary = Vocabulary::read(&required(source, "tokenizer.json")?, "tokenizer.json")?;
        let template = match template_path {
            Some(path) => {
                let name = path.display().to_string();
                let bytes = std::fs::read(path).map_err(|error| fault(&name, &error))?;
                Some((text(bytes, &name)?, name))
            }
            None => checkpoint_template(source)?,
        };
        let template = template
            .map(|(source, name)| ChatTemplate::new(&source, &name))
            .transpose()?;
        let generation = GenerationDefaults::read(source, &config_text)?;
        generation.check_ids(vocabulary.len())?;
        Ok(ModelFiles {
            vocabulary: Arc::new(vocabulary),
            template,
            generation,
            config_text,
        })
    }
}

impl GenerationDefaults {
    /// Reads `generation_config.json`, which a checkpoint may lack; `config` is the model's.
    pub fn read(source: &CheckpointSource, config: &str) -> Result<Self, ModelError> {
        let bytes = read(source, "generation_config.json")?;
        Self::parse(bytes.as_deref().unwrap_or(b"{}"), config)
    }

    /// Ends of turn come from the generation configuration, else from the model's.
    fn parse(generation: &[u8], config: &str) -> Result<Self, ModelError> {
        let file = "generation_config.json";
        let mut sampling: Map<String, Value> =
            serde_json::from_slice(generation).map_err(|error| fault(file, &error))?;
        sampling.retain(|_, value| !value.is_null());
        check_ranges(&sampling, file)?;
        let mut ends = sampling.get("eos_token_id").cloned();
        if ends.is_none() {
            let config: Value =
                serde_json::from_str(config).map_err(|error| fault("config.json", &error))?;
            ends = ["/eos_token_id", "/text_config/eos_token_id"]
                .iter()
                .find_map(|path| {
                    config
                        .pointer(path)
                        .filter(|value| !value.is_null())
                        .cloned()
                });
        }
        let ends = match ends {
            None => Vec::new(),
            Some(Value::Array(ids)) => ids,
            Some(id) => vec![id],
        };
        let mut end_ids = Vec::new();
        for id in ends {
            let id = id
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| {
                    let reason = format!("eos_token_id: expected token ids, found {id}");
                    ModelError::File {
                        file: file.to_owned(),
                        reason,
                    }
                })?;
            end_ids.push(id);
        }
        Ok(GenerationDefaults { end_ids, sampling })
    }

    /// Ends of turn must be tokens, else no request could be served.
    fn check_ids(&self, tokens: usize) -> Result<(), ModelError> {
        match self.end_ids.iter().find(|&&id| id as usize >= tokens) {
            None => Ok(()),
            Some(id) => {
                let reason = format!("eos_token_id: the tokenizer has {tokens} tokens, found {id}");
                Err(fault("generation_config.json", &reason))
            }
        }
    }

    /// A number of the file.
    pub fn number(&self, name: &str) -> Option<f32> {
        self.sampling
            .get(name)
            .and_then(Value::as_f64)
            .map(|number| number as f32)
    }
}

/// Defaults have the ranges that requests have.
fn check_ranges(sampling: &Map<String, Value>, file: &str) -> Result<(), ModelError> {
    let positive = f64::MIN_POSITIVE;
    for (key, low, high) in [
        ("temperature", 0.0, 2.0),
        ("top_p", 0.0, 1.0),
        ("top_k", -1.0, f64::from(u32::MAX)),
        ("min_p", 0.0, 1.0),
        ("repetition_penalty", positive, 2.0),
    ] {
        let Some(value) = sampling.get(key) else {
            continue;
        };
        if !value
            .as_f64()
            .is_some_and(|number| (low..=high).contains(&number))
        {
            let low = if low == positive {
                "above 0".to_owned()
            } else {
                format!("{low}")
            };
            let reason = format!("{key}: expected a number from {low} to {high}, found {value}");
            return Err(fault(file, &reason));
        }
    }
    Ok(())
}

/// The template's own file, else the entry of `tokenizer_config.json`.
fn checkpoint_template(source: &CheckpointSource) -> Result<Option<(String, String)>, ModelError> {
    let file = "chat_template.jinja";
    if let Some(bytes) = read(source, file)? {
        return Ok(Some((text(bytes, file)?, file.to_owned())));
    }
    let file = "tokenizer_config.json";
    let Some(bytes) = read(source, file)? else {
        return Ok(None);
    };
    let config: Value = serde_json::from_slice(&bytes).map_err(|error| fault(file, &error))?;
    let template = config.get("chat_template").and_then(Value::as_str);
    Ok(template.map(|template| (template.to_owned(), file.to_owned())))
}

fn required(source: &CheckpointSource, file: &str) -> Result<Vec<u8>, ModelError> {
    read(source, file)?.ok_or_else(|| match source {
        CheckpointSource::Folder(folder) if !folder.is_dir() => fault(
            &folder.display().to_string(),
            &"expected a model folder, found none",
        ),
        CheckpointSource::Folder(folder) => fault(
            &folder.join(file).display().to_string(),
            &"the file is missing",
        ),
        CheckpointSource::Memory { name, .. } => {
            fault(&format!("{name}/{file}"), &"the file is missing")
        }
    })
}

fn read(source: &CheckpointSource, file: &str) -> Result<Option<Vec<u8>>, ModelError> {
    match source {
        CheckpointSource::Folder(folder) => {
            let path = folder.join(file);
            match std::fs::read(&path) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(fault(&path.display().to_string(), &error)),
            }
        }
        CheckpointSource::Memory { files, .. } => Ok(files
            .iter()
            .find(|(name, _)| *name == file)
            .map(|(_, bytes)| bytes.to_vec())),
    }
}

fn text(bytes: Vec<u8>, file: &str) -> Result<String, ModelError> {
    String::from_utf8(bytes).map_err(|error| fault(file, &error))
}

fn fault(file: &str, reason: &dyn std::fmt::Display) -> ModelError {
    ModelError::File {
        file: file.to_owned(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_turn_are_one_id_or_several() {
        let parse = |text: &str, config: &str| GenerationDefaults::parse(text.as_bytes(), config);
        let both = parse(
            r#"{"eos_token_id": [5, 4], "top_k": 20, "top_p": null}"#,
            "{}",
        )
        .unwrap();
        assert_eq!(both.end_ids, [5, 4]);
        assert_eq!(
            (both.number("top_k"), both.number("top_p")),
            (Some(20.0), None)
        );
        assert_eq!(parse(r#"{"eos_token_id": 7}"#, "{}").unwrap().end_ids, [7]);
        let config = r#"{"text_config": {"eos_token_id": 9}}"#;
        assert_eq!(parse("{}", config).unwrap().end_ids, [9]);
        assert!(parse(r#"{"eos_token_id": "x"}"#, "{}").is_err());
        assert!(both.check_ids(6).is_ok());
        let error = both.check_ids(5).unwrap_err().to_string();
        assert!(error.contains("has 5 tokens, found 5"), "{error}");
    }

    #[test]
    fn defaults_outside_their_ranges_are_faults_of_the_file() {
        for bad in [
            r#"{"temperature": -1}"#,
            r#"{"temperature": "x"}"#,
            r#"{"temperature": 5}"#,
            r#"{"top_p": 7}"#,
            r#"{"top_k": -2}"#,
            r#"{"min_p": 2}"#,
            r#"{"repetition_penalty": 0}"#,
        ] {
            let error = GenerationDefaults::parse(bad.as_bytes(), "{}").unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("generation_config.json") && error.contains("found"),
                "{error}"
            );
        }
        let good = r#"{"temperature": 0, "top_p": 1, "top_k": -1, "repetition_penalty": 1.05}"#;
        assert!(GenerationDefaults::parse(good.as_bytes(), "{}").is_ok());
    }

    #[test]
    fn missing_folders_and_files_are_named() {
        let missing = CheckpointSource::Folder("no/such/folder".into());
        let error = ModelFiles::read(&missing, None).unwrap_err().to_string();
        assert!(
            error.contains("no/such/folder") && error.contains("folder"),
            "{error}"
        );
        let empty = CheckpointSource::Memory {
            name: "empty",
            files: &[],
        };
        let error = ModelFiles::read(&empty, None).unwrap_err().to_string();
        assert_eq!(error, "empty/config.json: the file is missing");
    }
}

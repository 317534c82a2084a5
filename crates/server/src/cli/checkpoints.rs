//! Finds the checkpoints that the flags name and puts together what the engine is started with.

use std::path::{Path, PathBuf};

use engine::{CheckpointSource, EngineConfig, LoadSpec};

use super::args::limits::{BatchArgs, ContextArgs};
use super::args::model::ModelArgs;
use super::args::speculation::SpeculationArgs;
use super::exit::{Exit, Failure};
use crate::bundled;

/// Target, drafter and their names.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    /// The target.
    pub target: CheckpointSource,
    /// The drafter, given or bundled.
    pub drafter: Option<CheckpointSource>,
    /// The path as given, or the name of the bundled pair.
    pub model_path: String,
}

impl Checkpoints {
    /// The given folders; the bundled target with its drafter where none are given.
    pub fn find(model: &ModelArgs, speculation: &SpeculationArgs) -> Result<Self, Failure> {
        let given = speculation.speculative_draft_model_path.as_deref();
        let given = given
            .map(|path| folder("--speculative-draft-model-path", path))
            .transpose()?;
        let Some(path) = model.model_path.as_deref() else {
            let pair = bundled::pair()?;
            return Ok(Checkpoints {
                target: pair.target,
                drafter: Some(given.unwrap_or(pair.drafter)),
                model_path: bundled::NAME.to_owned(),
            });
        };
        Ok(Checkpoints {
            target: folder("--model-path", path)?,
            drafter: given,
            model_path: path.display().to_string(),
        })
    }

    /// Names of the model: the ones given, else the path and its last component.
    pub fn served_names(&self, given: &[String]) -> Vec<String> {
        if !given.is_empty() {
            return given.to_vec();
        }
        let mut names = vec![self.model_path.clone()];
        let last = Path::new(&self.model_path).file_name();
        names.extend(last.map(|name| name.to_string_lossy().into_owned()));
        names.dedup();
        names
    }

    /// What to load. `vocab_used`: ids that name tokens.
    pub fn load_spec(&self, model: &ModelArgs, vocab_used: usize) -> LoadSpec {
        LoadSpec {
            target: self.target.clone(),
            drafter: self.drafter.clone(),
            device: model.device(),
            dtype: model.dtype(),
            vocab_used,
        }
    }

    /// Limits and modes.
    pub fn engine_config(
        &self,
        speculation: &SpeculationArgs,
        context: &ContextArgs,
        batch: &BatchArgs,
    ) -> Result<EngineConfig, Failure> {
        let resolved = speculation.resolve(self.drafter.is_some())?;
        Ok(EngineConfig {
            algorithm: resolved.algorithm,
            chain_drafts: resolved.chain_drafts,
            budget: resolved.budget,
            topk_cap: speculation.speculative_ddtree_topk_cap,
            running_max: batch.max_running_requests,
            queue_max: batch.max_queued_requests,
            context_length: context.context_length,
            tokens_total: batch.max_total_tokens,
            prefill_chunk: context.chunked_prefill_size,
            draft_batch_max: speculation.speculative_disable_batch_size,
            skip_warmup: batch.skip_server_warmup,
        })
    }
}

/// The folder of a checkpoint, `None` for the bundled target.
pub fn target(model_path: Option<&Path>) -> Result<CheckpointSource, Failure> {
    match model_path {
        Some(path) => folder("--model-path", path),
        None => Ok(bundled::pair()?.target),
    }
}

fn folder(flag: &str, path: &Path) -> Result<CheckpointSource, Failure> {
    if path.is_dir() {
        return Ok(CheckpointSource::Folder(PathBuf::from(path)));
    }
    let found = match path.exists() {
        true => "expected a folder, found a file; give the folder that holds it",
        false => "expected a folder, found nothing; download the model and give its folder",
    };
    let message = format!("{flag} {}: {found}", path.display());
    Err(Failure::new(Exit::ModelFiles, message))
}

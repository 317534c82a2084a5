//! Finds the checkpoints that the flags name and puts together what the engine is started with.

use std::path::{Path, PathBuf};

use engine::{
    CheckOutput, CheckpointSource, EngineConfig, Fetch, LoadFormat, LoadProgress, LoadSpec,
    PrefixCacheConfig,
};

use serde_json::Value;

use super::args::limits::{BatchArgs, ContextArgs};
use super::args::model::{HubArgs, ModelArgs};
use super::args::speculation::SpeculationArgs;
use super::exit::{Exit, Failure};
use super::progress;
use crate::bundled;
use crate::hub::{Hub, HubEnvironment, HubError, HubId, HubModel};
use crate::model_files::ModelFiles;

/// Target, drafter and their names.
#[derive(Debug)]
pub struct Checkpoints {
    /// The target.
    pub target: CheckpointSource,
    /// The drafter, given or bundled.
    pub drafter: Option<CheckpointSource>,
    /// The path or name as given, or the name of the bundled pair.
    pub model_path: String,
    format: LoadFormat,
    /// Models of the hub whose weights are not here yet.
    incomplete: Vec<HubModel>,
}

/// A checkpoint as a flag names it.
struct Found {
    source: CheckpointSource,
    shown: String,
    remote: Option<HubModel>,
}

impl Checkpoints {
    /// What the flags name; the bundled target with its drafter where they name none. Of a model on
    /// the hub the small files are fetched.
    pub fn find(model: &ModelArgs, speculation: &SpeculationArgs) -> Result<Self, Failure> {
        let format = model.format();
        let weights = format == LoadFormat::Safetensors;
        let find = |flag, path: &Path| find(flag, path, model.hub, weights);
        let mut remotes = Vec::new();
        let mut keep = |found: Found| {
            remotes.extend(found.remote);
            (found.source, found.shown)
        };
        let given = speculation.speculative_draft_model_path.as_deref();
        let drafter = given
            .map(|path| find("--speculative-draft-model-path", path))
            .transpose()?
            .map(|found| keep(found).0);
        let (target, model_path, drafter) = match model.model_path.as_deref() {
            Some(path) => {
                let (target, shown) = keep(find("--model-path", path)?);
                (target, shown, drafter)
            }
            None => {
                let pair = bundled::pair()?;
                let drafter = drafter.unwrap_or(pair.drafter);
                (pair.target, bundled::NAME.to_owned(), Some(drafter))
            }
        };
        remotes.retain(|remote: &HubModel| !remote.is_complete());
        Ok(Checkpoints {
            target,
            drafter,
            model_path,
            format,
            incomplete: remotes,
        })
    }

    /// The text side of the target. Dummy weights go with the bundled tokenizer where the model has
    /// none.
    pub fn text_files(&self, template: Option<&Path>) -> Result<ModelFiles, Failure> {
        if self.borrows_tokenizer() {
            let text = bundled::pair()?.target;
            return Ok(ModelFiles::read_apart(&self.target, &text, template)?);
        }
        Ok(ModelFiles::read(&self.target, template)?)
    }

    fn borrows_tokenizer(&self) -> bool {
        self.format != LoadFormat::Safetensors && !self.target.has("tokenizer.json")
    }

    /// [`Checkpoints::load_spec`] for a benchmark that shows no text. The model's own tokenizer
    /// would name nearly every row of the head, the bundled one names few: where that stands in, all
    /// rows are ranked and sampled, which takes the time that it takes with the model's own.
    pub fn bench_spec(&self, model: &ModelArgs, files: &ModelFiles) -> Result<LoadSpec, Failure> {
        let ids = match self.borrows_tokenizer() {
            true => vocab_rows(&self.target.text("config.json")?),
            false => files.vocabulary.len(),
        };
        Ok(self.load_spec(model, ids))
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
            format: self.format,
            device: model.device,
            dtype: model.dtype(),
            vocab_used,
            graphs: !model.disable_cuda_graph,
        }
    }

    /// Limits and modes.
    pub fn engine_config(
        &self,
        speculation: &SpeculationArgs,
        context: &ContextArgs,
        batch: &BatchArgs,
        prefix_cache: Option<PrefixCacheConfig>,
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
            memory_fraction: context.mem_fraction_static,
            prefill_chunk: context.chunked_prefill_size,
            draft_batch_max: speculation.speculative_disable_batch_size,
            share_rows: speculation.speculative_share_rows,
            skip_warmup: batch.skip_server_warmup,
            prefix_cache,
            simulate: None,
        })
    }

    /// The download that must come before loading, if any.
    pub fn fetch(self) -> Option<Fetch> {
        if self.incomplete.is_empty() {
            return None;
        }
        Some(Box::new(move |progress| Ok(self.fetch_all(progress)?)))
    }

    /// What a check of `spec` would find without its weights, where these are still to be fetched.
    pub fn plan_ahead(
        &self,
        spec: &LoadSpec,
        config: &EngineConfig,
    ) -> Result<Option<CheckOutput>, Failure> {
        if self.incomplete.is_empty() {
            return Ok(None);
        }
        let dummy = LoadSpec {
            format: LoadFormat::Dummy { seed: 0 },
            ..spec.clone()
        };
        Ok(Some(engine::check(&dummy, config)?))
    }

    /// Downloads at once and shows how far it is. Weights that `config` has no device or no memory
    /// for are not fetched.
    pub fn fetch_for(&self, spec: &LoadSpec, config: &EngineConfig) -> Result<(), Failure> {
        match self.plan_ahead(spec, config)? {
            Some(output) if !output.info.fits() => Err(Failure::shortage(&output.info)),
            Some(_) => self.fetch_now(),
            None => Ok(()),
        }
    }

    /// Downloads at once and shows how far it is.
    pub fn fetch_now(&self) -> Result<(), Failure> {
        if self.incomplete.is_empty() {
            return Ok(());
        }
        progress::during("Downloading", |progress| self.fetch_all(progress)).map_err(Failure::from)
    }

    fn fetch_all(&self, progress: &LoadProgress) -> Result<(), HubError> {
        self.incomplete
            .iter()
            .try_for_each(|model| model.fetch(progress))
    }
}

/// `vocab_size` of a configuration; what is wrong with the file is said by whoever loads it.
pub fn vocab_rows(config: &str) -> usize {
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    ["/text_config/vocab_size", "/vocab_size"]
        .iter()
        .find_map(|path| config.pointer(path)?.as_u64())
        .and_then(|rows| usize::try_from(rows).ok())
        .unwrap_or(1)
}

/// The checkpoint whose small files a command reads; the bundled target where none is named.
pub fn target(model_path: Option<&Path>, hub: HubArgs) -> Result<CheckpointSource, Failure> {
    match model_path {
        Some(path) => Ok(find("--model-path", path, hub, false)?.source),
        None => Ok(bundled::pair()?.target),
    }
}

fn find(flag: &str, path: &Path, args: HubArgs, weights: bool) -> Result<Found, Failure> {
    let shown = path.display().to_string();
    if path.is_dir() {
        return Ok(Found {
            source: CheckpointSource::Folder(PathBuf::from(path)),
            shown,
            remote: None,
        });
    }
    let refused =
        |reason: &str| Failure::new(Exit::ModelFiles, format!("{flag} {shown}: {reason}"));
    if path.exists() {
        let reason = "expected a folder, found a file; give the folder that holds it";
        return Err(refused(reason));
    }
    let Ok(id) = shown.parse::<HubId>() else {
        let reason = "expected a folder, found nothing; give the model's folder, or its name on the \
                      hub as org/name";
        return Err(refused(reason));
    };
    let mut environment = HubEnvironment::read();
    environment.offline |= args.offline;
    tracing::info!(model = %id, offline = environment.offline, "looking for the model on the hub");
    let model = Hub::new(&environment)?.find(&id, weights)?;
    Ok(Found {
        source: CheckpointSource::Folder(model.folder.clone()),
        shown: id.repo,
        remote: Some(model),
    })
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        engine::ModelError::from(error).into()
    }
}

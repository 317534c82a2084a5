//! Models of the Hugging Face hub, by name.
//!
//! The local cache has the layout of the `huggingface_hub` package, so that files fetched by one
//! serve the other: `models--org--name/{refs/REVISION, blobs/ETAG, snapshots/COMMIT/FILE}`, where a
//! file of a snapshot is a link to its blob.

mod cache;
mod client;
mod download;
mod environment;
mod error;
mod id;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use engine::{CheckpointSource, LoadProgress, ModelError};

use cache::{Cache, RepoCache};
use client::{Client, ModelInfo, RemoteFile};
use download::Download;
pub use environment::HubEnvironment;
pub use error::HubError;
pub use id::HubId;

/// Files beside the weights that are taken where a model has them.
const SMALL_FILES: [&str; 6] = [
    CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];
const CONFIG: &str = "config.json";
/// Files fetched at the same time.
const CONNECTIONS: usize = 4;

/// The hub as this process sees it.
#[derive(Debug)]
pub struct Hub {
    client: Client,
    cache: Cache,
    offline: bool,
}

/// A model whose small files are here; its weights may not be yet.
#[derive(Debug)]
pub struct HubModel {
    /// The folder of its files.
    pub folder: PathBuf,
    remaining: Option<Remaining>,
}

/// What is still to be fetched, and where to.
#[derive(Debug)]
struct Remaining {
    id: HubId,
    client: Client,
    cache: RepoCache,
    commit: String,
    files: Vec<RemoteFile>,
}

impl Hub {
    /// Nothing is asked for yet.
    pub fn new(environment: &HubEnvironment) -> Result<Self, HubError> {
        Ok(Hub {
            client: Client::new(environment)?,
            cache: Cache::new(environment.cache.clone()),
            offline: environment.offline,
        })
    }

    /// Finds a model and fetches its small files; `weights`: its weights will be needed too.
    pub fn find(&self, id: &HubId, weights: bool) -> Result<HubModel, HubError> {
        let cache = self.cache.repo(&id.repo);
        let cached = cached(&cache, id, weights);
        // A commit never changes.
        if let (Ok(folder), true) = (&cached, self.offline || id.is_commit()) {
            return Ok(HubModel::complete(folder.clone()));
        }
        if self.offline {
            return Err(HubError::Offline {
                id: id.to_string(),
                reason: cached.err().unwrap_or_default(),
            });
        }
        let remote = |info| self.remote(id, cache, info, weights);
        match (self.client.model(id).and_then(remote), cached) {
            (Err(error), Ok(folder)) if error.is_transient() => {
                tracing::warn!(model = %id, %error, "using the files in the cache");
                Ok(HubModel::complete(folder))
            }
            (found, _) => found,
        }
    }

    fn remote(
        &self,
        id: &HubId,
        cache: RepoCache,
        info: ModelInfo,
        weights: bool,
    ) -> Result<HubModel, HubError> {
        let commit = info.commit;
        let lacks = |file: &str| HubError::Lacks {
            id: id.to_string(),
            file: file.to_owned(),
        };
        let has = |name: &str| info.files.iter().any(|file| file == name);
        if !has(CONFIG) {
            return Err(lacks(CONFIG));
        }
        for name in SMALL_FILES.into_iter().filter(|name| has(name)) {
            if !cache.has(&commit, name) {
                let file = self.client.file(&id.repo, &commit, name)?;
                self.download(id, &cache, &commit, &file)?;
            }
        }
        let folder = cache.snapshot(&commit);
        let mut files = Vec::new();
        if weights {
            for name in CheckpointSource::Folder(folder.clone()).weight_files()? {
                if cache.has(&commit, &name) {
                    continue;
                }
                if !has(&name) {
                    return Err(lacks(&name));
                }
                files.push(self.client.file(&id.repo, &commit, &name)?);
            }
        }
        // The name moves to a new commit once that is complete, unless it led nowhere before.
        if files.is_empty() || cache.commit(&id.revision).is_none() {
            cache.set_commit(&id.revision, &commit)?;
        }
        Ok(HubModel {
            folder,
            remaining: (!files.is_empty()).then(|| Remaining {
                id: id.clone(),
                client: self.client.clone(),
                cache,
                commit,
                files,
            }),
        })
    }

    fn download(
        &self,
        id: &HubId,
        cache: &RepoCache,
        commit: &str,
        file: &RemoteFile,
    ) -> Result<(), HubError> {
        let download = Download {
            id,
            client: &self.client,
            cache,
            commit,
            file,
            progress: &LoadProgress::default(),
            stop: &AtomicBool::new(false),
        };
        download.run()
    }
}

impl HubModel {
    fn complete(folder: PathBuf) -> Self {
        HubModel {
            folder,
            remaining: None,
        }
    }

    /// Whether files are missing that [`HubModel::fetch`] brings.
    pub fn is_complete(&self) -> bool {
        self.remaining.is_none()
    }

    /// Fetches what is missing, several files at a time; the first failure ends it. What was
    /// received stays, and the next call goes on from there.
    pub fn fetch(&self, progress: &LoadProgress) -> Result<(), HubError> {
        let Some(remaining) = &self.remaining else {
            return Ok(());
        };
        remaining.fetch(progress)
    }
}

impl Remaining {
    fn fetch(&self, progress: &LoadProgress) -> Result<(), HubError> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let downloads: Vec<Download<'_>> = self
            .files
            .iter()
            .map(|file| Download {
                id: &self.id,
                client: &self.client,
                cache: &self.cache,
                commit: &self.commit,
                file,
                progress,
                stop: &stop,
            })
            .collect();
        for download in &downloads {
            progress.expect(download.missing_bytes());
        }
        let work = || {
            while let Some(download) = downloads.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = download.run() {
                    // The others stop too and say so; only the cause is worth telling.
                    return (!stop.swap(true, Ordering::Relaxed)).then_some(error);
                }
            }
            None
        };
        let cause = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CONNECTIONS.min(downloads.len()))
                .map(|_| scope.spawn(work))
                .collect();
            let errors = threads.into_iter().map(|thread| match thread.join() {
                Ok(error) => error,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            errors.fold(None, Option::or)
        });
        match cause {
            Some(error) => Err(error),
            None => Ok(self.cache.set_commit(&self.id.revision, &self.commit)?),
        }
    }
}

/// The folder of a model whose needed files are all in the cache, or what is missing.
fn cached(cache: &RepoCache, id: &HubId, weights: bool) -> Result<PathBuf, String> {
    let known = match id.is_commit() {
        true => Some(id.revision.clone()),
        false => cache.commit(&id.revision),
    };
    let Some(commit) = known else {
        return Err(format!("nothing of it is in {}", cache.folder().display()));
    };
    let mut needed = vec![CONFIG.to_owned()];
    let folder = cache.snapshot(&commit);
    if weights && cache.has(&commit, CONFIG) {
        let source = CheckpointSource::Folder(folder.clone());
        needed.extend(source.weight_files().map_err(|error| error.to_string())?);
    }
    match needed.iter().find(|name| !cache.has(&commit, name)) {
        None => Ok(folder),
        Some(name) => Err(format!("{} is missing", folder.join(name).display())),
    }
}

impl From<HubError> for ModelError {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Model(error) => error,
            error if error.is_transient() => ModelError::Unreachable(error.to_string()),
            error => ModelError::Source(error.to_string()),
        }
    }
}

//! Folders and files of the local cache.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::error::HubError;
use super::id::is_commit;

/// The whole cache.
#[derive(Debug)]
pub(super) struct Cache {
    root: PathBuf,
}

/// One model's part of it.
#[derive(Debug)]
pub(super) struct RepoCache {
    folder: PathBuf,
    locks: PathBuf,
}

/// Held while a blob is written; other processes wait for it.
pub(super) struct BlobLock {
    _file: File,
}

impl Cache {
    pub(super) fn new(root: PathBuf) -> Self {
        Cache { root }
    }

    pub(super) fn repo(&self, repo: &str) -> RepoCache {
        let name = format!("models--{}", repo.replace('/', "--"));
        RepoCache {
            folder: self.root.join(&name),
            locks: self.root.join(".locks").join(name),
        }
    }
}

impl RepoCache {
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The commit that a branch or tag led to when it was last fetched.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        let text = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Lets a branch or tag lead to a commit. A commit leads to itself. Writes only what changes: a
    /// complete cache may be read-only.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        make_parent(&path)?;
        fs::write(&path, commit).map_err(|reason| disk(&path, reason))
    }

    /// The folder of a commit's files.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Whether a commit's file is there, whole.
    pub(super) fn has(&self, commit: &str, file: &str) -> bool {
        self.snapshot(commit).join(file).is_file()
    }

    /// Contents by their tag.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Contents that are still coming.
    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Waits until no other process writes this blob.
    pub(super) fn lock(&self, etag: &str) -> Result<BlobLock, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        make_parent(&path)?;
        make_parent(&self.blob(etag))?;
        let locked = File::create(&path).and_then(|file| {
            if file.try_lock().is_err() {
                tracing::info!(file = %path.display(), "waiting for another download");
                file.lock()?;
            }
            Ok(BlobLock { _file: file })
        });
        locked.map_err(|reason| disk(&path, reason))
    }

    /// Makes a complete partial file the blob.
    pub(super) fn finish(&self, etag: &str) -> Result<(), HubError> {
        let (from, to) = (self.partial(etag), self.blob(etag));
        fs::rename(&from, &to).map_err(|reason| disk(&to, reason))
    }

    /// Makes a blob a file of a snapshot.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), HubError> {
        let path = self.snapshot(commit).join(file);
        make_parent(&path)?;
        let target = Path::new("../../blobs").join(etag);
        match std::os::unix::fs::symlink(target, &path) {
            // Linked by another process meanwhile.
            Err(_) if path.is_file() => Ok(()),
            // A file system without links: the snapshot owns the file.
            Err(_) => fs::rename(self.blob(etag), &path).map_err(|reason| disk(&path, reason)),
            Ok(()) => Ok(()),
        }
    }
}

fn make_parent(path: &Path) -> Result<(), HubError> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    fs::create_dir_all(parent).map_err(|reason| disk(parent, reason))
}

pub(super) fn disk(path: &Path, reason: io::Error) -> HubError {
    HubError::Disk {
        path: path.display().to_string(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn a_snapshot_links_to_blobs() {
        let root = tempfile::tempdir().unwrap();
        let repo = Cache::new(root.path().to_owned()).repo("org/name");
        assert_eq!(repo.folder(), root.path().join("models--org--name"));
        let lock = repo.lock("tag").unwrap();
        fs::write(repo.partial("tag"), "text").unwrap();
        assert!(!repo.has(COMMIT, "config.json"));
        repo.finish("tag").unwrap();
        repo.link(COMMIT, "config.json", "tag").unwrap();
        repo.link(COMMIT, "config.json", "tag").unwrap();
        drop(lock);
        assert!(repo.has(COMMIT, "config.json"));
        let file = repo.snapshot(COMMIT).join("config.json");
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        assert_eq!(
            fs::read_link(&file).unwrap(),
            Path::new("../../blobs/tag"),
            "a moved cache stays whole"
        );
    }

    #[test]
    fn revisions_lead_to_commits() {
        let root = tempfile::tempdir().unwrap();
        let repo = Cache::new(root.path().to_owned()).repo("org/name");
        assert_eq!(repo.commit("main"), None);
        repo.set_commit("main", COMMIT).unwrap();
        repo.set_commit("refs/pr/1", COMMIT).unwrap();
        assert_eq!(repo.commit("main").as_deref(), Some(COMMIT));
        assert_eq!(repo.commit("refs/pr/1").as_deref(), Some(COMMIT));
        let file = root.path().join("models--org--name/refs/main");
        let written = format!("{COMMIT}\n");
        fs::write(&file, &written).unwrap();
        repo.set_commit("main", COMMIT).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), written, "left alone");
        let other = COMMIT.replace('0', "f");
        repo.set_commit("main", &other).unwrap();
        assert_eq!(repo.commit("main"), Some(other));
        fs::write(&file, "../../..").unwrap();
        assert_eq!(repo.commit("main"), None, "nothing else is taken for one");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let repo = Cache::new(file.clone()).repo("org/name");
        let error = repo.set_commit("main", COMMIT).unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()), "{error}");
    }
}

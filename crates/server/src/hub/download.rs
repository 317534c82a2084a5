//! One file from the hub into the cache, over as many connections as it takes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::LoadProgress;
use sha2::{Digest, Sha256};

use super::cache::{RepoCache, disk};
use super::client::{Client, RemoteFile};
use super::error::HubError;
use super::id::HubId;

/// Tries in a row that bring nothing, until the download fails.
const TRIES_MAX: u32 = 6;
/// Wait before the second try; doubled before every other.
const WAIT: Duration = Duration::from_millis(500);
const CHUNK_BYTES: usize = 1 << 20;
/// Hexadecimal digits of a SHA-256, which the tag of a large file is.
const SHA256_DIGITS: usize = 64;

/// A file to fetch.
pub(super) struct Download<'a> {
    pub(super) id: &'a HubId,
    pub(super) client: &'a Client,
    pub(super) cache: &'a RepoCache,
    pub(super) commit: &'a str,
    pub(super) file: &'a RemoteFile,
    pub(super) progress: &'a LoadProgress,
    /// Set when another file has failed.
    pub(super) stop: &'a AtomicBool,
}

impl Download<'_> {
    /// Bytes that are not in the cache yet.
    pub(super) fn missing_bytes(&self) -> u64 {
        let (etag, bytes) = (&self.file.etag, self.file.bytes);
        if self.cache.blob(etag).is_file() {
            return 0;
        }
        let partial = std::fs::metadata(self.cache.partial(etag));
        let here = partial.map_or(0, |data| data.len());
        // One that is too long is begun anew.
        bytes.checked_sub(here).unwrap_or(bytes)
    }

    /// Brings the file into the snapshot.
    pub(super) fn run(&self) -> Result<(), HubError> {
        let etag = &self.file.etag;
        let missing = self.missing_bytes();
        let _lock = self.cache.lock(etag)?;
        // What another process has brought while this one waited.
        self.progress
            .add(missing.saturating_sub(self.missing_bytes()));
        if !self.cache.blob(etag).is_file() {
            let mut part = Part::open(self.cache.partial(etag), self.file)?;
            self.receive(&mut part)?;
            part.verify(&self.shown(), self.file)?;
            self.cache.finish(etag)?;
        }
        self.cache.link(self.commit, &self.file.name, etag)
    }

    fn shown(&self) -> String {
        format!("{} {}", self.id, self.file.name)
    }

    fn receive(&self, part: &mut Part) -> Result<(), HubError> {
        let mut tries = 0;
        while part.bytes < self.file.bytes {
            let before = part.bytes;
            let error = match self.append(part) {
                Ok(()) => continue,
                Err(error) if error.is_transient() => error,
                Err(error) => return Err(error),
            };
            tries = if part.bytes > before { 1 } else { tries + 1 };
            if tries >= TRIES_MAX {
                return Err(error);
            }
            tracing::warn!(
                file = self.shown(),
                received = part.bytes,
                of = self.file.bytes,
                %error,
                "going on with the download"
            );
            std::thread::sleep(WAIT * 2_u32.pow(tries - 1));
        }
        Ok(())
    }

    /// One connection: appends what it brings. An error says why it is not all.
    fn append(&self, part: &mut Part) -> Result<(), HubError> {
        let broken = |reason: String| HubError::Unreachable {
            what: self.shown(),
            reason,
        };
        let mut rest = self
            .client
            .rest(&self.id.repo, self.commit, &self.file.name, part.bytes)?;
        if let Some(total) = rest.total.filter(|&total| total != self.file.bytes) {
            let reason = format!("expected {} bytes, the server has {total}", self.file.bytes);
            return Err(part.damaged(&self.shown(), reason));
        }
        if rest.from < part.bytes {
            self.progress.expect(part.bytes);
            part.clear()?;
        }
        let mut chunk = vec![0; CHUNK_BYTES];
        while part.bytes < self.file.bytes {
            if self.stop.load(Ordering::Relaxed) {
                return Err(HubError::Stopped);
            }
            let read = match rest.body.read(&mut chunk) {
                Ok(0) => {
                    let reason = format!("broke off at {} of {}", part.bytes, self.file.bytes);
                    return Err(broken(reason));
                }
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(broken(error.to_string())),
            };
            part.append(&chunk[..read])?;
            self.progress.add(read as u64);
        }
        match part.bytes == self.file.bytes {
            true => Ok(()),
            false => {
                let reason = format!("expected {} bytes, found more", self.file.bytes);
                Err(part.damaged(&self.shown(), reason))
            }
        }
    }
}

/// A file on its way.
struct Part {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Of the bytes so far, where the tag is a checksum.
    sum: Option<Sha256>,
}

impl Part {
    /// Goes on with what an earlier run left.
    fn open(path: PathBuf, of: &RemoteFile) -> Result<Self, HubError> {
        let fault = |reason| disk(&path, reason);
        let mut file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(fault)?;
        let is_sum =
            of.etag.len() == SHA256_DIGITS && of.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mut part = Part {
            bytes: file.metadata().map_err(fault)?.len(),
            sum: is_sum.then(Sha256::new),
            file: file.try_clone().map_err(fault)?,
            path: path.clone(),
        };
        if part.bytes > of.bytes {
            part.clear()?;
        } else if let Some(sum) = &mut part.sum {
            io::copy(&mut file, sum).map_err(fault)?;
        }
        Ok(part)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let written = self.file.write_all(bytes);
        written.map_err(|reason| disk(&self.path, reason))?;
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Starts from nothing.
    fn clear(&mut self) -> Result<(), HubError> {
        let cut = self.file.set_len(0);
        cut.map_err(|reason| disk(&self.path, reason))?;
        self.bytes = 0;
        self.sum = self.sum.take().map(|_| Sha256::new());
        Ok(())
    }

    /// Whether the contents are what the tag says.
    fn verify(mut self, shown: &str, of: &RemoteFile) -> Result<(), HubError> {
        let Some(sum) = self.sum.take() else {
            return Ok(());
        };
        let found: String = sum
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        match found.eq_ignore_ascii_case(&of.etag) {
            true => Ok(()),
            false => {
                let reason = format!("expected SHA-256 {}, found {found}", of.etag);
                Err(self.damaged(shown, reason))
            }
        }
    }

    /// Deletes what was received and says why.
    fn damaged(&mut self, shown: &str, reason: String) -> HubError {
        if let Err(error) = std::fs::remove_file(&self.path) {
            return disk(&self.path, error);
        }
        HubError::Damaged {
            file: shown.to_owned(),
            reason,
        }
    }
}

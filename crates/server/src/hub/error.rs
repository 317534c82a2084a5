//! What can go wrong between here and the hub.

use engine::ModelError;

/// Why a model of the hub cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// There is no such model, or it hides from strangers.
    #[error(
        "{id}: {endpoint} has no such model, or it is private; check the name{}",
        token_hint(*.with_token, "; for a private model")
    )]
    Unknown {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
        /// A token was sent.
        with_token: bool,
    },
    /// The model has no such branch, tag or commit.
    #[error("{id}: the model exists, but not this revision")]
    UnknownRevision {
        /// Model and revision.
        id: String,
    },
    /// The model asks for permission first.
    #[error(
        "{id}: access refused (HTTP {status}); the model is gated or private: ask for access at \
         {endpoint}/{repo}{}",
        token_hint(*.with_token, ", then")
    )]
    Gated {
        /// The model.
        id: String,
        /// `org/name`.
        repo: String,
        /// The hub.
        endpoint: String,
        /// 401 or 403.
        status: u16,
        /// A token was sent.
        with_token: bool,
    },
    /// The model lacks a file that is needed.
    #[error("{id}: the model has no {file}; expected config.json and safetensors weights")]
    Lacks {
        /// The model.
        id: String,
        /// The file.
        file: String,
    },
    /// The network must not be used and the cache does not have it all.
    #[error(
        "{id}: {reason}, and --offline (or HF_HUB_OFFLINE) forbids to fetch it; run once online"
    )]
    Offline {
        /// The model.
        id: String,
        /// What is missing where.
        reason: String,
    },
    /// The hub cannot be reached, or not now.
    #[error(
        "{what}: {reason}; check the network and HF_ENDPOINT, or give --offline where the model \
         is in the cache"
    )]
    Unreachable {
        /// What was asked for.
        what: String,
        /// What the network said.
        reason: String,
    },
    /// The hub answers what it should not.
    #[error("{what}: {reason}")]
    Answer {
        /// What was asked for.
        what: String,
        /// What was expected and found.
        reason: String,
    },
    /// Received bytes are not the file.
    #[error("{file}: {reason}; what was received is deleted, start again to fetch it anew")]
    Damaged {
        /// The file.
        file: String,
        /// What was expected and found.
        reason: String,
    },
    /// The cache cannot be written.
    #[error("{path}: {reason}")]
    Disk {
        /// File or folder.
        path: String,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// Another file failed first.
    #[error("stopped")]
    Stopped,
    /// A file of the model is malformed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl HubError {
    /// Whether another try may help without anybody doing anything.
    pub fn is_transient(&self) -> bool {
        matches!(self, HubError::Unreachable { .. })
    }
}

fn token_hint(with_token: bool, intro: &str) -> String {
    match with_token {
        true => format!("{intro} see that the token in HF_TOKEN (or the token file) may read it"),
        false => format!("{intro} set HF_TOKEN to an access token"),
    }
}

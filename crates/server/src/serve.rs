//! The server's life: bind, serve while the model loads, drain, end.

use std::net::IpAddr;
use std::time::Duration;

use engine::Engine;

use crate::model_files::ModelFiles;
use crate::sampling::RequestRules;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 = any free one.
    pub port: u16,
    /// Keys of users; none = open.
    pub api_keys: Vec<String>,
    /// `/metrics` asks for a key too.
    pub metrics_require_key: bool,
    /// Names of the model, at least one; the first one is reported.
    pub served_model_names: Vec<String>,
    /// Serve every model name.
    pub any_model_name: bool,
    /// `root` of the model list: where the model came from.
    pub model_path: String,
    /// What requests may ask for and their defaults.
    pub rules: RequestRules,
    /// Limits on connections and waiting.
    pub limits: ServeLimits,
    /// Every stream ends with its usage.
    pub stream_usage: bool,
    /// Speculation statistics and times in every answer.
    pub request_metrics: bool,
    /// Which names the reasoning has in answers.
    pub reasoning_field: ReasoningField,
    /// `Access-Control-Allow-Origin`; empty = off, `*` = all.
    pub allowed_origins: Vec<String>,
    /// Go on taking requests for this long after the first signal.
    pub drain_delay: Duration,
    /// Wait this long for running requests after that.
    pub drain_timeout: Duration,
}

/// Limits of a server. A zero duration means no limit.
#[derive(Clone, Debug)]
pub struct ServeLimits {
    /// Bytes of a request body.
    pub body_bytes_max: usize,
    /// Time for a body to arrive.
    pub body_timeout: Duration,
    /// Time from a request to its first output.
    pub request_timeout: Duration,
    /// Silence after which a stream gets a comment; 0 = never.
    pub keep_alive_interval: Duration,
    /// Time a client may leave its stream unread.
    pub slow_client_timeout: Duration,
    /// Silence of the engine after which `/health` fails.
    pub health_stale_timeout: Duration,
    /// Silence of the engine after which `/livez` fails.
    pub watchdog_timeout: Duration,
    /// Status of a refusal because the queue is full: 429 or 503.
    pub queue_full_status: u16,
}

impl Default for ServeLimits {
    fn default() -> Self {
        ServeLimits {
            body_bytes_max: 32 << 20,
            body_timeout: Duration::from_secs(60),
            request_timeout: Duration::ZERO,
            keep_alive_interval: Duration::from_secs(15),
            slow_client_timeout: Duration::from_secs(60),
            health_stale_timeout: Duration::from_secs(30),
            watchdog_timeout: Duration::from_secs(300),
            queue_full_status: 429,
        }
    }
}

/// Name of the reasoning in answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningField {
    /// `reasoning_content`
    #[default]
    ReasoningContent,
    /// `reasoning`
    Reasoning,
    /// Both.
    Both,
}

/// Why a server ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {reason}; choose another --host or --port")]
    Bind {
        /// Address and port.
        address: String,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// An option cannot be used.
    #[error("{0}")]
    Config(String),
    /// The model could not be loaded.
    #[error("the model could not be loaded: {0}")]
    Load(String),
    /// The engine failed while it was serving.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// Requests were cut off at the end of the drain.
    #[error("{0} requests were cut off because the drain took too long")]
    DrainCut(usize),
    /// A second signal ended the drain at once.
    #[error("stopped at once by a second signal; {0} requests were cut off")]
    Stopped(usize),
}

impl ServeError {
    /// Exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServeError::Bind { .. } | ServeError::Engine(_) => 1,
            ServeError::Config(_) => 2,
            ServeError::Load(_) => 3,
            ServeError::DrainCut(_) | ServeError::Stopped(_) => 5,
        }
    }
}

/// Listens, prints one line to standard output once the engine is ready
/// (`Serving NAME on http://ADDRESS:PORT`), serves until a signal, then drains.
pub async fn run(config: ServeConfig, files: ModelFiles, engine: Engine) -> Result<(), ServeError> {
    drop((files, engine));
    let address = format!("{}:{}", config.host, config.port);
    Err(ServeError::Config(format!("{address}: no routes yet")))
}

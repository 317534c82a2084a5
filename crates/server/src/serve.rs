//! The server's life: bind, serve while the model loads, drain, end.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use engine::{Engine, FailureCause, Phase};
use serde_json::{Map, Value};
use tokio::net::TcpListener;

use crate::app::App;
use crate::connections::Connections;
use crate::drain::drain;
use crate::grammar::GrammarConfig;
pub use crate::key_source::KeySource;
use crate::metrics::Metrics;
pub use crate::metrics::{MetricsConfig, NamePrefix};
use crate::model_files::ModelFiles;
use crate::routes::router;
use crate::sampling::RequestRules;
use crate::signals::Signals;
use crate::supervisor::Supervisor;
use crate::updates::Updates;

/// How often slow changes are looked for.
pub(crate) const POLL: Duration = Duration::from_millis(20);
/// How often observations are summed up.
const UPKEEP: Duration = Duration::from_secs(1);
/// What clients get to read the last bytes, and the engine to end.
pub(crate) const FLUSH: Duration = Duration::from_secs(5);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 = any free one.
    pub port: u16,
    /// Keys of users; none = open.
    pub api_keys: Vec<String>,
    /// Where they came from, to read them again.
    pub key_source: KeySource,
    /// The administrator's key; without one users may administrate.
    pub admin_api_key: Option<String>,
    /// What `/metrics` has.
    pub metrics: MetricsConfig,
    /// Every flag but the secret ones, by its name with underscores.
    pub flags: Map<String, Value>,
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
    /// How answers are constrained.
    pub grammar: GrammarConfig,
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
    /// Time from a request to its first output, and to the end of an answer that is no stream.
    pub request_timeout: Duration,
    /// Time that a request may wait until it starts.
    pub queue_timeout: Duration,
    /// Silence after which a stream gets a comment; 0 = never.
    pub keep_alive_interval: Duration,
    /// Time a client may leave its stream unread.
    pub slow_client_timeout: Duration,
    /// Silence of the engine after which `/health` fails.
    pub health_stale_timeout: Duration,
    /// Time for `/health_generate` to see a token.
    pub health_check_timeout: Duration,
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
            queue_timeout: Duration::ZERO,
            keep_alive_interval: Duration::from_secs(15),
            slow_client_timeout: Duration::from_secs(60),
            health_stale_timeout: Duration::from_secs(30),
            health_check_timeout: Duration::from_secs(20),
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
    #[error("the model could not be loaded: {reason}")]
    Load {
        /// Why.
        reason: String,
        /// Whose fault that is.
        cause: FailureCause,
    },
    /// The engine failed while it was serving.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// Requests were cut off at the end of the drain.
    #[error("{0} requests were cut off because the drain took too long")]
    DrainCut(usize),
    /// The engine shows no sign of life.
    #[error("the engine has been silent for {} seconds", .0.as_secs())]
    Stalled(Duration),
    /// A second signal ended the drain at once.
    #[error("stopped at once by a second signal; {0} requests were cut off")]
    Stopped(usize),
}

/// Listens, prints one line to standard output once the engine is ready
/// (`Serving NAME on http://ADDRESS:PORT`), serves until a signal, then drains.
pub async fn run(config: ServeConfig, files: ModelFiles, engine: Engine) -> Result<(), ServeError> {
    let Some(name) = config.served_model_names.first().cloned() else {
        let reason = "--served-model-name: expected at least one name";
        return Err(ServeError::Config(reason.to_owned()));
    };
    let Engine { handle, outputs } = engine;
    let metrics = Arc::new(Metrics::new(&name, &config.metrics));
    keep_up(&metrics);
    let system = |reason: std::io::Error| ServeError::Engine(reason.to_string());
    let (updates, mut ended) = Updates::start(outputs, Arc::clone(&metrics));
    let mut signals = Signals::new().map_err(system)?;
    let address = SocketAddr::new(config.host, config.port);
    let app = Arc::new(App::new(config, files, handle, updates, metrics));
    let router = router(Arc::clone(&app))?;
    let bind = |reason| ServeError::Bind {
        address: address.to_string(),
        reason,
    };
    let listener = TcpListener::bind(address).await.map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    tracing::info!(%address, "listening");
    let slow = app.config.limits.slow_client_timeout;
    let mut connections = Connections::serve(listener, router, slow);
    let (mut supervisor, mut stalled) = Supervisor::start(&app, &name, address).map_err(system)?;
    let mut loaded = false;
    tokio::select! {
        _ = &mut ended => {}
        Ok(silence) = &mut stalled => return Err(ServeError::Stalled(silence)),
        () = signals.end(&app) => {
            supervisor.stopping();
            return drain(&app, &mut connections, &mut signals, &mut ended).await;
        }
        () = async {
            until_ready(&app).await;
            loaded = true;
            print_ready(&name, address);
            std::future::pending::<()>().await;
        } => {}
    }
    // Streams still have to hear about it.
    connections.close();
    connections.closed(FLUSH).await;
    let status = app.engine.status();
    let cause = status.cause.unwrap_or(FailureCause::Engine);
    let reason = status
        .error
        .unwrap_or_else(|| "its thread has ended".to_owned());
    Err(match loaded {
        true => ServeError::Engine(reason),
        false => ServeError::Load { reason, cause },
    })
}

/// From a thread of its own: without a reader of standard output the server serves all the same.
fn print_ready(name: &str, address: SocketAddr) {
    let line = format!("Serving {name} on http://{address}");
    let print = move || {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    };
    if let Err(error) = std::thread::Builder::new().spawn(print) {
        tracing::warn!(%error, "standard output does not hear that the server is ready");
    }
}

/// Sums observations up every second for as long as there are `metrics`.
fn keep_up(metrics: &Arc<Metrics>) {
    let metrics = Arc::downgrade(metrics);
    tokio::spawn(async move {
        let mut second = tokio::time::interval(UPKEEP);
        while let Some(metrics) = metrics.upgrade() {
            metrics.upkeep();
            drop(metrics);
            second.tick().await;
        }
    });
}

/// Waits for the engine, which need not ever become ready.
async fn until_ready(app: &App) {
    while app.engine.status().phase != Phase::Ready {
        tokio::time::sleep(POLL).await;
    }
}

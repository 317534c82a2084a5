//! `spinney serve`: from flags to a running server.

use std::time::Duration;

use engine::Engine;
use serde_json::{Map, Value};

use super::args::ServeArgs;
use super::checkpoints::Checkpoints;
use super::exit::{Exit, Failure};
use super::{loading, logging};
use crate::serve::{self, ServeConfig, ServeError, ServeLimits};

/// What threads of the server get to end once it has ended.
const LINGER: Duration = Duration::from_secs(1);

/// Serves until a signal or a failure ends it.
pub fn run(args: &ServeArgs, flags: Map<String, Value>) -> Result<Exit, Failure> {
    logging::start(&args.log, "info")?;
    args.compatibility.log();
    let checkpoints = Checkpoints::find(&args.model, &args.speculation)?;
    let engine_config = checkpoints.engine_config(
        &args.speculation,
        &args.context,
        &args.batch,
        args.prefix_cache.config(),
    )?;
    let config = ServeConfig {
        flags,
        ..config(args, &checkpoints)?
    };
    let files = checkpoints.text_files(args.template.chat_template.as_deref())?;
    let spec = checkpoints.load_spec(&args.model, files.vocabulary.len());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Runtime, format!("no threads to serve: {error}")))?;
    let engine = Engine::start_after(checkpoints.fetch(), spec, engine_config)?;
    loading::report(engine.handle.clone());
    let ended = runtime.block_on(serve::run(config, files, engine));
    // What still runs on its threads works for nobody.
    runtime.shutdown_timeout(LINGER);
    ended?;
    Ok(Exit::Clean)
}

fn config(args: &ServeArgs, checkpoints: &Checkpoints) -> Result<ServeConfig, Failure> {
    Ok(ServeConfig {
        host: args.http.host,
        port: args.http.port,
        api_keys: args.http.keys()?,
        key_source: args.http.key_source(),
        admin_api_key: args.operations.key()?,
        metrics: args.operations.metrics(),
        flags: Map::new(),
        metrics_require_key: args.http.metrics_require_key,
        served_model_names: checkpoints.served_names(&args.http.served_model_name),
        any_model_name: args.http.allow_any_model_name,
        model_path: checkpoints.model_path.clone(),
        rules: args.requests.rules(),
        grammar: args.requests.grammar(),
        limits: ServeLimits {
            health_check_timeout: args.operations.health_check_timeout,
            ..args.http_limits.limits()
        },
        stream_usage: args.http.stream_response_default_include_usage,
        request_metrics: args.http.enable_per_request_metrics,
        reasoning_field: args.http.reasoning_field(),
        allowed_origins: args.http.allowed_origins.clone(),
        drain_delay: args.http_limits.drain_delay,
        drain_timeout: args.http_limits.drain_timeout,
    })
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let exit = match &error {
            ServeError::Bind { .. } | ServeError::Engine(_) => Exit::Runtime,
            ServeError::Config(_) => Exit::Usage,
            ServeError::Load { cause, .. } => (*cause).into(),
            ServeError::Stalled(_) => Exit::Watchdog,
            ServeError::DrainCut(_) | ServeError::Stopped(_) => Exit::DrainCut,
        };
        Failure::new(exit, error.to_string())
    }
}

//! What those who run the server see of it and may do with it.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::http::seconds;
use crate::cli::exit::Failure;
use crate::serve::{MetricsConfig, NamePrefix};

/// Administration, probes and counters.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Operations")]
pub struct OperationsArgs {
    /// Key of /flush_cache and /abort_request [default: the keys of clients; without those only
    /// clients on this machine may, which a proxy on this machine always is]
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub admin_api_key: Option<String>,

    /// Seconds in which /health_generate must see a token
    #[arg(long, value_name = "S", default_value = "20", value_parser = seconds)]
    pub health_check_timeout: Duration,

    /// Do without /metrics
    #[arg(long)]
    pub disable_metrics: bool,

    /// Families of names at /metrics besides the server's own
    #[arg(long, value_name = "NAME", value_enum, value_delimiter = ',', num_args = 1..,
        default_value = "sglang,vllm")]
    pub metrics_prefixes: Vec<MetricsPrefix>,
}

/// Values of `--metrics-prefixes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetricsPrefix {
    /// As in sglang:num_running_reqs
    Sglang,
    /// As in vllm:num_requests_running
    Vllm,
}

impl OperationsArgs {
    /// The administrator's key.
    pub fn key(&self) -> Result<Option<String>, Failure> {
        match &self.admin_api_key {
            Some(key) if key.trim().is_empty() => {
                Err(Failure::usage("--admin-api-key: a key cannot be empty"))
            }
            key => Ok(key.clone()),
        }
    }

    /// The server's form.
    pub fn metrics(&self) -> MetricsConfig {
        let prefix = |prefix: &MetricsPrefix| match prefix {
            MetricsPrefix::Sglang => NamePrefix::Sglang,
            MetricsPrefix::Vllm => NamePrefix::Vllm,
        };
        MetricsConfig {
            served: !self.disable_metrics,
            prefixes: self.metrics_prefixes.iter().map(prefix).collect(),
        }
    }
}

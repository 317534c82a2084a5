//! Flags of other servers' unit files that change nothing here.

use clap::{Args, ValueEnum};

/// Accepted so that an existing command line starts; none of them has an effect.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Accepted without effect")]
pub struct CompatibilityArgs {
    /// Only 1: the model runs on one device
    #[arg(long, alias = "tensor-parallel-size", value_name = "N", value_parser = one)]
    pub tp_size: Option<usize>,

    /// Counters are always on
    #[arg(long)]
    pub enable_metrics: bool,

    /// A hint to the kernels
    #[arg(long, value_enum)]
    pub attention_backend: Option<AttentionBackend>,

    /// A hint to the drafter's kernels
    #[arg(long, value_enum)]
    pub speculative_draft_attention_backend: Option<AttentionBackend>,

    #[arg(long, hide = true)]
    trust_remote_code: bool,

    #[arg(long, hide = true)]
    disable_overlap_schedule: bool,

    #[arg(long, hide = true)]
    enable_mixed_chunk: bool,

    #[arg(long, hide = true, value_parser = one)]
    page_size: Option<usize>,

    #[arg(long, hide = true)]
    mamba_ssm_dtype: Option<String>,

    #[arg(long, hide = true)]
    mamba_full_memory_ratio: Option<String>,

    #[arg(long, hide = true)]
    mamba_scheduler_strategy: Option<String>,

    #[arg(long, hide = true)]
    mamba_track_interval: Option<String>,

    #[arg(long, hide = true)]
    mamba_backend: Option<String>,
}

/// Values of the attention hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttentionBackend {
    /// No hint
    Auto,
    /// Mapped to the only kernels there are
    Triton,
    /// Mapped to the only kernels there are
    Flashinfer,
    /// Mapped to the only kernels there are
    Fa3,
}

impl CompatibilityArgs {
    /// Says in the log which flags were given for nothing.
    pub fn log(&self) {
        let backends = [
            self.attention_backend,
            self.speculative_draft_attention_backend,
        ];
        if backends
            .iter()
            .flatten()
            .any(|backend| *backend != AttentionBackend::Auto)
        {
            tracing::warn!("attention backends are hints; this build has one set of kernels");
        }
        let given = [
            ("--trust-remote-code", self.trust_remote_code),
            ("--disable-overlap-schedule", self.disable_overlap_schedule),
            ("--enable-mixed-chunk", self.enable_mixed_chunk),
            ("--page-size", self.page_size.is_some()),
            ("--mamba-ssm-dtype", self.mamba_ssm_dtype.is_some()),
            (
                "--mamba-full-memory-ratio",
                self.mamba_full_memory_ratio.is_some(),
            ),
            (
                "--mamba-scheduler-strategy",
                self.mamba_scheduler_strategy.is_some(),
            ),
            (
                "--mamba-track-interval",
                self.mamba_track_interval.is_some(),
            ),
            ("--mamba-backend", self.mamba_backend.is_some()),
        ];
        for (flag, _) in given.iter().filter(|(_, given)| *given) {
            tracing::info!(flag, "accepted without effect");
        }
    }
}

fn one(text: &str) -> Result<usize, String> {
    match text {
        "1" => Ok(1),
        _ => Err("expected 1; nothing else is supported yet".to_owned()),
    }
}

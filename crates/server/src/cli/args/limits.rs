//! Sizes of the engine.

use clap::Args;

use super::speculation::number;

/// Prefill calls of these many tokens are possible.
const CHUNKS: [usize; 6] = [64, 128, 256, 512, 1024, 2048];

/// Context and pool.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct ContextArgs {
    /// Tokens of prompt and answer at most [default: the model's, lowered to what the pool holds]
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 2, usize::MAX))]
    pub context_length: Option<usize>,

    /// Share of a GPU's memory that everything together may take; what weights and workspaces leave
    /// of it becomes KV pages
    #[arg(long, value_name = "SHARE", default_value = "0.88", value_parser = share)]
    pub mem_fraction_static: f64,

    /// Tokens of one prefill call: 64, 128, 256, 512, 1024 or 2048
    #[arg(long, value_name = "N", default_value = "2048", value_parser = chunk)]
    pub chunked_prefill_size: usize,
}

/// Limits of many requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct BatchArgs {
    /// Tokens that the KV pool holds [default: from context length and running requests, on a GPU
    /// what its memory holds]
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 64, usize::MAX))]
    pub max_total_tokens: Option<usize>,

    /// Requests at once
    #[arg(
        long,
        value_name = "N",
        default_value = "8",
        value_parser = |text: &str| number(text, 1, 512)
    )]
    pub max_running_requests: usize,

    /// Requests that may wait; 0 = no limit
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_queued_requests: usize,

    /// Take requests without a warm-up: steps are recorded as they come, and `auto` means budget 15
    #[arg(long)]
    pub skip_server_warmup: bool,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a number above 0 and at most 1, as in 0.88".to_owned()),
    }
}

fn chunk(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(tokens) if CHUNKS.contains(&tokens) => Ok(tokens),
        _ => Err("expected 64, 128, 256, 512, 1024 or 2048".to_owned()),
    }
}

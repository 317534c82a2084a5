//! The command line as typed. Nothing after [`super::run`] looks at a flag twice.

pub mod bench;
pub mod compatibility;
pub mod http;
pub mod limits;
pub mod logging;
pub mod model;
pub mod operations;
pub mod prefix_cache;
pub mod requests;
pub mod sampling;
pub mod speculation;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use compatibility::CompatibilityArgs;
use http::{HttpArgs, HttpLimitArgs};
use limits::{BatchArgs, ContextArgs};
use logging::LogArgs;
use model::{HubArgs, ModelArgs};
use operations::OperationsArgs;
use prefix_cache::PrefixCacheArgs;
use requests::{RequestArgs, TemplateArgs};
use sampling::SamplingArgs;
use speculation::SpeculationArgs;

/// A speculative-decoding inference server for hybrid models.
///
/// Flags that `serve` has may also come from the environment (SPINNEY_PORT, SPINNEY_MODEL_PATH, ...)
/// and from a configuration file; the command line wins, then the environment.
#[derive(Debug, Parser)]
#[command(name = "spinney", version, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over HTTP; without --model-path the bundled pair
    Serve(Box<ServeArgs>),
    /// Generate once and print the text, or JSON
    Generate(Box<GenerateArgs>),
    /// Verify every tensor of a model and print the memory plan
    Check(Box<CheckArgs>),
    /// Print the prompt of a chat request
    Render(RenderArgs),
    /// Time the model without a server around it
    #[command(subcommand)]
    Bench(Box<bench::BenchCommand>),
}

/// `spinney serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub batch: BatchArgs,
    #[command(flatten)]
    pub prefix_cache: PrefixCacheArgs,
    #[command(flatten)]
    pub http: HttpArgs,
    #[command(flatten)]
    pub http_limits: HttpLimitArgs,
    #[command(flatten)]
    pub requests: RequestArgs,
    #[command(flatten)]
    pub operations: OperationsArgs,
    #[command(flatten)]
    pub log: LogArgs,
    #[command(flatten)]
    pub compatibility: CompatibilityArgs,
}

/// The configuration file.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Configuration")]
pub struct ConfigArgs {
    /// TOML file of flags without their hyphens in front, as in `port = 8000`
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `spinney generate`.
#[derive(Args, Clone, Debug)]
pub struct GenerateArgs {
    #[command(flatten)]
    pub input: InputArgs,

    /// Value of enable_thinking in the chat template [default: the template's own]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub enable_thinking: Option<bool>,

    /// Print one JSON object at the end instead of the text as it grows
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// What to generate from: exactly one of these.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct InputArgs {
    /// Text to go on with, as it is
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,

    /// A user's message, put through the chat template
    #[arg(long, value_name = "TEXT")]
    pub chat: Option<String>,

    /// Token ids to go on with, as in 1,2,3
    #[arg(long, value_name = "IDS", value_parser = ids)]
    pub prompt_ids: Option<Ids>,
}

/// A list of token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

/// `spinney check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Also load the model and time a step of every shape: the table that `auto` chooses from
    #[arg(long)]
    pub time_steps: bool,

    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub batch: BatchArgs,
    #[command(flatten)]
    pub prefix_cache: PrefixCacheArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// `spinney render`.
#[derive(Args, Clone, Debug)]
pub struct RenderArgs {
    /// File with a chat request as JSON; `-` = standard input
    #[arg(value_name = "FILE")]
    pub request: PathBuf,

    /// Print token ids instead of text
    #[arg(long)]
    pub ids: bool,

    /// Folder with the tokenizer and the template, or a name on the hub [default: the bundled model]
    #[arg(long, alias = "model", value_name = "DIR|NAME")]
    pub model_path: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

fn ids(text: &str) -> Result<Ids, String> {
    if text.trim().is_empty() {
        return Ok(Ids(Vec::new()));
    }
    text.split(',')
        .map(|id| {
            id.trim().parse().map_err(|_| {
                let shown: String = id.chars().take(40).collect();
                format!("expected token ids separated by commas, found '{shown}'")
            })
        })
        .collect::<Result<_, _>>()
        .map(Ids)
}

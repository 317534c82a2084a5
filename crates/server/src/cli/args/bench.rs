//! What `spinney bench` is told.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use engine::{AcceptanceLaw, Shape};

use super::limits::ContextArgs;
use super::model::ModelArgs;
use super::prefix_cache::PrefixCacheArgs;
use super::requests::TemplateArgs;
use super::speculation::number;
use super::{ConfigArgs, LogArgs, SpeculationArgs};
use crate::acceptance;

/// `spinney bench`.
#[derive(Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Times of prefills and of single steps, by shape, batch and context
    Step(StepBenchArgs),
    /// Tokens per second of whole answers, by mode: plain, linear, trees, auto
    Decode(DecodeBenchArgs),
    /// Time to the first token of every turn of a growing conversation, with and without the prefix
    /// cache
    Conversation(ConversationBenchArgs),
    /// Tokens per second and latencies of many requests at once, by mode and concurrency
    Load(LoadBenchArgs),
}

/// `spinney bench step`.
#[derive(Args, Clone, Debug)]
pub struct StepBenchArgs {
    /// Committed tokens of every sequence before the first step
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "512",
          value_parser = |text: &str| number(text, 1, 1 << 24))]
    pub contexts: Vec<usize>,

    /// Sequences at once
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1",
          value_parser = |text: &str| number(text, 1, 512))]
    pub batches: Vec<usize>,

    /// Shapes: plain, chain-N with N drafts, tree-N with N nodes
    #[arg(long, value_name = "SHAPE,SHAPE", value_delimiter = ',', value_parser = shape,
          default_value = "plain,chain-15,tree-15,tree-31,tree-63")]
    pub shapes: Vec<Shape>,

    /// Lengths of prompts whose prefill is timed
    #[arg(long, value_name = "N,N", value_delimiter = ',',
          value_parser = |text: &str| number(text, 1, 1 << 24))]
    pub prefills: Vec<usize>,

    /// Timed steps per case
    #[arg(long, value_name = "N", default_value = "30",
          value_parser = |text: &str| number(text, 1, 10_000))]
    pub repeat: usize,

    #[command(flatten)]
    pub simulation: SimulationArgs,

    /// Print one JSON object at the end; the table goes to standard error
    #[arg(long)]
    pub json: bool,

    /// Also write a plot: step time over nodes, and tokens per second where acceptance means
    /// something
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// `spinney bench decode`.
#[derive(Args, Clone, Debug)]
pub struct DecodeBenchArgs {
    /// A user's message, put through the chat template; may be given again [default: three of
    /// code, prose and one word]
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,

    /// File that holds one such message; may be given again
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Vec<PathBuf>,

    /// Modes: plain, linear (the whole block of the drafter) or linear-N, tree-N, auto
    #[arg(long, value_name = "MODE,MODE", value_delimiter = ',', value_parser = mode,
          default_value = "plain,linear,tree-15,tree-31,auto")]
    pub modes: Vec<DecodeMode>,

    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value = "256",
          value_parser = |text: &str| number(text, 2, 1 << 20))]
    pub max_tokens: usize,

    /// Timed runs of every prompt in every mode
    #[arg(long, value_name = "N", default_value = "3",
          value_parser = |text: &str| number(text, 1, 1000))]
    pub runs: usize,

    /// Go on to --max-tokens behind the model's end of turn
    #[arg(long)]
    pub ignore_eos: bool,

    /// Value of enable_thinking in the chat template [default: the template's own]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub enable_thinking: Option<bool>,

    #[command(flatten)]
    pub simulation: SimulationArgs,

    /// Print one JSON object at the end; the tables go to standard error
    #[arg(long)]
    pub json: bool,

    /// Also write a plot: tokens per second over the budget
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

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

/// `spinney bench load`.
#[derive(Args, Clone, Debug)]
pub struct LoadBenchArgs {
    /// Clients at once, each of which asks again as soon as it was answered
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,4,8,16,32",
          value_parser = |text: &str| number(text, 1, 512))]
    pub concurrency: Vec<usize>,

    /// Modes: plain, linear (the whole block of the drafter) or linear-N, tree-N, auto
    #[arg(long, value_name = "MODE,MODE", value_delimiter = ',', value_parser = mode,
          default_value = "plain,linear,tree-15,auto")]
    pub modes: Vec<DecodeMode>,

    /// A user's message, put through the chat template; may be given again [default: 32 of code,
    /// arithmetic, facts and prose, in turn]
    #[arg(long, value_name = "TEXT", conflicts_with = "input_tokens")]
    pub prompt: Vec<String>,

    /// File that holds one such message; may be given again
    #[arg(long, value_name = "FILE", conflicts_with = "input_tokens")]
    pub prompt_file: Vec<PathBuf>,

    /// Ask with so many random tokens instead
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 1, 1 << 20))]
    pub input_tokens: Option<usize>,

    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value = "128",
          value_parser = |text: &str| number(text, 2, 1 << 20))]
    pub output_tokens: usize,

    /// Requests of every client in a run
    #[arg(long, value_name = "N", default_value = "4",
          value_parser = |text: &str| number(text, 1, 10_000))]
    pub requests: usize,

    /// Timed runs of every mode at every concurrency; modes take turns, and another begins each time
    #[arg(long, value_name = "N", default_value = "5",
          value_parser = |text: &str| number(text, 1, 1000))]
    pub runs: usize,

    /// Go on to --output-tokens behind the model's end of turn
    #[arg(long)]
    pub ignore_eos: bool,

    /// Value of enable_thinking in the chat template [default: the template's own]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub enable_thinking: Option<bool>,

    /// Tokens that the KV pool holds [default: what prompts and answers of all clients need]
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 64, usize::MAX))]
    pub max_total_tokens: Option<usize>,

    #[command(flatten)]
    pub simulation: SimulationArgs,

    /// Print one JSON object at the end; the tables go to standard error
    #[arg(long)]
    pub json: bool,

    /// Also write a plot: tokens per second and time per token over concurrency
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

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

/// `spinney bench conversation`.
#[derive(Args, Clone, Debug)]
pub struct ConversationBenchArgs {
    /// Turns: a question, then results of the tool that was called
    #[arg(long, value_name = "N", default_value = "12",
          value_parser = |text: &str| number(text, 1, 1000))]
    pub turns: usize,

    /// Tokens of the last turn's prompt; the others grow evenly up to it
    #[arg(long, value_name = "N", default_value = "3600",
          value_parser = |text: &str| number(text, 1, 1 << 24))]
    pub prompt_tokens: usize,

    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value = "16",
          value_parser = |text: &str| number(text, 1, 1 << 20))]
    pub max_tokens: usize,

    /// Print one JSON object at the end; the table goes to standard error
    #[arg(long)]
    pub json: bool,

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
    pub prefix_cache: PrefixCacheArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Acceptance that is not the model's.
#[derive(Args, Clone, Debug)]
pub struct SimulationArgs {
    /// Draw acceptance from a law instead of the model: the mean tokens per step of a chain of 15
    /// (1 to 16), or a JSON file {"first": [15 rates], "later": [15 rates]} by depth. Trees are
    /// those of a drafter that knows the law
    #[arg(long, value_name = "MEAN|FILE", value_parser = law)]
    pub simulate_acceptance: Option<AcceptanceLaw>,
}

/// How tokens are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeMode {
    /// One row per step.
    Plain,
    /// A chain of so many drafts; `None` = the drafter's whole block.
    Linear(Option<usize>),
    /// A tree of so many nodes.
    Tree(usize),
    /// Chosen per step.
    Auto,
}

fn mode(text: &str) -> Result<DecodeMode, String> {
    match text {
        "plain" => return Ok(DecodeMode::Plain),
        "linear" => return Ok(DecodeMode::Linear(None)),
        "auto" => return Ok(DecodeMode::Auto),
        _ => {}
    }
    let count = |kind: &str| text.strip_prefix(kind)?.parse::<usize>().ok();
    match (count("linear-"), count("tree-")) {
        (Some(drafts @ 1..=15), _) => Ok(DecodeMode::Linear(Some(drafts))),
        (_, Some(nodes @ 1..=63)) => Ok(DecodeMode::Tree(nodes)),
        _ => Err(format!(
            "expected plain, linear, linear-1 to linear-15, tree-1 to tree-63 or auto, found \
             '{text}'"
        )),
    }
}

fn shape(text: &str) -> Result<Shape, String> {
    let wrong =
        || format!("expected plain, chain-1 to chain-15 or tree-1 to tree-63, found '{text}'");
    if text == "plain" {
        return Ok(Shape::Plain);
    }
    let (kind, count) = text.split_once('-').ok_or_else(wrong)?;
    match (kind, count.parse::<usize>()) {
        ("chain", Ok(drafts @ 1..=15)) => Ok(Shape::Chain(drafts)),
        ("tree", Ok(nodes @ 1..=63)) => Ok(Shape::Tree(nodes)),
        _ => Err(wrong()),
    }
}

fn law(text: &str) -> Result<AcceptanceLaw, String> {
    match text.parse::<f64>() {
        Ok(mean) => acceptance::of_mean(mean),
        Err(_) => acceptance::of_file(Path::new(&PathBuf::from(text))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read() {
        assert_eq!(mode("plain"), Ok(DecodeMode::Plain));
        assert_eq!(mode("linear"), Ok(DecodeMode::Linear(None)));
        assert_eq!(mode("linear-7"), Ok(DecodeMode::Linear(Some(7))));
        assert_eq!(mode("tree-31"), Ok(DecodeMode::Tree(31)));
        assert_eq!(mode("auto"), Ok(DecodeMode::Auto));
        for wrong in [
            "",
            "tree",
            "tree-64",
            "linear-0",
            "linear-16",
            "AUTO",
            "plain-1",
        ] {
            assert!(mode(wrong).unwrap_err().contains("tree-63"), "{wrong}");
        }
    }

    #[test]
    fn shapes_are_read() {
        assert_eq!(shape("plain"), Ok(Shape::Plain));
        assert_eq!(shape("chain-15"), Ok(Shape::Chain(15)));
        assert_eq!(shape("tree-63"), Ok(Shape::Tree(63)));
        for wrong in [
            "", "tree", "tree-", "tree-0", "tree-64", "chain-16", "Plain", "line-3",
        ] {
            assert!(shape(wrong).unwrap_err().contains("tree-63"), "{wrong}");
        }
    }
}

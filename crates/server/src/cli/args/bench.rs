//! What `spinney bench` is told.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use engine::{AcceptanceLaw, Shape};

use super::model::ModelArgs;
use super::speculation::number;
use super::{ConfigArgs, LogArgs, SpeculationArgs};
use crate::acceptance;

/// `spinney bench`.
#[derive(Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Times of prefills and of single steps, by shape, batch and context
    Step(StepBenchArgs),
}

/// `spinney bench step`.
#[derive(Args, Clone, Debug)]
pub struct StepBenchArgs {
    /// Committed tokens of every sequence before the first step
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "512")]
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
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub prefills: Vec<usize>,

    /// Timed steps per case
    #[arg(long, value_name = "N", default_value = "30",
          value_parser = |text: &str| number(text, 1, 10_000))]
    pub repeat: usize,

    /// Draw acceptance from a law instead of the model: the mean tokens per step of a chain of 15
    /// (1 to 16), or a JSON file {"first": [15 rates], "later": [15 rates]} by depth
    #[arg(long, value_name = "MEAN|FILE", value_parser = law)]
    pub simulate_acceptance: Option<AcceptanceLaw>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub log: LogArgs,
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

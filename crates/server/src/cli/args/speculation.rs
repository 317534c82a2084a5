//! How drafts are made and verified.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use engine::{Algorithm, Budget};

use crate::cli::exit::Failure;

/// Nodes of a tree at most, root not counted.
const BUDGET_MAX: usize = 63;
/// Drafts of a chain at most.
const CHAIN_MAX: usize = 15;
/// Budget that `auto` means where the number of rows must be known.
const BUDGET_DEFAULT: usize = 15;

/// Drafter, algorithm and sizes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationArgs {
    /// Folder of the DFlash drafter, or its name on the hub [default: the bundled drafter with the
    /// bundled target]
    #[arg(long, alias = "speculative-draft-model", value_name = "DIR|NAME")]
    pub speculative_draft_model_path: Option<PathBuf>,

    /// NONE, DFLASH (a chain) or DDTREE (a tree) [default: DDTREE with a drafter, else NONE]
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    pub speculative_algorithm: Option<Algorithm>,

    /// Nodes of the tree without its root, 1 to 63, or `auto`: chosen per step [default: auto]
    #[arg(long, value_name = "N|auto", value_parser = budget)]
    pub speculative_ddtree_budget: Option<Budget>,

    /// Candidates per depth, 1 to 15 [default: 8 up to budget 31, else 15]
    #[arg(
        long,
        aliases = ["speculative-ddtree-topk", "speculative-ddtree-max-topk"],
        value_name = "K",
        value_parser = |text: &str| number(text, 1, CHAIN_MAX)
    )]
    pub speculative_ddtree_topk_cap: Option<usize>,

    /// Rows per sequence and step: the block size of a chain, budget + 1 of a tree
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 2, BUDGET_MAX + 1))]
    pub speculative_num_draft_tokens: Option<usize>,

    /// Block size of a chain, 2 to 16, its anchor counted [default: the drafter's]
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 2, CHAIN_MAX + 1))]
    pub speculative_dflash_block_size: Option<usize>,

    /// Stop drafting when more than N requests run; 0 = never stop
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub speculative_disable_batch_size: usize,

    /// Where several requests draft, give the rows of a step to the likeliest drafts of all; budgets
    /// and block sizes then are averages
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, default_missing_value = "true")]
    pub speculative_share_rows: bool,

    /// Accepted for old unit files; siblings never share recurrent state here
    #[arg(long, hide = true)]
    pub speculative_ddtree_allow_hybrid_unsafe: bool,
}

/// What the flags come to once the drafter is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// Chain, tree or none.
    pub algorithm: Algorithm,
    /// Nodes of a tree.
    pub budget: Budget,
    /// Drafts of a chain; `None` = the drafter's.
    pub chain_drafts: Option<usize>,
}

impl SpeculationArgs {
    /// Checks the flags against each other. `has_drafter`: one was given or is bundled.
    pub fn resolve(&self, has_drafter: bool) -> Result<Speculation, Failure> {
        let algorithm = match self.speculative_algorithm {
            Some(algorithm) => algorithm,
            None if has_drafter => Algorithm::Ddtree,
            None => Algorithm::None,
        };
        if algorithm != Algorithm::None && !has_drafter {
            return Err(Failure::usage(format!(
                "--speculative-algorithm {} needs a drafter; give \
                 --speculative-draft-model-path or choose NONE",
                name(algorithm)
            )));
        }
        let budget = self.speculative_ddtree_budget.unwrap_or(Budget::Auto);
        self.warn_unused(algorithm);
        let chain_drafts = match algorithm {
            Algorithm::Dflash => self.block_size()?.map(|rows| rows - 1),
            Algorithm::Ddtree => {
                self.check_rows(budget)?;
                None
            }
            Algorithm::None => None,
        };
        Ok(Speculation {
            algorithm,
            budget,
            chain_drafts,
        })
    }

    /// The block size of a chain, which two flags can give.
    fn block_size(&self) -> Result<Option<usize>, Failure> {
        let (rows, block) = (
            self.speculative_num_draft_tokens,
            self.speculative_dflash_block_size,
        );
        if let (Some(rows), Some(block)) = (rows, block)
            && rows != block
        {
            return Err(Failure::usage(format!(
                "--speculative-num-draft-tokens {rows} and --speculative-dflash-block-size \
                 {block} mean the same and differ; give one of them"
            )));
        }
        match block.or(rows) {
            Some(size) if size > CHAIN_MAX + 1 => Err(Failure::usage(format!(
                "--speculative-num-draft-tokens {size}: with DFLASH it is the block size, at \
                 most {}",
                CHAIN_MAX + 1
            ))),
            size => Ok(size),
        }
    }

    /// With a tree, `--speculative-num-draft-tokens` may only repeat the budget.
    fn check_rows(&self, budget: Budget) -> Result<(), Failure> {
        let nodes = match budget {
            Budget::Fixed(nodes) => nodes,
            Budget::Auto => BUDGET_DEFAULT,
        };
        match self.speculative_num_draft_tokens {
            Some(rows) if rows != nodes + 1 => Err(Failure::usage(format!(
                "--speculative-num-draft-tokens {rows}: with DDTREE expected the budget + 1 = {}; \
                 set the tree's size with --speculative-ddtree-budget",
                nodes + 1
            ))),
            _ => Ok(()),
        }
    }

    fn warn_unused(&self, algorithm: Algorithm) {
        let tree =
            self.speculative_ddtree_budget.is_some() || self.speculative_ddtree_topk_cap.is_some();
        if algorithm != Algorithm::Ddtree && tree {
            tracing::warn!(
                algorithm = name(algorithm),
                "flags of the tree have no effect without DDTREE"
            );
        }
        if algorithm != Algorithm::Dflash && self.speculative_dflash_block_size.is_some() {
            tracing::warn!(
                algorithm = name(algorithm),
                "--speculative-dflash-block-size has no effect without DFLASH"
            );
        }
        if self.speculative_ddtree_allow_hybrid_unsafe {
            tracing::info!(
                "--speculative-ddtree-allow-hybrid-unsafe has no effect: sibling branches never \
                 share recurrent state"
            );
        }
    }
}

/// The flag's spelling of an algorithm.
pub fn name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::None => "NONE",
        Algorithm::Dflash => "DFLASH",
        Algorithm::Ddtree => "DDTREE",
    }
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    match text.to_ascii_uppercase().as_str() {
        "NONE" => Ok(Algorithm::None),
        "DFLASH" => Ok(Algorithm::Dflash),
        "DDTREE" => Ok(Algorithm::Ddtree),
        "NEXTN" | "EAGLE" | "EAGLE3" => Err(
            "multi-token-prediction heads are not supported; expected NONE, DFLASH or DDTREE"
                .to_owned(),
        ),
        _ => Err("expected NONE, DFLASH or DDTREE".to_owned()),
    }
}

fn budget(text: &str) -> Result<Budget, String> {
    if text.eq_ignore_ascii_case("auto") {
        return Ok(Budget::Auto);
    }
    number(text, 1, BUDGET_MAX)
        .map(Budget::Fixed)
        .map_err(|reason| format!("{reason}, or auto"))
}

/// A whole number between `low` and `high`.
pub(super) fn number(text: &str, low: usize, high: usize) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ if high == usize::MAX => Err(format!("expected a whole number of at least {low}")),
        _ => Err(format!("expected a whole number from {low} to {high}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(args: &SpeculationArgs, has_drafter: bool) -> String {
        args.resolve(has_drafter).unwrap_err().message
    }

    #[test]
    fn a_drafter_turns_trees_on() {
        let args = SpeculationArgs::default();
        assert_eq!(args.resolve(true).unwrap().algorithm, Algorithm::Ddtree);
        assert_eq!(args.resolve(true).unwrap().budget, Budget::Auto);
        assert_eq!(args.resolve(false).unwrap().algorithm, Algorithm::None);
    }

    #[test]
    fn drafting_needs_a_drafter() {
        let args = SpeculationArgs {
            speculative_algorithm: Some(Algorithm::Dflash),
            ..SpeculationArgs::default()
        };
        assert!(usage(&args, false).contains("--speculative-draft-model-path"));
    }

    #[test]
    fn draft_tokens_are_the_block_of_a_chain_and_repeat_a_budget() {
        let chain = SpeculationArgs {
            speculative_algorithm: Some(Algorithm::Dflash),
            speculative_num_draft_tokens: Some(8),
            ..SpeculationArgs::default()
        };
        assert_eq!(chain.resolve(true).unwrap().chain_drafts, Some(7));
        let both = SpeculationArgs {
            speculative_dflash_block_size: Some(6),
            ..chain.clone()
        };
        assert!(usage(&both, true).contains("differ"));
        let wide = SpeculationArgs {
            speculative_num_draft_tokens: Some(17),
            ..chain
        };
        assert!(usage(&wide, true).contains("at most 16"));
        let tree = SpeculationArgs {
            speculative_ddtree_budget: Some(Budget::Fixed(31)),
            speculative_num_draft_tokens: Some(32),
            ..SpeculationArgs::default()
        };
        assert_eq!(tree.resolve(true).unwrap().budget, Budget::Fixed(31));
        let other = SpeculationArgs {
            speculative_num_draft_tokens: Some(16),
            ..tree
        };
        assert!(usage(&other, true).contains("budget + 1 = 32"));
    }

    #[test]
    fn budgets_and_algorithms_are_read() {
        assert_eq!(budget("auto").unwrap(), Budget::Auto);
        assert_eq!(budget("63").unwrap(), Budget::Fixed(63));
        for wrong in ["0", "64", "-1", "3.5", "", "many"] {
            assert!(budget(wrong).unwrap_err().contains("1 to 63"), "{wrong}");
        }
        assert_eq!(algorithm("ddtree").unwrap(), Algorithm::Ddtree);
        for wrong in ["NEXTN", "EAGLE", "MEDUSA"] {
            assert!(algorithm(wrong).is_err(), "{wrong}");
        }
    }
}

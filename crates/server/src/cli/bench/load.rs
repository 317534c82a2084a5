//! `spinney bench load`: many requests at once in every mode, through an engine as a server has it.
//!
//! One engine serves everything: between runs it is told how to draft. So the weights are loaded
//! once, every mode meets the same device, and a fixed mode shares rows as it would if the engine
//! had been started with it.

use engine::{Algorithm, Budget, Engine, EngineConfig};

use super::load_report::{Cell, Report};
use super::load_run::{Clients, Run};
use super::modes;
use super::prompts::Asked;
use crate::cli::args::bench::{DecodeMode, LoadBenchArgs};
use crate::cli::checkpoints::Checkpoints;
use crate::cli::exit::{Exit, Failure};
use crate::cli::{loading, logging};
use crate::model_files::ModelFiles;

/// What is asked where nobody gives a prompt: the tiny pair was not trained on these.
const PROMPTS: &str = include_str!("prompts.txt");
/// Different prompts of random tokens.
const RANDOM_PROMPTS: u64 = 512;
/// Room behind the longest answer, so that no step is lowered to fewer rows than its mode has.
const SLACK_TOKENS: usize = 128;

/// Measures and prints.
pub fn run(args: &LoadBenchArgs) -> Result<Exit, Failure> {
    logging::start(&args.log, "warn")?;
    let checkpoints = Checkpoints::find(&args.model, &args.speculation)?;
    let files = checkpoints.text_files(args.template.chat_template.as_deref())?;
    let prompts = prompts(args, &files)?;
    let modes = modes::possible(&args.modes, checkpoints.drafter.is_some())?;
    let config = engine_config(args, &modes, &prompts);
    let spec = checkpoints.bench_spec(&args.model, &files)?;
    let model_path = checkpoints.model_path.clone();
    let engine = Engine::start_after(checkpoints.fetch(), spec, config)?;
    loading::wait_until_ready(&engine.handle)?;
    let mut report = Report::new(args, model_path, engine.handle.info());
    report.begin()?;
    let bench = Bench {
        args,
        engine: &engine,
        prompts,
        stop_ids: match ignores_end(args) {
            true => Vec::new(),
            false => files.generation.end_ids.clone(),
        },
    };
    let measured = bench.run(&modes, &mut report);
    // What was measured before a failure is a result all the same.
    report.finish()?;
    measured.map(|()| Exit::Clean)
}

/// Whether answers go on behind the end of a turn: what simulated ones say means nothing.
pub fn ignores_end(args: &LoadBenchArgs) -> bool {
    args.ignore_eos || args.simulation.simulate_acceptance.is_some()
}

fn prompts(args: &LoadBenchArgs, files: &ModelFiles) -> Result<Vec<Vec<u32>>, Failure> {
    if let Some(count) = args.input_tokens {
        let vocabulary = files.vocabulary.len() as u64;
        return Ok((0..RANDOM_PROMPTS)
            .map(|seed| random_ids(seed, count, vocabulary))
            .collect());
    }
    let defaults: Vec<&str> = PROMPTS.lines().collect();
    let asked = Asked {
        texts: &args.prompt,
        files: &args.prompt_file,
        defaults: &defaults,
        enable_thinking: args.enable_thinking,
    };
    let prompts = asked.prompts(files)?.into_iter();
    Ok(prompts.map(|prompt| prompt.ids).collect())
}

/// The same ids for the same seed, by the generator SplitMix64.
fn random_ids(seed: u64, count: usize, vocabulary: u64) -> Vec<u32> {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = seed.wrapping_add(1).wrapping_mul(STEP).rotate_left(32);
    let ids = (0..count).map(|_| {
        state = state.wrapping_add(STEP);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % vocabulary.max(1)) as u32
    });
    ids.collect()
}

/// An engine that chooses unless it is told a shape.
fn engine_config(args: &LoadBenchArgs, modes: &[DecodeMode], prompts: &[Vec<u32>]) -> EngineConfig {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let room = longest + args.output_tokens + SLACK_TOKENS;
    let context = args.context.context_length.unwrap_or(room);
    let clients = args.concurrency.iter().copied().max().unwrap_or(1);
    EngineConfig {
        algorithm: match modes == [DecodeMode::Plain] {
            true => Algorithm::None,
            false => Algorithm::Ddtree,
        },
        chain_drafts: None,
        budget: Budget::Auto,
        topk_cap: args.speculation.speculative_ddtree_topk_cap,
        running_max: clients,
        queue_max: 0,
        context_length: Some(context),
        tokens_total: Some(args.max_total_tokens.unwrap_or(context * clients)),
        memory_fraction: args.context.mem_fraction_static,
        prefill_chunk: args.context.chunked_prefill_size,
        draft_batch_max: 0,
        share_rows: args.speculation.speculative_share_rows,
        skip_warmup: false,
        prefix_cache: None,
        simulate: args.simulation.simulate_acceptance,
    }
}

struct Bench<'a> {
    args: &'a LoadBenchArgs,
    engine: &'a Engine,
    prompts: Vec<Vec<u32>>,
    stop_ids: Vec<u32>,
}

impl Bench<'_> {
    /// At every concurrency a warm-up of every mode, then runs in which the modes take turns.
    fn run(&self, modes: &[DecodeMode], report: &mut Report<'_>) -> Result<(), Failure> {
        for &clients in &self.args.concurrency {
            for &mode in modes {
                self.run_once(mode, clients, 1)?;
            }
            let mut cells: Vec<Cell> = modes.iter().map(|&mode| Cell::new(mode)).collect();
            for round in 0..self.args.runs {
                for turn in 0..cells.len() {
                    let turn = (turn + round) % cells.len();
                    let run = self.run_once(cells[turn].mode, clients, self.args.requests)?;
                    cells[turn].runs.push(run);
                }
            }
            report.add(clients, cells)?;
        }
        Ok(())
    }

    fn run_once(&self, mode: DecodeMode, clients: usize, each: usize) -> Result<Run, Failure> {
        let handle = &self.engine.handle;
        handle.set_drafting(modes::shape(mode, handle.info().chain_drafts))?;
        let clients = Clients {
            count: clients,
            requests: clients * each,
            prompts: &self.prompts,
            output_tokens: self.args.output_tokens,
            stop_ids: &self.stop_ids,
        };
        clients.run(self.engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_prompts_differ_and_come_back() {
        let ids = random_ids(3, 200, 50);
        assert_eq!(ids, random_ids(3, 200, 50));
        assert_ne!(ids, random_ids(4, 200, 50));
        assert!(ids.iter().all(|&id| id < 50));
        let distinct: std::collections::BTreeSet<u32> = ids.into_iter().collect();
        assert!(distinct.len() > 40, "{} of 50 ids", distinct.len());
    }

    #[test]
    fn the_default_prompts_are_what_the_help_says() {
        assert_eq!(PROMPTS.lines().count(), 32);
        assert!(PROMPTS.lines().all(|line| !line.trim().is_empty()));
    }
}

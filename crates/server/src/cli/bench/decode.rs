//! `spinney bench decode`: answers to prompts in every mode, through an engine as a server has it.
//!
//! One engine serves all modes: each request names its shape. So the weights are loaded once, and
//! every mode meets the same device.

use engine::{Algorithm, Budget, Engine, EngineConfig, Request, RequestStats, SamplingParams};

use super::answer;
use super::decode_report::{Answers, Facts, Report};
use super::modes;
use super::prompts::{Asked, Prompt};
use crate::cli::args::bench::{DecodeBenchArgs, DecodeMode};
use crate::cli::checkpoints::Checkpoints;
use crate::cli::exit::{Exit, Failure};
use crate::cli::{loading, logging};

/// What is asked where nobody gives a prompt.
const PROMPTS: [&str; 3] = [
    "Write a Python function fibonacci(n) using iteration. Return only code.",
    "Explain the quicksort algorithm in 3 sentences.",
    "What is 2+2? Answer with just the number.",
];
/// Room behind the longest answer, so that no step is lowered to fewer rows than its mode has.
const SLACK_TOKENS: usize = 128;

/// One answer.
#[derive(Clone, Debug)]
pub struct Run {
    /// Tokens, the first of which is the prefill's.
    pub tokens: Vec<u32>,
    /// Counters and times.
    pub stats: RequestStats,
}

/// Measures and prints.
pub fn run(args: &DecodeBenchArgs) -> Result<Exit, Failure> {
    logging::start(&args.log, "warn")?;
    let checkpoints = Checkpoints::find(&args.model, &args.speculation)?;
    let files = checkpoints.text_files(args.template.chat_template.as_deref())?;
    let asked = Asked {
        texts: &args.prompt,
        files: &args.prompt_file,
        defaults: &PROMPTS,
        enable_thinking: args.enable_thinking,
    };
    let prompts = asked.prompts(&files)?;
    let modes = modes::possible(&args.modes, checkpoints.drafter.is_some())?;
    let config = engine_config(args, &modes, &prompts);
    let spec = checkpoints.bench_spec(&args.model, &files)?;
    let model_path = checkpoints.model_path.clone();
    let engine = Engine::start_after(checkpoints.fetch(), spec, config)?;
    loading::wait_until_ready(&engine.handle)?;
    let bench = Bench {
        args,
        engine: &engine,
        stop_ids: match args.ignore_eos || args.simulation.simulate_acceptance.is_some() {
            true => Vec::new(),
            false => files.generation.end_ids.clone(),
        },
    };
    let info = engine.handle.info();
    let mut report = Report::new(
        args,
        Facts {
            model_path,
            device: info.device.clone(),
            topk: info.topk,
            vocabulary: info.vocab_used,
            chain_drafts: info.chain_drafts,
        },
    );
    report.begin()?;
    let measured = bench.run(&modes, &prompts, &mut report);
    // What was measured before a failure is a result all the same.
    report.finish()?;
    measured?;
    match report.identical() {
        Some(false) => Err(Failure::new(
            Exit::Runtime,
            "modes or runs of one prompt gave different tokens at temperature 0",
        )),
        _ => Ok(Exit::Clean),
    }
}

/// An engine in which every request can have its own shape. Only `auto` needs all shapes timed.
fn engine_config(args: &DecodeBenchArgs, modes: &[DecodeMode], prompts: &[Prompt]) -> EngineConfig {
    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max();
    let room = longest.unwrap_or(0) + args.max_tokens + SLACK_TOKENS;
    let nodes = modes
        .iter()
        .filter_map(|&mode| modes::shape(mode, modes::DRAFTS_MAX));
    let nodes = nodes
        .map(|shape| shape.rows() - 1)
        .filter(|&nodes| nodes > 0);
    let (auto, nodes) = (modes.contains(&DecodeMode::Auto), nodes.max());
    EngineConfig {
        algorithm: match auto || nodes.is_some() {
            true => Algorithm::Ddtree,
            false => Algorithm::None,
        },
        chain_drafts: None,
        budget: match nodes {
            Some(nodes) if !auto => Budget::Fixed(nodes),
            _ => Budget::Auto,
        },
        topk_cap: args.speculation.speculative_ddtree_topk_cap,
        running_max: 1,
        queue_max: 0,
        context_length: Some(args.context.context_length.unwrap_or(room)),
        tokens_total: None,
        memory_fraction: args.context.mem_fraction_static,
        prefill_chunk: args.context.chunked_prefill_size,
        draft_batch_max: 0,
        share_rows: false,
        skip_warmup: false,
        prefix_cache: None,
        simulate: args.simulation.simulate_acceptance,
    }
}

struct Bench<'a> {
    args: &'a DecodeBenchArgs,
    engine: &'a Engine,
    stop_ids: Vec<u32>,
}

impl Bench<'_> {
    /// A warm-up of every mode, then every prompt in every mode; the report hears of each at once.
    fn run(
        &self,
        modes: &[DecodeMode],
        prompts: &[Prompt],
        report: &mut Report<'_>,
    ) -> Result<(), Failure> {
        for &mode in modes {
            if let Some(prompt) = prompts.first() {
                self.answer(mode, prompt)?;
            }
        }
        for prompt in prompts {
            report.begin_prompt(prompt)?;
            for &mode in modes {
                let runs = (0..self.args.runs).map(|_| self.answer(mode, prompt));
                let runs = runs.collect::<Result<_, _>>()?;
                report.add(Answers { mode, runs })?;
            }
        }
        Ok(())
    }

    fn answer(&self, mode: DecodeMode, prompt: &Prompt) -> Result<Run, Failure> {
        let chain_drafts = self.engine.handle.info().chain_drafts;
        let request = Request {
            priority: 0,
            prompt: prompt.ids.clone(),
            sampling: SamplingParams::default(),
            max_tokens: self.args.max_tokens,
            min_tokens: 0,
            stop_ids: self.stop_ids.clone(),
            logprobs: None,
            prompt_logprobs: None,
            trace: false,
            speculative: true,
            shape: modes::shape(mode, chain_drafts),
            cache_salt: None,
            turn_end: None,
            constraint: None,
        };
        let (tokens, finish) = answer::whole(self.engine, request)?;
        Ok(Run {
            tokens,
            stats: finish.stats,
        })
    }
}

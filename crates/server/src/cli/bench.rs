//! `spinney bench`: times of the model without a server around it.

use std::fmt::Write;

use engine::{
    AcceptanceLaw, Algorithm, Budget, EngineConfig, PrefillTime, Shape, StepBench, StepReport,
    StepTimes,
};
use serde_json::{Value, json};

use super::args::bench::{BenchCommand, StepBenchArgs};
use super::checkpoints::Checkpoints;
use super::exit::{Exit, Failure};
use super::{logging, print};

/// Room that steps need behind the context they are timed at.
const SLACK_TOKENS: usize = 4096;

/// Measures and prints.
pub fn run(command: &BenchCommand) -> Result<Exit, Failure> {
    match command {
        BenchCommand::Step(args) => step(args),
    }
}

fn step(args: &StepBenchArgs) -> Result<Exit, Failure> {
    logging::start(&args.log, "warn")?;
    let checkpoints = Checkpoints::find(&args.model, &args.speculation)?;
    let files = checkpoints.text_files(None)?;
    let spec = checkpoints.load_spec(&args.model, files.vocabulary.len());
    checkpoints.fetch_now()?;
    let bench = StepBench {
        contexts: args.contexts.clone(),
        batches: args.batches.clone(),
        shapes: args.shapes.clone(),
        prefills: args.prefills.clone(),
        repeats: args.repeat,
        simulate: args.simulate_acceptance,
    };
    let config = engine_config(args, checkpoints.drafter.is_some());
    let report = engine::time_steps(&spec, &config, &bench, &mut |done| {
        eprintln!("timed {done}")
    })?;
    let text = match args.json {
        true => format!("{}\n", object(args, &checkpoints, &report)),
        false => table(args, &checkpoints, &report),
    };
    print(&text)?;
    Ok(Exit::Clean)
}

/// Room for the largest of all cases.
fn engine_config(args: &StepBenchArgs, drafter: bool) -> EngineConfig {
    let largest = |values: &[usize]| values.iter().copied().max().unwrap_or(1);
    let context = largest(&args.contexts).max(largest(&args.prefills));
    let batch = largest(&args.batches);
    let pool = batch * (largest(&args.contexts) + SLACK_TOKENS);
    let drafts = drafter && args.shapes.iter().any(|shape| *shape != Shape::Plain);
    let nodes = args.shapes.iter().map(|shape| shape.rows() - 1).max();
    EngineConfig {
        algorithm: if drafts {
            Algorithm::Ddtree
        } else {
            Algorithm::None
        },
        chain_drafts: None,
        budget: Budget::Fixed(nodes.unwrap_or(0).max(1)),
        topk_cap: args.speculation.speculative_ddtree_topk_cap,
        running_max: batch,
        queue_max: 0,
        context_length: Some(context + SLACK_TOKENS),
        tokens_total: Some(pool.max(context + SLACK_TOKENS)),
        memory_fraction: 1.0,
        prefill_chunk: 2048,
        draft_batch_max: 0,
        skip_warmup: true,
    }
}

fn shape_name(shape: Shape) -> String {
    match shape {
        Shape::Plain => "plain".to_owned(),
        Shape::Chain(drafts) => format!("chain-{drafts}"),
        Shape::Tree(nodes) => format!("tree-{nodes}"),
    }
}

/// What stands in the first line: whether the numbers mean what a user would get.
fn caveats(args: &StepBenchArgs) -> String {
    let mut text = String::new();
    if args.model.is_dummy() {
        text += "random weights; ";
    }
    match &args.simulate_acceptance {
        Some(law) => {
            let (first, later) = (law.first[0], law.later[0]);
            let _ = write!(
                text,
                "simulated acceptance: first child {first:.4}, later children {later:.4} at depth 0; "
            );
        }
        None => text += "acceptance of the model; ",
    }
    text
}

fn table(args: &StepBenchArgs, checkpoints: &Checkpoints, report: &StepReport) -> String {
    let mut text = format!(
        "{}{} on {}, copies at {:.0} GB/s (read + written), loaded in {:.2} s, {:.2} GiB of {:.2} planned\n",
        caveats(args),
        checkpoints.model_path,
        report.device,
        report.copy_rate / 1e9,
        report.load_s,
        gib(report.allocated.0),
        gib(report.allocated.1),
    );
    for PrefillTime { tokens, runs_ms } in &report.prefills {
        let runs: Vec<String> = runs_ms.iter().map(|ms| format!("{ms:.1}")).collect();
        let best = runs_ms.iter().copied().fold(f64::INFINITY, f64::min);
        let _ = writeln!(
            text,
            "prefill {tokens}: {} ms, best {:.0} tokens/s",
            runs.join(", "),
            *tokens as f64 / best * 1e3
        );
    }
    text += "batch context shape       step ms (min) device   draft   build  verify  sample  commit   floor  step/floor tokens/step tokens/s\n";
    for times in &report.steps {
        row(&mut text, times);
    }
    text
}

fn row(text: &mut String, times: &StepTimes) {
    let (median, parts) = (times.median_ms(), times.device.parts);
    let least = times.steps_ms.iter().copied().fold(f64::INFINITY, f64::min);
    let _ = writeln!(
        text,
        "{:5} {:7} {:10} {median:8.3} {least:6.2} {:7.3} {:7.3} {:7.3} {:7.3} {:7.3} {:7.3} {:7.3} {:11.3} {:11.2} {:8.1}",
        times.batch,
        times.context,
        shape_name(times.shape),
        times.device.step_ms,
        parts.draft_ms,
        parts.build_ms,
        parts.verify_ms,
        parts.sample_ms,
        parts.commit_ms,
        times.floor_ms,
        median / times.floor_ms,
        times.tokens_per_step,
        times.tokens_per_step * times.batch as f64 / median * 1e3,
    );
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn object(args: &StepBenchArgs, checkpoints: &Checkpoints, report: &StepReport) -> Value {
    let law = |law: &AcceptanceLaw| json!({"first": law.first, "later": law.later});
    let prefills = report
        .prefills
        .iter()
        .map(|prefill| json!({"tokens": prefill.tokens, "runs_ms": prefill.runs_ms}));
    let steps = report.steps.iter().map(|times| {
        let (parts, traffic) = (times.device.parts, times.traffic);
        json!({
            "batch": times.batch,
            "context": times.context,
            "shape": shape_name(times.shape),
            "steps_ms": times.steps_ms,
            "median_ms": times.median_ms(),
            "device_ms": times.device.step_ms,
            "parts_ms": {
                "draft": parts.draft_ms, "build": parts.build_ms, "verify": parts.verify_ms,
                "sample": parts.sample_ms, "commit": parts.commit_ms,
            },
            "bytes": {
                "target": traffic.target, "draft": traffic.draft, "state": traffic.state,
                "kv": traffic.kv,
            },
            "floor_ms": times.floor_ms,
            "tokens_per_step": times.tokens_per_step,
        })
    });
    json!({
        "random_weights": args.model.is_dummy(),
        "simulated_acceptance": args.simulate_acceptance.as_ref().map(law),
        "model_path": checkpoints.model_path,
        "device": report.device,
        "copy_bytes_per_s": report.copy_rate,
        "load_s": report.load_s,
        "allocated_bytes": report.allocated.0,
        "planned_bytes": report.allocated.1,
        "prefills": prefills.collect::<Vec<_>>(),
        "steps": steps.collect::<Vec<_>>(),
    })
}

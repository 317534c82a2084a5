//! `spinney bench step`: times of prefills and of single steps.

use std::fmt::Write;
use std::ops::ControlFlow;

use engine::{
    Algorithm, Budget, EngineConfig, LoadedModel, Measured, PrefillTime, SLACK_TOKENS,
    STEP_ROWS_MAX, Shape, StepBench, StepTimes, shape_name,
};
use serde_json::{Value, json};

use super::plot::{Mark, Panel, Plot, Series};
use super::{caveats, law, show, write_svg};
use crate::cli::args::bench::StepBenchArgs;
use crate::cli::checkpoints::Checkpoints;
use crate::cli::exit::{Exit, Failure};
use crate::cli::{logging, print};

const HEADER: &str = "batch context shape       step ms (min) device   draft   build  verify  sample  commit   floor  step/floor tokens/step expected tokens/s\n";

/// Measures and prints.
pub fn run(args: &StepBenchArgs) -> Result<Exit, Failure> {
    logging::start(&args.log, "warn")?;
    let checkpoints = Checkpoints::find(&args.model, &args.speculation)?;
    let files = checkpoints.text_files(None)?;
    let spec = checkpoints.bench_spec(&args.model, &files)?;
    let config = engine_config(args, checkpoints.drafter.is_some());
    checkpoints.fetch_for(&spec, &config)?;
    tell_left_out(args);
    let bench = StepBench {
        contexts: args.contexts.clone(),
        batches: args.batches.clone(),
        shapes: args.shapes.clone(),
        prefills: args.prefills.clone(),
        repeats: args.repeat,
        simulate: args.simulation.simulate_acceptance,
    };
    let mut report = Report {
        args,
        model_path: &checkpoints.model_path,
        vocabulary: spec.vocab_used,
        loaded: None,
        prefills: Vec::new(),
        steps: Vec::new(),
    };
    let mut shown = Ok(());
    let timed = engine::time_steps(&spec, &config, &bench, &mut |measured| {
        shown = report.add(measured);
        match shown {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    shown?;
    // What was measured before a failure is a result all the same.
    report.finish()?;
    timed?;
    Ok(Exit::Clean)
}

/// Says which cases have too many rows for a step.
fn tell_left_out(args: &StepBenchArgs) {
    for &batch in &args.batches {
        for &shape in &args.shapes {
            let rows = batch * shape.rows();
            if rows > STEP_ROWS_MAX {
                let name = shape_name(shape);
                eprintln!("{batch} x {name} is left out: {rows} rows, a step has {STEP_ROWS_MAX}");
            }
        }
    }
}

/// Room for the largest of all cases.
fn engine_config(args: &StepBenchArgs, drafter: bool) -> EngineConfig {
    let largest = |values: &[usize]| values.iter().copied().max().unwrap_or(1);
    let context = largest(&args.contexts).max(largest(&args.prefills)) + SLACK_TOKENS;
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
        context_length: Some(context),
        tokens_total: Some(pool.max(context)),
        memory_fraction: 1.0,
        prefill_chunk: 2048,
        draft_batch_max: 0,
        share_rows: false,
        skip_warmup: true,
        prefix_cache: None,
        simulate: args.simulation.simulate_acceptance,
    }
}

/// Everything measured so far.
struct Report<'a> {
    args: &'a StepBenchArgs,
    model_path: &'a str,
    /// Ids that are ranked and sampled.
    vocabulary: usize,
    loaded: Option<LoadedModel>,
    prefills: Vec<PrefillTime>,
    steps: Vec<StepTimes>,
}

impl Report<'_> {
    /// Keeps a measurement and shows it at once.
    fn add(&mut self, measured: Measured) -> Result<(), Failure> {
        let text = match measured {
            Measured::Loaded(loaded) => {
                let text = format!("{}\n", self.first_line(&loaded));
                self.loaded = Some(loaded);
                text
            }
            Measured::Prefill(prefill) => {
                let text = prefill_line(&prefill);
                self.prefills.push(prefill);
                text
            }
            Measured::Step(times) => {
                let header = if self.steps.is_empty() { HEADER } else { "" };
                let text = format!("{header}{}", row(&times));
                self.steps.push(times);
                text
            }
        };
        show(self.args.json, &text)
    }

    /// Prints the object and writes the plot, as far as they were asked for.
    fn finish(&self) -> Result<(), Failure> {
        let Some(loaded) = &self.loaded else {
            return Ok(());
        };
        if self.args.json {
            print(&format!("{}\n", self.object(loaded)))?;
        }
        match &self.args.svg {
            Some(path) => write_svg(path, &self.plot(loaded)),
            None => Ok(()),
        }
    }

    fn caveats(&self) -> String {
        caveats(self.args.model.is_dummy(), &self.args.simulation)
    }

    fn first_line(&self, loaded: &LoadedModel) -> String {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        format!(
            "{}{} on {}, copies at {:.0} GB/s (read + written), loaded in {:.2} s, {:.2} GiB of {:.2} planned{}",
            self.caveats(),
            self.model_path,
            loaded.device,
            loaded.copy_rate / 1e9,
            loaded.load_s,
            gib(loaded.allocated.0),
            gib(loaded.allocated.1),
            if self.args.model.disable_cuda_graph {
                ", without graphs"
            } else {
                ""
            },
        )
    }

    fn object(&self, loaded: &LoadedModel) -> Value {
        json!({
            "random_weights": self.args.model.is_dummy(),
            "simulated_acceptance": law(&self.args.simulation),
            "model_path": self.model_path,
            "device": loaded.device,
            "graphs": !self.args.model.disable_cuda_graph,
            "vocabulary": self.vocabulary,
            "copy_bytes_per_s": loaded.copy_rate,
            "load_s": loaded.load_s,
            "allocated_bytes": loaded.allocated.0,
            "planned_bytes": loaded.allocated.1,
            "prefills": self.prefills.iter().map(prefill_object).collect::<Vec<_>>(),
            "steps": self.steps.iter().map(step_object).collect::<Vec<_>>(),
        })
    }

    /// Step time over nodes; tokens per second beside it where acceptance means something.
    fn plot(&self, loaded: &LoadedModel) -> Plot {
        let mut panels = vec![self.panel("milliseconds per step", StepTimes::median_ms)];
        if self.args.simulation.simulate_acceptance.is_some() || !self.args.model.is_dummy() {
            panels.push(self.panel("tokens per second, all sequences", StepTimes::tokens_per_s));
        }
        Plot {
            title: "Time of a step".to_owned(),
            subtitle: format!("{}{} on {}", self.caveats(), self.model_path, loaded.device),
            panels,
        }
    }

    /// One line per batch and context over plain and trees, and the chains beside it.
    fn panel(&self, y_label: &str, value: impl Fn(&StepTimes) -> f64) -> Panel {
        let mut series: Vec<Series> = Vec::new();
        let mut cases: Vec<(usize, usize)> = Vec::new();
        for times in &self.steps {
            let case = (times.batch, times.context);
            if !cases.contains(&case) {
                cases.push(case);
            }
            let colour = cases.iter().position(|own| *own == case).unwrap_or(0);
            let (kind, mark) = match times.shape {
                Shape::Chain(_) => (", chain", Mark::Dots),
                Shape::Plain | Shape::Tree(_) => ("", Mark::Line),
            };
            let name = format!("batch {}, context {}{kind}", times.batch, times.context);
            let nodes = (times.shape.rows() - 1) as f64;
            let point = (nodes, value(times));
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => series.push(Series {
                    name,
                    mark,
                    colour,
                    points: vec![point],
                }),
            }
        }
        Panel {
            x_label: "drafted nodes per sequence (0 = plain)".to_owned(),
            y_label: y_label.to_owned(),
            series,
        }
    }
}

fn least(ms: &[f64]) -> f64 {
    ms.iter().copied().fold(f64::INFINITY, f64::min)
}

fn prefill_line(prefill: &PrefillTime) -> String {
    let runs: Vec<String> = (prefill.runs_ms.iter())
        .map(|ms| format!("{ms:.1}"))
        .collect();
    format!(
        "prefill {}: {} ms, best {:.0} tokens/s\n",
        prefill.tokens,
        runs.join(", "),
        prefill.tokens as f64 / least(&prefill.runs_ms) * 1e3
    )
}

fn row(times: &StepTimes) -> String {
    let (median, parts) = (times.median_ms(), times.device.parts);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:5} {:7} {:10} {median:8.3} {:6.2} {:7.3} {:7.3} {:7.3} {:7.3} {:7.3} {:7.3} {:7.3} {:11.3} {:11.2} {:>8} {:8.1}",
        times.batch,
        times.context,
        shape_name(times.shape),
        least(&times.steps_ms),
        times.device.step_ms,
        parts.draft_ms,
        parts.build_ms,
        parts.verify_ms,
        parts.sample_ms,
        parts.commit_ms,
        times.floor_ms,
        median / times.floor_ms,
        times.tokens_per_step,
        (times.expected_tokens).map_or_else(|| "-".to_owned(), |tokens| format!("{tokens:.3}")),
        times.tokens_per_s(),
    );
    text
}

fn prefill_object(prefill: &PrefillTime) -> Value {
    json!({
        "tokens": prefill.tokens,
        "runs_ms": prefill.runs_ms,
        "best_tokens_per_s": prefill.tokens as f64 / least(&prefill.runs_ms) * 1e3,
    })
}

fn step_object(times: &StepTimes) -> Value {
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
        "expected_tokens_per_step": times.expected_tokens,
        "tokens_per_s": times.tokens_per_s(),
    })
}

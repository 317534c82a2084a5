//! `spinney check`: is everything in order, and what would be allocated?

use std::fmt::Write;

use engine::{Budget, CheckOutput, Engine, EngineConfig, LoadFormat, LoadSpec, ModelInfo};
use serde_json::{Map, Value, json};

use super::args::CheckArgs;
use super::args::speculation::name;
use super::checkpoints::Checkpoints;
use super::exit::{Exit, Failure};
use super::{loading, logging, print};
use crate::model_files::ModelFiles;

/// Checks and prints.
pub fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    logging::start(&args.log, "warn")?;
    let checkpoints = Checkpoints::find(&args.model, &args.speculation)?;
    let config = checkpoints.engine_config(
        &args.speculation,
        &args.context,
        &args.batch,
        args.prefix_cache.config(),
    )?;
    let files = checkpoints.text_files(args.template.chat_template.as_deref())?;
    let spec = checkpoints.load_spec(&args.model, files.vocabulary.len());
    let output = match checkpoints.plan_ahead(&spec, &config)? {
        // Not worth a download.
        Some(ahead) if !ahead.info.fits() => ahead,
        _ => {
            checkpoints.fetch_now()?;
            engine::check(&spec, &config)?
        }
    };
    let unread = match spec.format {
        LoadFormat::Dummy { .. } => "dummy weights",
        LoadFormat::Safetensors => "not fetched",
    };
    let times = match args.time_steps && output.info.fits() {
        true => step_times(spec, config)?,
        false => Vec::new(),
    };
    let text = match args.json {
        true => {
            let mut object = object(&checkpoints, &files, &output);
            if args.time_steps {
                let times = times.into_iter().map(|(name, ms)| (name, json!(ms)));
                object["step_times_ms"] = times.collect::<Map<_, _>>().into();
            }
            format!("{object}\n")
        }
        false => table(&checkpoints, &files, &output, unread) + &times_table(&times),
    };
    print(&text)?;
    match output.info.fits() {
        true => Ok(Exit::Clean),
        false => Err(Failure::shortage(&output.info)),
    }
}

/// Loads the model and times its steps, as a server does when it starts.
fn step_times(spec: LoadSpec, config: EngineConfig) -> Result<Vec<(String, f64)>, Failure> {
    let engine = Engine::start(spec, config)?;
    loading::wait_until_ready(&engine.handle)?;
    let times = engine.handle.status().step_times_ms;
    engine.handle.drain();
    Ok(times)
}

fn times_table(times: &[(String, f64)]) -> String {
    let mut text = String::new();
    if !times.is_empty() {
        text.push_str("\na step of                      ms\n");
    }
    for (name, ms) in times {
        let _ = writeln!(text, "{name:<20}{ms:>12.3}");
    }
    text
}

fn budget(info: &ModelInfo) -> String {
    match info.budget {
        Budget::Auto => "auto".to_owned(),
        Budget::Fixed(nodes) => nodes.to_string(),
    }
}

fn object(checkpoints: &Checkpoints, files: &ModelFiles, output: &CheckOutput) -> Value {
    let info = &output.info;
    let report = |report: &engine::CheckReport| {
        json!({
            "tensors": report.tensors,
            "values": report.values,
            "skipped": report.skipped,
        })
    };
    let lines: Vec<Value> = info
        .plan
        .lines
        .iter()
        .map(|line| json!({"part": line.part, "bytes": line.bytes}))
        .collect();
    json!({
        "model_path": checkpoints.model_path,
        "model_type": info.model_type,
        "target": output.target.as_ref().map(report),
        "drafter": output.drafter.as_ref().map(report),
        "tokenizer": {"tokens": info.vocab_used, "head_rows": info.vocab_rows},
        "chat_template": files.template.is_some(),
        "device": info.device,
        "context_length": info.context_length,
        "max_total_tokens": info.tokens_total,
        "speculative_algorithm": name(info.algorithm),
        "speculative_ddtree_budget": budget(info),
        "speculative_ddtree_topk_cap": info.topk,
        "memory": {
            "kv_pages": info.plan.kv_pages,
            "slots": info.plan.slots,
            "lines": lines,
            "total_bytes": info.plan.total_bytes(),
            "host_bytes": info.plan.host_bytes,
            "free_bytes": info.memory.map(|memory| memory.free),
            "room_bytes": info.room,
            "fits": info.fits(),
        },
    })
}

/// What a check of tensors found.
fn tensors(report: &engine::CheckReport) -> String {
    let mut text = format!(
        "{} tensors, {} values, all finite",
        report.tensors,
        grouped(report.values)
    );
    if report.skipped > 0 {
        text += &format!("; {} tensors skipped by rule", report.skipped);
    }
    text
}

/// `unread` stands for what was found in tensors that nobody looked at.
fn table(
    checkpoints: &Checkpoints,
    files: &ModelFiles,
    output: &CheckOutput,
    unread: &str,
) -> String {
    let info = &output.info;
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row(
        "model",
        format!("{} ({})", checkpoints.model_path, info.model_type),
    );
    let target = output.target.as_ref();
    row("target", target.map_or(unread.to_owned(), tensors));
    let drafter = match (&output.drafter, &output.target) {
        (Some(drafter), _) => tensors(drafter),
        (None, None) if checkpoints.drafter.is_some() => unread.to_owned(),
        (None, _) => "none".to_owned(),
    };
    row("drafter", drafter);
    row(
        "tokenizer",
        format!(
            "{} tokens, {} rows of the head",
            info.vocab_used, info.vocab_rows
        ),
    );
    let template = if files.template.is_some() {
        "compiled"
    } else {
        "none"
    };
    row("chat template", template.to_owned());
    row("device", info.device.clone());
    row(
        "context",
        format!("{} tokens", grouped(info.context_length as u64)),
    );
    row(
        "KV pool",
        format!(
            "{} tokens in {} pages, {} sequences",
            grouped(info.tokens_total as u64),
            info.plan.kv_pages,
            info.plan.slots
        ),
    );
    row("speculation", speculation(info));
    let mut text = String::new();
    for (name, value) in &rows {
        let _ = writeln!(text, "{name:<20}{value}");
    }
    text + &memory(info)
}

/// The plan line by line, and what there is.
fn memory(info: &ModelInfo) -> String {
    let mut text = "\nmemory                       MiB\n".to_owned();
    for line in &info.plan.lines {
        let _ = writeln!(text, "{:<20}{:>12.2}", line.part, mebibytes(line.bytes));
    }
    let _ = writeln!(
        text,
        "{:<20}{:>12.2}",
        "total",
        mebibytes(info.plan.total_bytes())
    );
    if info.plan.host_bytes > 0 {
        let host = mebibytes(info.plan.host_bytes);
        let _ = writeln!(text, "{:<20}{host:>12.2}", "in host memory");
    }
    if let Some(memory) = info.memory {
        let _ = writeln!(text, "{:<20}{:>12.2}", "free", mebibytes(memory.free));
    }
    if let Some(room) = info.room {
        let _ = writeln!(text, "{:<20}{:>12.2}", "may be taken", mebibytes(room));
    }
    text
}

fn speculation(info: &ModelInfo) -> String {
    let name = name(info.algorithm);
    match info.algorithm {
        engine::Algorithm::None => name.to_owned(),
        engine::Algorithm::Dflash => format!("{name}, {} drafts", info.chain_drafts),
        engine::Algorithm::Ddtree => {
            format!(
                "{name}, budget {}, {} candidates per depth",
                budget(info),
                info.topk
            )
        }
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped_from_the_right() {
        let grouped: Vec<String> = [0, 999, 1_000, 1_234_567].map(grouped).into();
        assert_eq!(grouped, ["0", "999", "1,000", "1,234,567"]);
    }
}

//! Forward passes and steps against golden logits and against each other, bit by bit.

mod constrained;
mod decoded;
mod dummy;
mod equality;
mod golden;
mod jobs;
mod replays;
mod rows;
mod simulation;
mod snapshots;
mod steps;
mod trees;

use std::collections::HashMap;
use std::path::PathBuf;

use ops::{Backend, Cpu, Dtype, SamplingParams};
use safetensors::SafeTensors;

use super::prefill::unconstrained;
use super::{
    Chunk, ModelSources, PromptLogprobs, Runner, RunnerConfig, SequenceStart, SequenceStep, Shape,
    StepKey,
};
use crate::{CheckpointSource, LoadFormat, LoadProgress};

pub(super) fn fixture(name: &str) -> CheckpointSource {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    CheckpointSource::Folder(root.join(name))
}

/// Golden tensors as f32, by name.
pub(super) fn golden(name: &str) -> HashMap<String, Vec<f32>> {
    let CheckpointSource::Folder(folder) = fixture(name) else {
        unreachable!()
    };
    let bytes = std::fs::read(folder.join("golden.safetensors")).expect("the fixture is committed");
    let file = SafeTensors::deserialize(&bytes).expect("the fixture is a safetensors file");
    file.iter()
        .map(|(name, view)| {
            let values = match view.dtype() {
                safetensors::Dtype::F32 => view
                    .data()
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")))
                    .collect(),
                safetensors::Dtype::I64 => view
                    .data()
                    .chunks_exact(8)
                    .map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")) as f32)
                    .collect(),
                other => panic!("no golden tensor is {other:?}"),
            };
            (name.to_owned(), values)
        })
        .collect()
}

pub(super) const VOCAB: usize = 97;
pub(super) const HIDDEN: usize = 64;

pub(super) fn config() -> RunnerConfig {
    let mut config = RunnerConfig {
        sequences_max: 3,
        context_max: 400,
        kv_pages: 0,
        prefill_rows_max: 256,
        tree_rows_max: 64,
        step_rows_max: 192,
        topk: 8,
        weight_dtype: Dtype::F32,
        kv_dtype: Dtype::F32,
        vocab_used: VOCAB,
        graphs: true,
        snapshots: 0,
        host_snapshots: 0,
    };
    config.kv_pages = config.pages_per_sequence() * config.sequences_max;
    config
}

/// A sequence that keeps the rows of its shape.
pub(super) fn own(slot: usize, shape: Shape) -> SequenceStep {
    SequenceStep {
        slot,
        shape,
        rows_max: None,
    }
}

/// A sequence that drafts and shares the rows of its shape.
pub(super) fn sharing(slot: usize, shape: Shape) -> SequenceStep {
    SequenceStep {
        rows_max: (shape != Shape::Plain).then_some(64),
        ..own(slot, shape)
    }
}

/// The fixtures, with their drafter or without.
pub(super) fn sources(drafter: bool) -> ModelSources {
    ModelSources {
        target: fixture("qwen3_5"),
        drafter: drafter.then(|| fixture("dflash")),
        format: LoadFormat::Safetensors,
    }
}

/// The random pair of the fixtures.
pub(super) fn runner(config: RunnerConfig) -> Runner<Cpu> {
    let progress = LoadProgress::default();
    Runner::load(Cpu::default(), &sources(true), config, &progress).expect("fixtures load")
}

/// Starts a sequence in `slot` that nothing ends before `tokens_max`.
pub(super) fn start<B: Backend>(
    runner: &mut Runner<B>,
    slot: usize,
    prompt: &[u32],
    params: &SamplingParams,
) {
    let per_sequence = runner.config().pages_per_sequence();
    // Pages of a sequence in descending order: a table that ignored the order would fail.
    let pages: Vec<u32> = (0..per_sequence)
        .map(|page| ((slot + 1) * per_sequence - 1 - page) as u32)
        .collect();
    runner
        .start(&SequenceStart {
            slot,
            prompt,
            pages: &pages,
            sampling: params,
            stop_ids: &[],
            tokens_min: 0,
            tokens_max: 10_000,
            logprobs: Some(3),
            resume: None,
            emitted: &[],
        })
        .expect("the slot starts");
}

/// Prefills `tokens` in pieces that end at `cuts`; returns the logits of every row.
pub(super) fn prefill_pieces(
    runner: &mut Runner<Cpu>,
    slot: usize,
    tokens: &[u32],
    cuts: &[usize],
    last: bool,
) -> Vec<f32> {
    let mut logits = Vec::new();
    let mut from = 0;
    for to in cuts
        .iter()
        .copied()
        .filter(|cut| *cut < tokens.len())
        .chain([tokens.len()])
    {
        let chunk = Chunk {
            slot,
            start: from,
            tokens: &tokens[from..to],
            last: false,
            prompt_logprobs: None,
        };
        runner
            .prefill_forward(std::slice::from_ref(&chunk))
            .expect("the forward runs");
        for row in 0..to - from {
            runner.select(&[row as u32]).expect("rows are gathered");
            runner.selected_head(1).expect("the head runs");
            logits.extend_from_slice(&runner.workspace.logits[..VOCAB]);
        }
        let end = to == tokens.len();
        let chunk = Chunk {
            last: last && end,
            ..chunk
        };
        runner
            .prefill_rest(&[chunk], &mut unconstrained(1))
            .expect("the context is appended");
        from = to;
    }
    logits
}

/// Drafts one block in `slot`; the logits of all its rows.
pub(super) fn draft(runner: &mut Runner<Cpu>, slot: usize) -> Vec<f32> {
    let shape = Shape::Tree(7);
    let key = runner.stage_step(&[own(slot, shape)]);
    runner
        .draft(key.expect("tables fit"))
        .expect("the draft runs");
    let rows = runner
        .drafter_config()
        .expect("there is a drafter")
        .block_size;
    runner.workspace.logits[..rows * VOCAB].to_vec()
}

/// Logits of a row of the last forward.
pub(super) fn row_logits<B: Backend>(runner: &Runner<B>, row: usize) -> Vec<f32> {
    let vocab = runner.slots.vocab_rows;
    let mut logits = vec![0.0; vocab];
    let buf = &runner.workspace.logits;
    runner
        .backend
        .download(buf, row * vocab, &mut logits)
        .expect("the row is there");
    logits
}

/// Processes one given token with the one-row step; returns its logits.
pub(super) fn step_token<B: Backend>(runner: &mut Runner<B>, slot: usize, token: u32) -> Vec<f32> {
    let backend = runner.backend.clone();
    backend
        .upload(&[token], &mut runner.slots.root, slot)
        .expect("the slot is there");
    runner
        .step(&[own(slot, Shape::Plain)])
        .expect("the step runs");
    row_logits(runner, 0)
}

pub(super) fn ids(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| *value as u32).collect()
}

pub(super) fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(
        a.len(),
        b.len(),
        "golden and own values have the same shape"
    );
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst, difference| {
            assert!(difference.is_finite(), "a difference is {difference}");
            worst.max(difference)
        })
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

//! Random weights in place of a checkpoint's, and the sizes of the real model.

use std::sync::atomic::Ordering;

use super::*;
use crate::{DrafterConfig, MemoryPlan, ModelConfig};

const PROMPT: [u32; 5] = [3, 14, 15, 92, 6];

fn dummy(seed: u64) -> (Runner<Cpu>, LoadProgress) {
    let progress = LoadProgress::default();
    let sources = ModelSources {
        format: LoadFormat::Dummy { seed },
        ..sources(true)
    };
    let runner = Runner::load(Cpu::default(), &sources, config(), &progress);
    (runner.expect("needs no weights"), progress)
}

fn logits(runner: &mut Runner<Cpu>) -> Vec<f32> {
    start(runner, 0, &PROMPT, &SamplingParams::default());
    let mut logits = prefill_pieces(runner, 0, &PROMPT, &[], false);
    logits.extend(step_token(runner, 0, 7));
    logits
}

#[test]
fn dummies_depend_on_their_seed_and_behave() {
    let (mut runner, progress) = dummy(1);
    let first = logits(&mut runner);
    assert_eq!(first, logits(&mut dummy(1).0));
    assert_ne!(first, logits(&mut dummy(2).0));
    assert!(first.iter().all(|value| value.is_finite()));
    // Normed activations of unit scale through N(0, 1/in) give logits of unit scale.
    let square: f64 = first.iter().map(|&value| f64::from(value).powi(2)).sum();
    let mean = square / first.len() as f64;
    assert!((0.5..2.0).contains(&mean), "mean square {mean}");
    let counted = progress.done.load(Ordering::Relaxed);
    let total = progress.total.load(Ordering::Relaxed);
    let rotary = (runner.target.config.rotary_dim + 32) / 2 * size_of::<f32>();
    assert!(
        counted <= total && total - counted <= rotary as u64 * 4,
        "{counted} of {total}"
    );
}

/// The numbers that describe the model in public, from its configuration alone.
#[test]
fn the_real_pair_has_its_sizes() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let source = |name: &str| CheckpointSource::Folder(folder.join(name));
    let target = ModelConfig::read(&source("qwen3.6-27b")).expect("a configuration");
    let drafter = DrafterConfig::read(&source("qwen3.6-27b-dflash"), &target).expect("it fits");
    assert_eq!((target.attention_layers(), target.gdn_layers()), (16, 48));
    assert_eq!(drafter.taps, [1, 16, 31, 46, 61]);
    assert_eq!((drafter.block_size, drafter.mask_token), (16, 248_070));
    let plan = MemoryPlan::of(&Cpu::default(), &target, Some(&drafter), &config());
    let bytes = |part: &str| {
        let line = plan.lines.iter().find(|line| line.part == part);
        line.expect("a line of the plan").bytes
    };
    // Stored as f32, with the rotary frequencies beside them.
    assert_eq!(bytes("target weights"), 4 * (26_895_998_464 + 32));
    let second_copy = 5 * 2 * 8 * 128 * 5_120;
    assert_eq!(
        bytes("drafter weights"),
        4 * (1_730_213_120 + second_copy + 64)
    );
}

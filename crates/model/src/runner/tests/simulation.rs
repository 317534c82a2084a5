//! Simulated acceptance: the tree is the law's own, and is accepted as often as the law says.

use ops::{DEPTH_MAX, PHI_BUDGETS, PHI_LENGTHS};

use super::*;
use crate::AcceptanceLaw;

/// Candidates per depth.
const TOPK: usize = 15;
/// Sequences of a step, each with draws of its own.
const SEQUENCES: usize = 8;

/// Random weights behind a drafter whose block holds all depths, eight sequences in slots.
fn started() -> Runner<Cpu> {
    let folder = tempfile::tempdir().expect("a folder");
    let CheckpointSource::Folder(drafter) = fixture("dflash") else {
        unreachable!()
    };
    let text = std::fs::read_to_string(drafter.join("config.json")).expect("it is committed");
    let text = text.replace("\"block_size\": 8", "\"block_size\": 16");
    std::fs::write(folder.path().join("config.json"), text).expect("it is written");
    let mut config = config();
    (config.sequences_max, config.topk, config.context_max) = (SEQUENCES, TOPK, 8192);
    config.step_rows_max = SEQUENCES * config.tree_rows_max;
    config.kv_pages = config.pages_per_sequence() * SEQUENCES;
    let sources = ModelSources {
        target: fixture("qwen3_5"),
        drafter: Some(CheckpointSource::Folder(folder.path().into())),
        format: LoadFormat::Dummy { seed: 5 },
    };
    let progress = LoadProgress::default();
    let mut runner = Runner::load(Cpu::default(), &sources, config, &progress).expect("it loads");
    for slot in 0..SEQUENCES {
        let prompt = [3, 14, 15, slot as u32];
        start(&mut runner, slot, &prompt, &SamplingParams::default());
        prefill_pieces(&mut runner, slot, &prompt, &[], true);
        runner.logprobs_top[slot] = None;
        runner.slots.sampling[slot].logprobs = 0;
        // A draw belongs to its output position: sequences far apart share none.
        runner.slots.sampling[slot].tokens_max = u32::MAX;
        runner.slots.emitted[slot] = slot as u32 * 1_000_000 + 1;
    }
    runner
}

/// A law that gets worse with depth.
fn falling() -> AcceptanceLaw {
    let by_depth = |at: f32| std::array::from_fn(|depth| at - 0.03 * depth as f32);
    AcceptanceLaw {
        first: by_depth(0.85),
        later: by_depth(0.5),
        seed: 3,
    }
}

/// Probabilities of all prefixes that are at least `least`: of a node, its ancestors and their
/// ranks each being the accepted ones. Written from the rates alone.
fn prefixes(law: &AcceptanceLaw, depth: usize, above: f64, least: f64, found: &mut Vec<f64>) {
    if depth == DEPTH_MAX {
        return;
    }
    let mut missed = 1.0;
    for rank in 0..TOPK {
        let rate = f64::from(if rank == 0 {
            law.first[depth]
        } else {
            law.later[depth]
        });
        let here = above * missed * rate;
        missed *= 1.0 - rate;
        if here >= least {
            found.push(here);
            prefixes(law, depth + 1, here, least, found);
        }
    }
}

/// Accepted nodes per step of the best tree of so many.
fn of_tree(law: &AcceptanceLaw, nodes: usize) -> f64 {
    let mut found = Vec::new();
    prefixes(law, 0, 1.0, 1e-4, &mut found);
    found.sort_by(|a, b| b.total_cmp(a));
    assert!(found.len() > nodes, "the least prefix is too likely");
    found[..nodes].iter().sum()
}

/// Accepted nodes per step of a chain.
fn of_chain(law: &AcceptanceLaw, drafts: usize) -> f64 {
    let product = |depth: usize| {
        law.first[..depth]
            .iter()
            .map(|&f| f64::from(f))
            .product::<f64>()
    };
    (1..=drafts).map(product).sum()
}

#[test]
fn predictions_are_those_of_the_law() {
    let mut runner = started();
    let law = falling();
    runner.simulate(Some(law)).expect("the law is uploaded");
    let shape = Shape::Tree(15);
    let steps: Vec<_> = (0..SEQUENCES).map(|slot| own(slot, shape)).collect();
    for sequence in runner.step(&steps).expect("the step runs").sequences {
        let prediction = sequence.prediction.expect("it drafts");
        let trees = PHI_BUDGETS.map(|nodes| of_tree(&law, nodes));
        let chains = PHI_LENGTHS.map(|drafts| of_chain(&law, drafts));
        let expected = trees.into_iter().chain(chains);
        let found = prediction.tree.into_iter().chain(prediction.chain);
        for (found, expected) in found.zip(expected) {
            assert!(
                (f64::from(found) - expected).abs() < 1e-4,
                "{found} for {expected}"
            );
        }
        assert_eq!(sequence.drafted, 15, "no padding");
    }
}

#[test]
fn chains_and_trees_are_accepted_as_often_as_the_law_says() {
    const STEPS: usize = 250;
    let mut runner = started();
    // A chain of 15 with this rate emits 4.94 tokens per step.
    let constant = AcceptanceLaw {
        first: [0.8; DEPTH_MAX],
        later: [0.2; DEPTH_MAX],
        seed: 9,
    };
    let cases = [
        (Shape::Chain(15), constant, of_chain(&constant, 15)),
        (Shape::Tree(15), constant, of_tree(&constant, 15)),
        (Shape::Tree(31), falling(), of_tree(&falling(), 31)),
        (Shape::Tree(63), constant, of_tree(&constant, 63)),
    ];
    assert!((cases[0].2 - 0.8 * (1.0 - 0.8f64.powi(15)) / 0.2).abs() < 1e-6);
    for (shape, law, expected) in cases {
        runner.simulate(Some(law)).expect("the law is uploaded");
        let steps: Vec<_> = (0..SEQUENCES).map(|slot| own(slot, shape)).collect();
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..STEPS {
            for slot in 0..SEQUENCES {
                runner.slots.length[slot] = 4;
            }
            for sequence in runner.step(&steps).expect("the step runs").sequences {
                let accepted = sequence.accepted as f64;
                assert_eq!(sequence.tokens.len(), sequence.accepted + 1);
                sum += accepted;
                squares += accepted * accepted;
            }
        }
        let count = (STEPS * SEQUENCES) as f64;
        let mean = sum / count;
        let error = ((squares / count - mean * mean) / count).sqrt();
        assert!(
            (mean - expected).abs() < 5.0 * error && error < 0.15,
            "{shape:?}: {mean} with a standard error of {error}, expected {expected}"
        );
    }
}

#[test]
fn a_law_without_a_second_chance_leaves_a_chain() {
    let mut runner = started();
    let law = AcceptanceLaw {
        first: [1.0; DEPTH_MAX],
        later: [0.25; DEPTH_MAX],
        seed: 0,
    };
    runner.simulate(Some(law)).expect("the law is uploaded");
    let shape = Shape::Tree(31);
    let output = runner.step(&[own(0, shape)]).expect("the step runs");
    let sequence = &output.sequences[0];
    assert_eq!((sequence.drafted, sequence.accepted), (15, 15));
}

#[test]
fn laws_know_what_no_drafter_would_say() {
    assert_eq!(falling().misranked_depth(), None);
    let mut law = falling();
    (law.first[6], law.later[6]) = (0.3, 0.5);
    assert_eq!(law.misranked_depth(), Some(6), "0.3 before 0.7 * 0.5");
    assert!((law.probability(6, 2) - 0.7 * 0.5 * 0.5).abs() < 1e-7);
}

/// Positions that were never prefilled hold finite keys and values, and a sequence goes on behind
/// them.
#[test]
fn a_filled_context_is_stepped_from() {
    let mut runner = started();
    runner.fill_pages(1).expect("the pages are filled");
    for layer in &runner.caches {
        let ops::Storage::F32(keys) = &layer.keys else {
            unreachable!("the CPU stores f32 here")
        };
        let square = keys.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let mean = square / keys.len() as f64;
        assert!((0.9..1.1).contains(&mean), "mean square {mean}");
    }
    runner.place(2, 5000).expect("the length is uploaded");
    let shape = Shape::Tree(15);
    for _ in 0..3 {
        let before = runner.slots.length[2] as usize;
        let step = runner.step(&[own(2, shape)]).expect("the step runs");
        let sequence = &step.sequences[0];
        assert_eq!(sequence.not_finite, None);
        assert_eq!(
            runner.slots.length[2] as usize,
            before + sequence.tokens.len()
        );
    }
    assert!(runner.slots.length[2] >= 5003);
    runner.place(2, 300).expect("the length is uploaded");
    assert_eq!(runner.slots.length[2], 300);
}

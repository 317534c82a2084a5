//! Every mode emits the same tokens.

use ops::{NONE, SamplingParams};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::MemoryPlan;

fn random_tokens(rng: &mut Pcg64Mcg, count: usize) -> Vec<u32> {
    (0..count)
        .map(|_| rng.random_range(0..VOCAB as u32 - 1))
        .collect()
}

/// Decodes `count` tokens of each prompt, all sequences in every step, with the given shapes.
fn decode(
    runner: &mut Runner<Cpu>,
    prompts: &[Vec<u32>],
    params: &SamplingParams,
    count: usize,
    shape: impl Fn(usize, usize) -> Shape,
) -> Vec<Vec<u32>> {
    decode_steps(runner, prompts, params, count, |slot, round| {
        own(slot, shape(slot, round))
    })
}

fn decode_steps(
    runner: &mut Runner<Cpu>,
    prompts: &[Vec<u32>],
    params: &SamplingParams,
    count: usize,
    step: impl Fn(usize, usize) -> SequenceStep,
) -> Vec<Vec<u32>> {
    let mut outputs = Vec::new();
    for (slot, prompt) in prompts.iter().enumerate() {
        start(runner, slot, prompt, params);
        let chunk = Chunk {
            slot,
            start: 0,
            tokens: prompt,
            last: true,
            prompt_logprobs: None,
        };
        let first = runner
            .prefill(&[chunk])
            .expect("the prefill runs")
            .remove(0)
            .first;
        outputs.push(vec![first.expect("the prompt ended").id]);
    }
    for round in 0.. {
        let sequences: Vec<SequenceStep> = (0..prompts.len())
            .filter(|slot| outputs[*slot].len() < count)
            .map(|slot| step(slot, round))
            .collect();
        if sequences.is_empty() {
            break;
        }
        let step = runner.step(&sequences).expect("the step runs");
        for sequence in step.sequences {
            assert!(
                !sequence.tokens.is_empty(),
                "a step emits at least one token"
            );
            // Accepted nodes and the target's own token; a cut leaves fewer.
            let emitted = sequence.tokens.len();
            match sequence.ended {
                None => assert_eq!(sequence.accepted + 1, emitted),
                Some(_) => assert!(sequence.accepted <= emitted),
            }
            outputs[sequence.slot].extend(sequence.tokens.iter().map(|token| token.id));
        }
    }
    for output in &mut outputs {
        output.truncate(count);
    }
    outputs
}

/// Plain, chains and trees of every size, mixed in one batch, give the same tokens.
#[test]
fn every_shape_emits_the_same_tokens() {
    let mut rng = Pcg64Mcg::seed_from_u64(11);
    let mut runner = runner(config());
    let penalised = SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        top_k: 40,
        min_p: 0.01,
        repetition_penalty: 1.1,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        logit_bias: vec![(3, 2.0), (9, f32::NEG_INFINITY)],
        seed: 1 << 40 | 5,
        choice: 1,
    };
    for params in [SamplingParams::default(), penalised] {
        let prompts: Vec<Vec<u32>> = [5, 64, 117]
            .iter()
            .map(|len| random_tokens(&mut rng, *len))
            .collect();
        let plain = decode(&mut runner, &prompts, &params, 48, |_, _| Shape::Plain);
        for shape in [
            Shape::Chain(7),
            Shape::Tree(1),
            Shape::Tree(15),
            Shape::Tree(63),
        ] {
            let other = decode(&mut runner, &prompts, &params, 48, |_, _| shape);
            assert_eq!(plain, other, "{shape:?}");
        }
        let mixed = decode(&mut runner, &prompts, &params, 48, |slot, round| {
            [
                Shape::Plain,
                Shape::Tree(31),
                Shape::Chain(3),
                Shape::Tree(7),
            ][(slot + round) % 4]
        });
        assert_eq!(plain, mixed, "mixed shapes");
        let alone = decode(&mut runner, &prompts[..1], &params, 48, |_, _| {
            Shape::Tree(15)
        });
        assert_eq!(plain[0], alone[0], "alone");
        for shape in [Shape::Chain(3), Shape::Tree(1), Shape::Tree(15)] {
            let shared = |slot, _| sharing(slot, shape);
            let shared = decode_steps(&mut runner, &prompts, &params, 48, shared);
            assert_eq!(plain, shared, "{shape:?}, shared");
        }
        let mixed = decode_steps(&mut runner, &prompts, &params, 48, |slot, round| {
            match (slot + round) % 5 {
                0 => own(slot, Shape::Plain),
                1 => own(slot, Shape::Tree(7)),
                2 => sharing(slot, Shape::Tree(20)),
                3 => sharing(slot, Shape::Tree(0)),
                _ => sharing(slot, Shape::Chain(5)),
            }
        });
        assert_eq!(plain, mixed, "some share");
    }
}

/// bf16 weights and cache are another model, but its modes agree with each other as well.
#[test]
fn every_shape_emits_the_same_tokens_in_bf16() {
    let mut rng = Pcg64Mcg::seed_from_u64(13);
    let mut runner = runner(RunnerConfig {
        weight_dtype: Dtype::Bf16,
        kv_dtype: Dtype::Bf16,
        ..config()
    });
    let prompts = vec![random_tokens(&mut rng, 30)];
    let params = SamplingParams {
        temperature: 0.7,
        seed: 3,
        ..SamplingParams::default()
    };
    let plain = decode(&mut runner, &prompts, &params, 40, |_, _| Shape::Plain);
    let tree = decode(&mut runner, &prompts, &params, 40, |_, _| Shape::Tree(31));
    assert_eq!(plain, tree);
}

/// The plan that is printed is what is allocated, to the byte.
#[test]
fn plan_equals_allocation() {
    for (drafter, format, snapshots) in [
        (true, LoadFormat::Safetensors, 0),
        (false, LoadFormat::Safetensors, 5),
        (true, LoadFormat::Dummy { seed: 0 }, 1),
    ] {
        let progress = LoadProgress::default();
        let backend = Cpu::default();
        let runner = Runner::load(
            backend.clone(),
            &ModelSources {
                format,
                ..sources(drafter)
            },
            RunnerConfig {
                weight_dtype: Dtype::Bf16,
                snapshots,
                host_snapshots: 3 * snapshots,
                ..config()
            },
            &progress,
        )
        .expect("fixtures load");
        let lines = &runner.plan().lines;
        let kept = lines.iter().any(|line| line.part == "state snapshots");
        assert_eq!(kept, snapshots > 0);
        let total = |snapshots| {
            let config = RunnerConfig {
                snapshots,
                ..runner.config().clone()
            };
            let sizes = (runner.target_config(), runner.drafter_config());
            MemoryPlan::of(&backend, sizes.0, sizes.1, &config).total_bytes()
        };
        let one = total(8) - total(7);
        assert_eq!(runner.plan().host_bytes, 3 * snapshots as u64 * one);
        assert_eq!(
            runner.plan().total_bytes(),
            ops::Backend::allocated_bytes(&backend),
            "drafter: {drafter}, {format:?}; {:#?}",
            runner.plan()
        );
    }
}

/// What a checkpoint carries beside a tied table is read by nobody and takes no memory.
#[test]
fn a_tied_head_is_the_table_whatever_the_file_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let CheckpointSource::Folder(fixture) = fixture("qwen3_5") else {
        unreachable!()
    };
    let text = std::fs::read_to_string(fixture.join("config.json")).expect("committed");
    let mut fields: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    fields["tie_word_embeddings"] = true.into();
    std::fs::write(folder.path().join("config.json"), fields.to_string()).expect("written");
    let weights = "model.safetensors";
    std::fs::copy(fixture.join(weights), folder.path().join(weights)).expect("copied");
    let tied = CheckpointSource::Folder(folder.path().to_owned());
    for (target, is_tied) in [(tied, true), (CheckpointSource::Folder(fixture), false)] {
        let (backend, progress) = (Cpu::default(), LoadProgress::default());
        let sources = ModelSources {
            target,
            ..sources(true)
        };
        let runner = Runner::load(backend.clone(), &sources, config(), &progress).expect("loads");
        assert_eq!(runner.target.weights.head.is_none(), is_tied);
        assert_eq!(
            runner.plan().total_bytes(),
            ops::Backend::allocated_bytes(&backend),
            "tied: {is_tied}"
        );
        let count =
            |bytes: &std::sync::atomic::AtomicU64| bytes.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(count(&progress.done), count(&progress.total));
    }
}

/// Nothing beyond the tree's budget is verified, and padding is not counted as a draft.
#[test]
fn drafted_counts_nodes() {
    let mut rng = Pcg64Mcg::seed_from_u64(17);
    let mut runner = runner(config());
    let prompt = random_tokens(&mut rng, 20);
    start(&mut runner, 0, &prompt, &SamplingParams::default());
    prefill_pieces(&mut runner, 0, &prompt, &[], true);
    runner.slots.sampling[0].tokens_max = runner.slots.emitted[0] + 2;
    let step = runner
        .step(&[own(0, Shape::Tree(31))])
        .expect("the step runs");
    // Two tokens may still come: one depth of candidates, `topk` of them.
    assert_eq!(step.sequences[0].drafted, config().topk);
    assert_ne!(runner.slots.root[0], NONE);
}

/// The head runs over slices of at most 256 rows; where they or the chunks end does not show.
#[test]
fn prompt_logprobs_do_not_depend_on_slices_and_chunks() {
    let mut rng = Pcg64Mcg::seed_from_u64(19);
    let prompt = random_tokens(&mut rng, 391);
    let with_chunks = |chunk: usize| {
        let mut runner = runner(RunnerConfig {
            prefill_rows_max: chunk,
            ..config()
        });
        start(&mut runner, 0, &prompt, &SamplingParams::default());
        let mut all = Vec::new();
        for from in (0..prompt.len()).step_by(chunk) {
            let to = (from + chunk).min(prompt.len());
            let next = prompt.get(to).copied();
            let outputs = runner.prefill(&[Chunk {
                slot: 0,
                start: from,
                tokens: &prompt[from..to],
                last: next.is_none(),
                prompt_logprobs: Some(PromptLogprobs { top: 4, next }),
            }]);
            all.extend(outputs.expect("the chunk runs").remove(0).prompt_logprobs);
        }
        all
    };
    let whole = with_chunks(512);
    assert_eq!(whole.len(), prompt.len() - 1);
    assert!(whole.len() > crate::workspace::LOGITS_SLICE_ROWS);
    for chunk in [64, 128, 256] {
        assert!(whole == with_chunks(chunk), "chunks of {chunk} tokens");
    }
}

//! Bit-equality: a row's logits depend on its own tokens only, and every mode emits the same
//! tokens.

use ops::{NONE, SamplingParams, TreeTablesFrom};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::staging::Staging;
use super::*;

fn random_tokens(rng: &mut Pcg64Mcg, count: usize) -> Vec<u32> {
    (0..count)
        .map(|_| rng.random_range(0..VOCAB as u32 - 1))
        .collect()
}

/// Verifies given trees in one forward; returns the logits of all rows.
fn verify_trees(runner: &mut Runner<Cpu>, trees: &[(usize, Vec<u32>, Vec<i32>)]) -> Vec<f32> {
    let mut staging = Staging::default();
    for (slot, tokens, _) in trees {
        staging.tree(*slot, tokens.len());
    }
    let rows = staging.row_count();
    let shapes = trees.iter().map(|tree| Shape::Tree(tree.1.len() - 1));
    let key = StepKey::of(shapes, runner.config.sequences_max);
    let backend = runner.backend.clone();
    let forward = &mut runner.verify;
    staging
        .upload(&*backend, &mut forward.batch, &mut forward.held)
        .expect("tables fit");
    let batch = &mut forward.batch;
    let mut row = 0;
    for (_, tokens, parents) in trees {
        for (node, (&token, &parent)) in tokens.iter().zip(parents).enumerate() {
            batch.token[row + node] = token;
            batch.parent[row + node] = parent;
            batch.depth[row + node] = if parent < 0 {
                0
            } else {
                batch.depth[row + parent as usize] + 1
            };
        }
        row += tokens.len();
    }
    runner.results.padding.fill(0);
    ops::Backend::tree_tables(
        &*backend,
        TreeTablesFrom {
            batch: &runner.verify.batch,
            padding: Some(&runner.results.padding),
            tables: &mut runner.verify.tree,
        },
    )
    .expect("tables are derived");
    runner.verify(key).expect("the forward runs");
    runner.workspace.logits[..rows * VOCAB].to_vec()
}

fn random_tree(rng: &mut Pcg64Mcg, rows: usize) -> (Vec<u32>, Vec<i32>) {
    let mut depth = vec![0];
    let mut parents = vec![-1];
    while parents.len() < rows {
        let parent = rng.random_range(0..parents.len());
        if depth[parent] < ops::DEPTH_MAX {
            depth.push(depth[parent] + 1);
            parents.push(parent as i32);
        }
    }
    (random_tokens(rng, rows), parents)
}

fn path(parents: &[i32], node: usize) -> Vec<usize> {
    let mut path = vec![node];
    while parents[path[path.len() - 1]] >= 0 {
        path.push(parents[path[path.len() - 1]] as usize);
    }
    path.reverse();
    path
}

/// Every node of unequal trees in one batch has the bits of its own path run one row at a time.
#[test]
fn tree_rows_equal_their_paths_run_alone() {
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    let mut runner = runner(config());
    for (prompt_len, rows) in [(1, [1, 2, 64]), (63, [16, 7, 33]), (130, [64, 64, 5])] {
        let prompts: Vec<Vec<u32>> = (0..3)
            .map(|slot| random_tokens(&mut rng, prompt_len + slot))
            .collect();
        let prefill = |runner: &mut Runner<Cpu>| {
            for (slot, prompt) in prompts.iter().enumerate() {
                start(runner, slot, prompt, &SamplingParams::default());
                prefill_pieces(runner, slot, prompt, &[], true);
            }
        };
        let trees: Vec<_> = rows
            .into_iter()
            .enumerate()
            .map(|(slot, rows)| {
                let (tokens, parents) = random_tree(&mut rng, rows);
                (slot, tokens, parents)
            })
            .collect();
        prefill(&mut runner);
        let together = verify_trees(&mut runner, &trees);
        let mut row = 0;
        for (slot, tokens, parents) in &trees {
            for node in 0..tokens.len() {
                // A few leaves per tree keep the test short; every depth occurs among them.
                if node % 5 != 0 && node + 1 != tokens.len() {
                    continue;
                }
                start(
                    &mut runner,
                    *slot,
                    &prompts[*slot],
                    &SamplingParams::default(),
                );
                prefill_pieces(&mut runner, *slot, &prompts[*slot], &[], true);
                let mut logits = Vec::new();
                for step in path(parents, node) {
                    logits = step_token(&mut runner, *slot, tokens[step]);
                }
                let own = &together[(row + node) * VOCAB..(row + node + 1) * VOCAB];
                assert_eq!(
                    bits(own),
                    bits(&logits),
                    "slot {slot}, node {node} of {}",
                    tokens.len()
                );
            }
            row += tokens.len();
        }
    }
}

/// Decodes `count` tokens of each prompt, all sequences in every step, with the given shapes.
fn decode(
    runner: &mut Runner<Cpu>,
    prompts: &[Vec<u32>],
    params: &SamplingParams,
    count: usize,
    shape: impl Fn(usize, usize) -> Shape,
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
            .map(|slot| SequenceStep {
                slot,
                shape: shape(slot, round),
            })
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
    for (drafter, format) in [
        (true, LoadFormat::Safetensors),
        (false, LoadFormat::Safetensors),
        (true, LoadFormat::Dummy { seed: 0 }),
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
                ..config()
            },
            &progress,
        )
        .expect("fixtures load");
        assert_eq!(
            runner.plan().total_bytes(),
            ops::Backend::allocated_bytes(&backend),
            "drafter: {drafter}, {format:?}; {:#?}",
            runner.plan()
        );
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
        .step(&[SequenceStep {
            slot: 0,
            shape: Shape::Tree(31),
        }])
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

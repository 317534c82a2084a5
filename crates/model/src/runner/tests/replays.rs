//! A sequence that lost its slot goes on as one that never did.
//! `SPINNEY_TEST_DEVICE=cuda` runs the bundled pair on the first GPU.

use super::super::{Replay, Resume};
use super::constrained::Law;
use super::jobs::{
    Beginning, Job, Output, Running, SHAPES, config_with_snapshots, samplings, step, tokens,
};
use super::rows::{bundled, gpu};
use super::*;

/// Replays what each of them had emitted in pieces of these sizes, together as long as there are
/// several.
fn replay_all<B: Backend>(runner: &mut Runner<B>, parts: &[(usize, &[u32])], sizes: &[usize]) {
    let mut left = parts.to_vec();
    for round in 0.. {
        left.retain(|(_, tokens)| !tokens.is_empty());
        if left.is_empty() {
            return;
        }
        let most = runner.config.replay_rows_max();
        let replays: Vec<Replay<'_>> = left
            .iter()
            .enumerate()
            .map(|(index, &(slot, tokens))| {
                let size = sizes[(round + index) % sizes.len()].min(most);
                let tokens = &tokens[..tokens.len().min(size)];
                Replay { slot, tokens }
            })
            .collect();
        runner.replay(&replays).expect("replayed");
        for (left, replay) in left.iter_mut().zip(&replays) {
            left.1 = &left.1[replay.tokens.len()..];
        }
    }
}

/// Two sequences that had emitted `cuts[s]` of the tokens of `whole`, brought back at once.
fn bring_back<B: Backend>(
    runner: &mut Runner<B>,
    (job, whole): (&Job, &Output),
    cuts: [usize; 2],
    resume: Option<Resume>,
    sizes: &[usize],
) {
    let (ids, prompt) = (whole.ids(), job.prompt.len());
    let mut both: Vec<Running> = (1..)
        .zip(cuts)
        .map(|(slot, cut)| {
            let beginning = Beginning {
                resume: resume.filter(|resume| resume.length < prompt + cut),
                emitted: ids[..cut].to_vec(),
                ..Beginning::default()
            };
            let mut running = Running::start(runner, slot, job, &beginning);
            running.prefill(runner, job, 128, &mut |_, _| {});
            running
        })
        .collect();
    let parts: Vec<(usize, &[u32])> = (1..)
        .zip(cuts)
        .map(|(slot, cut)| {
            let resumed = resume.filter(|resume| resume.length < prompt + cut);
            let from = resumed.map_or(0, |resume| resume.length.saturating_sub(prompt));
            (slot, &ids[from..cut - 1])
        })
        .collect();
    replay_all(runner, &parts, sizes);
    let (first, second) = both.split_at_mut(1);
    for _ in 0..4 {
        step(runner, &mut [(&mut first[0], job), (&mut second[0], job)]);
    }
    first[0].assert_continues(whole);
    second[0].assert_continues(whole);
}

/// A job that runs in slot 0 and keeps the states that it passes.
fn decode_and_save<B: Backend>(runner: &mut Runner<B>, job: &Job, count: usize) -> Output {
    let mut running = Running::start(runner, 0, job, &Beginning::default());
    running.prefill(runner, job, 64, &mut |runner, length| {
        if length.is_multiple_of(64) {
            runner.save_snapshot(0, length / 64 - 1).expect("saved");
        }
    });
    while running.output.tokens.len() < count {
        step(runner, &mut [(&mut running, job)]);
        let length = job.prompt.len() + running.output.tokens.len() - 1;
        if job.shape == Shape::Plain && length.is_multiple_of(64) {
            runner.save_snapshot(0, length / 64 - 1).expect("saved");
        }
    }
    running.output
}

/// Sizes of the pieces: whole, one by one, and anything between.
const SIZES: [&[usize]; 3] = [&[16], &[1], &[5, 16, 1, 9, 2]];

/// Every cut of an output, from the prompt on and from every state that was kept.
fn bring_back_everywhere<B: Backend>(
    runner: &mut Runner<B>,
    job: &Job,
    count: usize,
    every: usize,
) {
    let whole = decode_and_save(runner, job, count + 4 * job.shape.rows().min(16));
    let kept = match job.shape {
        Shape::Plain => job.prompt.len() + count,
        _ => job.prompt.len(),
    };
    let mut resumes = vec![None];
    resumes.extend((64..=kept).step_by(64).map(|length| {
        Some(Resume {
            snapshot: length / 64 - 1,
            length,
        })
    }));
    // The two cuts of a round are as far from the ends.
    for (index, cut) in (1..=count.div_ceil(2)).step_by(every).enumerate() {
        let sizes = SIZES[index % SIZES.len()];
        let resume = resumes[index % resumes.len()];
        bring_back(runner, (job, &whole), [cut, count + 1 - cut], resume, sizes);
    }
}

fn job(params: &SamplingParams, shape: Shape, prompt: usize, vocab: usize) -> Job {
    Job {
        prompt: tokens(prompt as u64, prompt, vocab),
        params: params.clone(),
        shape,
        law: None,
    }
}

#[test]
fn brought_back_at_every_cut() {
    let mut runner = runner(config_with_snapshots());
    for params in samplings() {
        for shape in SHAPES {
            bring_back_everywhere(&mut runner, &job(&params, shape, 100, VOCAB), 44, 1);
        }
    }
}

/// All of the prompt is resumed, and what plain steps kept of the output, too.
#[test]
fn resumed_at_the_end_of_the_prompt_and_behind_it() {
    let mut runner = runner(config_with_snapshots());
    for params in samplings() {
        for shape in SHAPES {
            bring_back_everywhere(&mut runner, &job(&params, shape, 128, VOCAB), 80, 3);
        }
    }
}

#[test]
fn constrained_sequences_are_brought_back() {
    let mut runner = runner(config_with_snapshots());
    for params in samplings() {
        for (law, shape) in [Law::Position(24), Law::Follow(7), Law::Position(5)]
            .into_iter()
            .zip(SHAPES)
        {
            let job = Job {
                law: Some(law),
                ..job(&params, shape, 70, VOCAB)
            };
            bring_back_everywhere(&mut runner, &job, 24, 1);
        }
    }
}

#[test]
fn the_bundled_pair_is_brought_back() {
    fn all<B: Backend>(runner: &mut Runner<B>, prompt: usize, count: usize, every: usize) {
        for params in samplings() {
            for shape in SHAPES {
                let job = job(&params, shape, prompt, 2_000);
                bring_back_everywhere(runner, &job, count, every);
            }
        }
    }
    match gpu() {
        Some(gpu) => all(&mut bundled(gpu, 5), 150, 100, 1),
        None => all(&mut bundled(Cpu::default(), 3), 70, 40, 6),
    }
}

/// Without drafts a verify has a row per sequence, and so has a replay.
#[test]
fn a_small_runner_replays_in_small_pieces() {
    let mut config = RunnerConfig {
        tree_rows_max: 1,
        step_rows_max: config_with_snapshots().sequences_max,
        ..config_with_snapshots()
    };
    config.kv_pages = config.pages_per_sequence() * config.sequences_max;
    assert_eq!((config.verify_rows_max(), config.replay_rows_max()), (4, 4));
    let progress = LoadProgress::default();
    let mut runner =
        Runner::load(Cpu::default(), &sources(false), config, &progress).expect("fixtures load");
    let job = job(&samplings()[1], Shape::Plain, 70, VOCAB);
    let whole = job.decode(&mut runner, 40);
    bring_back(&mut runner, (&job, &whole), [20, 31], None, &[2]);
    bring_back(&mut runner, (&job, &whole), [1, 9], None, &[1, 2]);
}

#[test]
#[should_panic(expected = "a step follows the replay of all emitted tokens")]
fn no_step_before_the_replay() {
    let mut runner = runner(config_with_snapshots());
    let job = job(&samplings()[0], Shape::Plain, 70, VOCAB);
    let beginning = Beginning {
        emitted: vec![1, 2, 3],
        ..Beginning::default()
    };
    let mut running = Running::start(&mut runner, 0, &job, &beginning);
    running.prefill(&mut runner, &job, 128, &mut |_, _| {});
    runner
        .replay(&[Replay {
            slot: 0,
            tokens: &[1],
        }])
        .expect("replayed");
    step(&mut runner, &mut [(&mut running, &job)]);
}

#[test]
#[should_panic(expected = "which may replay 2, 16 at once")]
fn no_replay_of_the_newest_token() {
    let mut runner = runner(config_with_snapshots());
    let job = job(&samplings()[0], Shape::Plain, 70, VOCAB);
    let beginning = Beginning {
        emitted: vec![1, 2, 3],
        ..Beginning::default()
    };
    let mut running = Running::start(&mut runner, 0, &job, &beginning);
    running.prefill(&mut runner, &job, 128, &mut |_, _| {});
    let tokens = &[1, 2, 3];
    runner
        .replay(&[Replay { slot: 0, tokens }])
        .expect("replayed");
}

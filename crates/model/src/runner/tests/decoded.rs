//! States that decoding passes within a step have the bits of those that plain steps leave.
//! `SPINNEY_TEST_DEVICE=cuda` runs the bundled pair on the first GPU.

use super::super::{Replay, Resume};
use super::jobs::{
    Beginning, Job, Output, Running, SHAPES, config_with_snapshots, samplings, step, tokens,
};
use super::rows::{bundled, gpu};
use super::*;

/// Everything in a snapshot's place: state and history of every layer, as they lie there.
fn contents<B: Backend>(runner: &Runner<B>, place: usize) -> (Vec<u32>, Vec<u8>) {
    let (mut states, mut history) = (Vec::new(), Vec::new());
    for layer in &runner.snapshots.device {
        let mut state = vec![0.0; layer.shape.state_len()];
        let mut conv = vec![bytemuck::Zeroable::zeroed(); 3 * layer.shape.channels()];
        let backend = &runner.backend;
        backend
            .download(&layer.state, place * state.len(), &mut state)
            .expect("it is there");
        backend
            .download(&layer.conv, place * conv.len(), &mut conv)
            .expect("it is there");
        states.extend(bits(&state));
        history.extend_from_slice(bytemuck::cast_slice::<B::Act, u8>(&conv));
    }
    (states, history)
}

/// Decodes in one-row steps; the states at 128 and 192 tokens go to places 0 and 1.
fn plainly<B: Backend>(runner: &mut Runner<B>, job: &Job, count: usize) -> Output {
    let plain = Job {
        shape: Shape::Plain,
        ..job.clone()
    };
    let mut running = Running::start(runner, 0, &plain, &Beginning::default());
    running.prefill(runner, &plain, 128, &mut |_, _| {});
    while running.output.tokens.len() < count {
        step(runner, &mut [(&mut running, &plain)]);
        let length = plain.prompt.len() + running.output.tokens.len() - 1;
        if length == 128 || length == 192 {
            runner.save_snapshot(0, length / 64 - 2).expect("saved");
        }
    }
    running.output
}

/// Keeps what steps of the job's shape pass in place 2, beside another sequence; returns how often
/// that was in the midst of what was accepted.
fn kept_by_steps<B: Backend>(runner: &mut Runner<B>, job: &Job, whole: &Output) -> usize {
    let ids = whole.ids();
    let mut beside = Running::start(runner, 2, job, &Beginning::default());
    beside.prefill(runner, job, 128, &mut |_, _| {});
    let mut running = Running::start(runner, 1, job, &Beginning::default());
    running.prefill(runner, job, 128, &mut |_, _| {});
    let mut inside = 0;
    for boundary in [128, 192] {
        loop {
            runner.begin_decoded(1, 2).expect("begun");
            step(runner, &mut [(&mut beside, job), (&mut running, job)]);
            let length = job.prompt.len() + running.output.tokens.len() - 1;
            if length >= boundary {
                inside += usize::from(length > boundary);
                break;
            }
        }
        runner.save_decoded(1, boundary, 2).expect("saved");
        assert_eq!(contents(runner, 2), contents(runner, boundary / 64 - 2));
        let had = boundary - job.prompt.len() + 5;
        let beginning = Beginning {
            resume: Some(Resume {
                snapshot: 2,
                length: boundary,
            }),
            emitted: ids[..had].to_vec(),
            pages_of: 1,
            ..Beginning::default()
        };
        let mut resumed = Running::start(runner, 0, job, &beginning);
        let left = &ids[boundary - job.prompt.len()..had - 1];
        for tokens in left.chunks(runner.config.replay_rows_max()) {
            runner
                .replay(&[Replay { slot: 0, tokens }])
                .expect("replayed");
        }
        for _ in 0..3 {
            step(runner, &mut [(&mut resumed, job), (&mut running, job)]);
        }
        resumed.assert_continues(whole);
        running.assert_continues(whole);
    }
    inside
}

/// Keeps what replays pass, 1 to 16 rows behind their beginning, in place 2.
fn kept_by_replays<B: Backend>(runner: &mut Runner<B>, job: &Job, whole: &Output, every: usize) {
    let ids = whole.ids();
    let to_boundary = 128 - job.prompt.len();
    for rows in (1..=16).step_by(every) {
        let first = to_boundary - rows;
        let beginning = Beginning {
            emitted: ids[..to_boundary + 20].to_vec(),
            ..Beginning::default()
        };
        let mut running = Running::start(runner, 1, job, &beginning);
        running.prefill(runner, job, 128, &mut |_, _| {});
        for tokens in ids[..first].chunks(7) {
            runner
                .replay(&[Replay { slot: 1, tokens }])
                .expect("replayed");
        }
        runner.begin_decoded(1, 2).expect("begun");
        let end = first + 16.min(rows + rows % 3);
        let tokens = &ids[first..end];
        runner
            .replay(&[Replay { slot: 1, tokens }])
            .expect("replayed");
        runner.save_decoded(1, 128, 2).expect("saved");
        assert!(
            contents(runner, 2) == contents(runner, 0),
            "{rows} rows behind the beginning of {} rows",
            tokens.len()
        );
        for tokens in ids[end..to_boundary + 19].chunks(16) {
            runner
                .replay(&[Replay { slot: 1, tokens }])
                .expect("replayed");
        }
        step(runner, &mut [(&mut running, job)]);
        running.assert_continues(whole);
    }
}

/// `every`: how many of the lengths of replays are tried.
fn all<B: Backend>(runner: &mut Runner<B>, vocab: usize, every: usize) -> usize {
    let mut inside = 0;
    for params in samplings() {
        for shape in SHAPES {
            let job = Job {
                prompt: tokens(5, 100, vocab),
                params: params.clone(),
                shape,
                law: None,
            };
            let whole = plainly(runner, &job, 150);
            // The plain run's steps are other steps: only its tokens are expected.
            let whole = Output {
                steps: Vec::new(),
                ..whole
            };
            inside += kept_by_steps(runner, &job, &whole);
            kept_by_replays(runner, &job, &whole, every);
        }
    }
    inside
}

#[test]
fn states_that_decoding_passes() {
    all(&mut runner(config_with_snapshots()), VOCAB, 1);
}

#[test]
fn states_that_the_bundled_pair_passes() {
    let inside = match gpu() {
        Some(gpu) => all(&mut bundled(gpu, 3), 2_000, 1),
        None => all(&mut bundled(Cpu::default(), 3), 2_000, 15),
    };
    assert!(inside > 0, "no step passed a multiple of 64 by a draft");
}

/// A chain that passes 128, kept too late.
fn late(between: impl FnOnce(&mut Runner<Cpu>, &Job)) {
    let mut runner = runner(config_with_snapshots());
    let job = Job {
        prompt: tokens(5, 127, VOCAB),
        params: SamplingParams::default(),
        shape: Shape::Plain,
        law: None,
    };
    let mut running = Running::start(&mut runner, 1, &job, &Beginning::default());
    running.prefill(&mut runner, &job, 128, &mut |_, _| {});
    runner.begin_decoded(1, 2).expect("begun");
    step(&mut runner, &mut [(&mut running, &job)]);
    between(&mut runner, &job);
    runner.save_decoded(1, 128, 2).expect("saved");
}

#[test]
#[should_panic(expected = "right behind the forward that passed it")]
fn another_step_came_between() {
    late(|runner, _| {
        let shape = Shape::Plain;
        runner
            .step(&[SequenceStep {
                slot: 1,
                shape,
                rows_max: None,
            }])
            .expect("stepped");
    });
}

#[test]
#[should_panic(expected = "snapshot 2 was not begun for slot 1")]
fn the_place_was_used_otherwise() {
    late(|runner, job| {
        let mut other = Running::start(runner, 0, job, &Beginning::default());
        other.prefill(runner, job, 64, &mut |runner, length| {
            if length == 64 {
                runner.save_snapshot(0, 2).expect("saved");
            }
        });
    });
}

#[test]
#[should_panic(expected = "192 is no multiple of 64 in 128..=128")]
fn nothing_was_passed() {
    let mut runner = runner(config_with_snapshots());
    let job = Job {
        prompt: tokens(5, 127, VOCAB),
        params: SamplingParams::default(),
        shape: Shape::Plain,
        law: None,
    };
    let mut running = Running::start(&mut runner, 1, &job, &Beginning::default());
    running.prefill(&mut runner, &job, 128, &mut |_, _| {});
    runner.begin_decoded(1, 2).expect("begun");
    step(&mut runner, &mut [(&mut running, &job)]);
    runner.save_decoded(1, 192, 2).expect("saved");
}

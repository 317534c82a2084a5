//! A sequence that resumes at a snapshot goes on as one that computed everything itself.
//! `SPINNEY_TEST_DEVICE=cuda` runs the bundled pair on the first GPU.

use super::super::Resume;
use super::jobs::{
    Beginning, Job, Output, Running, SHAPES, config_with_snapshots, samplings, step, tokens,
};
use super::rows::{bundled, gpu};
use super::*;

const STEPS: usize = 6;

/// Prefills in pieces of 64 and keeps the state behind each, in places 0, 1, ...
fn prefill_and_save<B: Backend>(runner: &mut Runner<B>, job: &Job) -> Running {
    let mut running = Running::start(runner, 0, job, &Beginning::default());
    let slot = running.slot;
    running.prefill(runner, job, 64, &mut |runner, length| {
        if length.is_multiple_of(64) {
            runner.save_snapshot(slot, length / 64 - 1).expect("saved");
        }
    });
    running
}

fn resumed(length: usize) -> Beginning {
    Beginning {
        resume: Some(Resume {
            snapshot: length / 64 - 1,
            length,
        }),
        ..Beginning::default()
    }
}

/// A sequence that keeps its states, one that resumes, and one that shares the pages as well but
/// ends its prompt otherwise, all in one batch, for every length that the first one kept.
fn resume_everywhere<B: Backend>(runner: &mut Runner<B>, job: &Job, vocab: usize) {
    let whole = job.decode(runner, 1 + STEPS * job.shape.rows().min(16));
    for length in (64..job.prompt.len()).step_by(64) {
        let mut other = job.clone();
        other.prompt.truncate(length);
        other
            .prompt
            .extend(tokens(length as u64, 1 + length % 50, vocab));
        let other_whole = other.decode(runner, 1 + STEPS * job.shape.rows().min(16));

        let mut first = prefill_and_save(runner, job);
        let mut second = Running::start(runner, 1, job, &resumed(length));
        second.prefill(runner, job, 128, &mut |_, _| {});
        let mut third = Running::start(runner, 2, &other, &resumed(length));
        third.prefill(runner, &other, 64, &mut |_, _| {});
        for round in 0..STEPS {
            match round % 2 {
                0 => step(
                    runner,
                    &mut [(&mut first, job), (&mut second, job), (&mut third, &other)],
                ),
                _ => {
                    step(runner, &mut [(&mut third, &other)]);
                    step(runner, &mut [(&mut second, job), (&mut first, job)]);
                }
            }
        }
        first.assert_continues(&whole);
        second.assert_continues(&whole);
        third.assert_continues(&other_whole);
    }
}

#[test]
fn resumed_at_every_multiple_of_64() {
    let mut runner = runner(config_with_snapshots());
    for (seed, params) in samplings().into_iter().enumerate() {
        for shape in SHAPES {
            // One of them ends at a multiple of 64 and keeps the state behind its last token.
            let length = [270, 256][seed];
            let job = Job {
                prompt: tokens(seed as u64, length, VOCAB),
                params: params.clone(),
                shape,
                law: None,
            };
            resume_everywhere(&mut runner, &job, VOCAB);
        }
    }
}

#[test]
fn the_bundled_pair_resumes() {
    fn all<B: Backend>(runner: &mut Runner<B>, length: usize) {
        for params in samplings() {
            for shape in SHAPES {
                let job = Job {
                    prompt: tokens(3, length, 2_000),
                    params: params.clone(),
                    shape,
                    law: None,
                };
                resume_everywhere(runner, &job, 2_000);
            }
        }
    }
    match gpu() {
        Some(gpu) => all(&mut bundled(gpu, 5), 300),
        None => all(&mut bundled(Cpu::default(), 2), 140),
    }
}

fn job() -> Job {
    Job {
        prompt: tokens(11, 200, VOCAB),
        params: SamplingParams::default(),
        shape: Shape::Tree(15),
        law: None,
    }
}

fn goes_on<B: Backend>(runner: &mut Runner<B>, job: &Job, place: usize, length: usize) -> Output {
    let beginning = Beginning {
        resume: Some(Resume {
            snapshot: place,
            length,
        }),
        ..Beginning::default()
    };
    let mut running = Running::start(runner, 1, job, &beginning);
    running.prefill(runner, job, 64, &mut |_, _| {});
    for _ in 0..5 {
        step(runner, &mut [(&mut running, job)]);
    }
    running.output
}

/// Through host memory and back into another place, whatever the first place holds by then.
fn through_the_host<B: Backend>(runner: &mut Runner<B>) {
    let job = job();
    let whole = job.decode(runner, 60);
    let mut running = Running::start(runner, 0, &job, &Beginning::default());
    running.prefill(runner, &job, 64, &mut |runner, length| match length {
        64 => {
            runner.save_snapshot(0, 4).expect("saved");
            runner.offload_snapshot(4, 1).expect("copied");
        }
        128 => {
            runner.save_snapshot(0, 4).expect("saved");
            runner.offload_snapshot(4, 0).expect("copied");
        }
        192 => runner.save_snapshot(0, 4).expect("saved"),
        _ => {}
    });
    runner.fetch_snapshot(0, 2).expect("copied");
    runner.fetch_snapshot(1, 0).expect("copied");
    for (place, length) in [(4, 192), (2, 128), (0, 64)] {
        let output = goes_on(runner, &job, place, length);
        let count = output.tokens.len();
        assert_eq!(output.tokens, whole.tokens[..count], "from {length} on");
        assert_eq!(output.steps, whole.steps[..5]);
    }
    // Back over what was there.
    runner.fetch_snapshot(0, 4).expect("copied");
    let output = goes_on(runner, &job, 4, 128);
    assert_eq!(output.steps, whole.steps[..5]);
}

#[test]
fn through_host_memory_and_back() {
    through_the_host(&mut runner(config_with_snapshots()));
    if let Some(gpu) = gpu() {
        through_the_host(&mut bundled(gpu, 5));
    }
}

/// A page is given right before the first row is written to it.
#[test]
fn pages_come_one_by_one() {
    let mut runner = runner(config_with_snapshots());
    for shape in SHAPES {
        let job = Job { shape, ..job() };
        let whole = job.decode(&mut runner, 150);
        let pages = super::jobs::pages_of(&runner.config, 2);
        let beginning = Beginning {
            pages: Some(1),
            ..Beginning::default()
        };
        let mut running = Running::start(&mut runner, 2, &job, &beginning);
        let mut held = 1;
        running.prefill(&mut runner, &job, 64, &mut |runner, length| {
            assert_eq!(held, length.div_ceil(64));
            runner
                .extend_pages(2, held, &pages[held..=held])
                .expect("given");
            held += 1;
        });
        while running.output.tokens.len() < 150 {
            let rows = job.prompt.len() + running.output.tokens.len() - 1 + shape.rows();
            let needed = rows.div_ceil(64);
            if needed > held {
                runner
                    .extend_pages(2, held, &pages[held..needed])
                    .expect("given");
                held = needed;
            }
            step(&mut runner, &mut [(&mut running, &job)]);
        }
        running.assert_continues(&whole);
    }
}

#[test]
#[should_panic(expected = "resumed at the length that it covers")]
fn another_length_is_refused() {
    let mut runner = runner(config_with_snapshots());
    prefill_and_save(&mut runner, &job());
    goes_on(&mut runner, &job(), 0, 128);
}

#[test]
#[should_panic(expected = "snapshots are taken at multiples")]
fn a_state_between_pages_is_not_kept() {
    let mut runner = runner(config_with_snapshots());
    let mut running = Running::start(&mut runner, 0, &job(), &Beginning::default());
    running.prefill(&mut runner, &job(), 256, &mut |runner, _| {
        runner.save_snapshot(0, 0).expect("saved");
    });
}

#[test]
#[should_panic(expected = "resumed at 192 of at most 191")]
fn the_last_token_of_a_prompt_is_never_resumed() {
    let mut runner = runner(config_with_snapshots());
    let mut job = job();
    prefill_and_save(&mut runner, &job);
    job.prompt.truncate(192);
    goes_on(&mut runner, &job, 2, 192);
}

//! Random schedules: whatever is submitted, aborted and finished in whatever order.

use std::time::Duration;

use model::Shape;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::harness::{Harness, Setup, VOCAB, request};
use crate::shape::Drafting;
use crate::{Request, RequestId, SubmitError};

fn random_setup(random: &mut Pcg64) -> Setup {
    let drafting = match random.random_range(0..6) {
        0 => Drafting::Off,
        1 => Drafting::Fixed(Shape::Chain(random.random_range(1..=15))),
        2 => Drafting::Fixed(Shape::Tree(random.random_range(1..=63))),
        3 => Drafting::Fixed(Shape::Tree(63)),
        _ => Drafting::Auto,
    };
    let context: usize = random.random_range(2..700);
    let one = context.div_ceil(64);
    let running_max = random.random_range(1..=12);
    Setup {
        running_max,
        context,
        pages: random.random_range(one..=one * running_max),
        chunk: 64 << random.random_range(0..3),
        drafting,
        queue_max: [0, 0, 5][random.random_range(0..3)],
        draft_batch_max: [0, 0, 2][random.random_range(0..3)],
        share_rows: random.random_bool(0.6),
        skip_warmup: random.random_bool(0.5),
        ..Setup::default()
    }
}

fn random_request(random: &mut Pcg64, context: usize) -> Request {
    let longest = if random.random_bool(0.2) {
        context - 1
    } else {
        (context - 1).min(80)
    };
    let length = random.random_range(1..=longest);
    let max_tokens =
        [random.random_range(1..=64), usize::MAX][usize::from(random.random_bool(0.1))];
    let mut request = request(length, max_tokens, random.random_range(0..1 << 40));
    if random.random_bool(0.5) {
        request.stop_ids = (0..random.random_range(1..4))
            .map(|_| random.random_range(0..VOCAB as u32))
            .collect();
        request.min_tokens = random.random_range(0..20);
    }
    if random.random_bool(0.1) {
        request.prompt_logprobs = Some(2);
        request.max_tokens = if random.random_bool(0.5) {
            0
        } else {
            request.max_tokens
        };
    }
    request.speculative = random.random_bool(0.8);
    request
}

fn run_schedule(seed: u64, actions: usize) {
    let mut random = Pcg64::seed_from_u64(seed);
    let setup = random_setup(&mut random);
    let mut harness = Harness::start(&setup);
    let mut ids: Vec<RequestId> = Vec::new();
    for _ in 0..actions {
        match random.random_range(0..10) {
            0..5 => {
                let request = random_request(&mut random, setup.context);
                match harness.handle().submit(request.clone()) {
                    Ok(id) => {
                        assert!(ids.last().is_none_or(|&last| last < id), "ids increase");
                        harness.requests.insert(id, request);
                        ids.push(id);
                    }
                    Err(SubmitError::QueueFull { waiting, limit }) => {
                        assert!(limit == setup.queue_max && waiting >= limit);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            5 if !ids.is_empty() => {
                let recent = ids.len().saturating_sub(8);
                harness
                    .handle()
                    .abort(ids[random.random_range(recent..ids.len())]);
            }
            6 if !ids.is_empty() => {
                let recent = ids.len().saturating_sub(8);
                let id = ids[random.random_range(recent..ids.len())];
                harness.handle().finish(id, random.random_range(0..40));
            }
            7 => std::thread::sleep(Duration::from_micros(random.random_range(0..300))),
            8 => harness.handle().abort(RequestId(1 << 60)),
            _ => harness.receive_pending(),
        }
    }
    harness.close();
}

#[test]
fn any_schedule_ends_every_request_once_with_the_models_own_tokens() {
    for seed in 0..60 {
        run_schedule(seed, 200);
    }
}

#[test]
fn long_schedules_leak_nothing() {
    for seed in 1000..1003 {
        run_schedule(seed, 3000);
    }
}

#[test]
fn shutdown_in_the_middle_aborts_what_is_left() {
    for seed in 0..20 {
        let mut random = Pcg64::seed_from_u64(seed);
        let setup = Setup {
            drafting: Drafting::Auto,
            skip_warmup: false,
            ..Setup::default()
        };
        let mut harness = Harness::start(&setup);
        for _ in 0..random.random_range(1..40) {
            let request = random_request(&mut random, setup.context);
            harness.submit(request);
        }
        std::thread::sleep(Duration::from_micros(random.random_range(0..2000)));
        harness.handle().shutdown();
        while harness.receive() {}
        harness.check_all();
    }
}

//! Prompts that find what others left behind.

use super::harness::{Harness, Setup, request};
use super::single::Single;
use super::stub_runner::Fault;
use crate::FinishReason;
use crate::settings::PrefixCacheSettings;

fn kept_every(interval: usize) -> PrefixCacheSettings {
    PrefixCacheSettings {
        interval,
        decoded: false,
    }
}

fn setup() -> Setup {
    Setup {
        cache: Some((kept_every(128), 4, 2)),
        ..Setup::default()
    }
}

#[test]
fn a_prompt_goes_on_behind_the_last_boundary_of_the_same_one() {
    let mut harness = Harness::start(&setup());
    let mut asked = request(300, 40, 3);
    let first = harness.run(asked.clone());
    assert_eq!(first.1.cached_tokens, 0);
    let again = harness.run(asked.clone());
    assert_eq!((again.1.cached_tokens, again.0), (256, first.0));
    asked.cache_salt = Some("another".into());
    assert_eq!(harness.run(asked.clone()).1.cached_tokens, 0);
    asked.prompt.truncate(256);
    assert_eq!(harness.run(asked).1.cached_tokens, 128, "a token is left");
    harness.close();
}

#[test]
fn nothing_is_kept_of_a_prefill_with_broken_logits() {
    let mut harness = Harness::start(&Setup {
        // The third chunk is the last one.
        fault: Fault::PrefillNotFinite(3),
        ..setup()
    });
    let asked = request(350, 10, 3);
    let broken = harness.run(asked.clone()).1;
    assert!(matches!(broken.reason, FinishReason::Error(_)));
    let (_, finish) = harness.run(asked.clone());
    assert_eq!(finish.cached_tokens, 256, "what was right before is kept");
    assert_eq!(harness.run(asked).1.reason, FinishReason::Length);
    harness.drain();
}

#[test]
fn gauges_are_right_behind_every_turn() {
    let setup = Setup {
        running_max: 3,
        context: 400,
        pages: 8,
        ..Setup::default()
    };
    let mut single = Single::new(&setup, None);
    for seed in 0..6 {
        let taken = single.handle.submit(request(60, 300, seed));
        taken.expect("the request is valid");
    }
    single.turn();
    while !single.step_loop.scheduler.is_empty() {
        single.turn();
        let stats = single.handle.stats();
        let scheduler = &single.step_loop.scheduler;
        let running = scheduler.running.len();
        assert_eq!((stats.running, stats.slots_used), (running, running));
        assert_eq!(stats.pages_used, scheduler.pages_used());
    }
    let stats = single.handle.stats();
    assert!(
        stats.preemptions > 2 && stats.replayed_tokens > 0,
        "{stats:?}"
    );
}

/// The cache holds the prompt's pages, but no state: a sequence alone computes them once more and
/// gets the old ones when it needs them.
#[test]
fn who_is_alone_never_gives_way_to_the_cache() {
    let setup = Setup {
        context: 640,
        pages: 10,
        cache: Some((kept_every(512), 1, 0)),
        ..Setup::default()
    };
    let mut harness = Harness::start(&setup);
    let mut asked = request(300, 5, 3);
    harness.run(asked.clone());
    assert_eq!(harness.handle().stats().prefix_cache.pages, 4);
    asked.max_tokens = usize::MAX;
    let (tokens, finish) = harness.run(asked);
    assert_eq!((tokens.len(), finish.cached_tokens), (340, 0));
    assert_eq!(harness.handle().stats().preemptions, 0);
    harness.close();
}

//! Prompts that begin like earlier ones, over the stub.

use model::Shape;

use super::harness::{Harness, Setup, request};
use crate::settings::PrefixCacheSettings;
use crate::shape::Drafting;
use crate::{Request, RequestId};

fn setup(decoded: bool, device: usize, host: usize) -> Setup {
    let settings = PrefixCacheSettings {
        interval: 128,
        decoded,
    };
    Setup {
        cache: Some((settings, device, host)),
        ..Setup::default()
    }
}

/// Runs a request and says how much of its prompt was spared.
fn cached(harness: &mut Harness, request: Request) -> usize {
    harness.run(request).1.cached_tokens
}

#[test]
fn prompts_go_on_from_the_last_state_that_they_share() {
    let mut harness = Harness::start(&setup(false, 8, 0));
    let whole = request(700, 5, 1);
    let cut = |tokens: usize| Request {
        prompt: whole.prompt[..tokens].to_vec(),
        ..whole.clone()
    };
    assert_eq!(cached(&mut harness, cut(300)), 0);
    assert_eq!(cached(&mut harness, cut(300)), 256);
    assert_eq!(cached(&mut harness, whole.clone()), 256);
    assert_eq!(cached(&mut harness, whole.clone()), 640);
    // At least one token is computed.
    assert_eq!(cached(&mut harness, cut(640)), 512);
    let salted = Request {
        cache_salt: Some("other".into()),
        ..whole.clone()
    };
    assert_eq!(cached(&mut harness, salted.clone()), 0);
    assert_eq!(cached(&mut harness, salted), 640);
    let scored = Request {
        prompt_logprobs: Some(1),
        ..whole
    };
    assert_eq!(cached(&mut harness, scored), 0);
    harness.close();
}

#[test]
fn what_is_spared_is_told_before_the_prefill() {
    let mut harness = Harness::start(&setup(false, 8, 0));
    harness.run(request(300, 5, 1));
    harness.gate.close();
    let id = harness.submit(request(300, 5, 1));
    harness.receive();
    let news = &harness.news[&id];
    let started = news.started.expect("it has a slot");
    assert_eq!(started.cached_tokens, 256);
    assert!(news.tokens.is_empty() && news.finish.is_none());
    harness.gate.open();
    let finish = harness.await_end(id);
    assert!(finish.stats.queue_ms >= started.queue_ms);
    harness.close();
}

#[test]
fn the_end_of_a_turn_is_kept_and_so_is_a_fork() {
    let mut harness = Harness::start(&setup(false, 8, 0));
    let first = Request {
        turn_end: Some(110),
        ..request(118, 5, 1)
    };
    let mut second = first.clone();
    second.prompt.truncate(110);
    second.prompt.extend(request(90, 1, 2).prompt);
    second.turn_end = Some(190);
    assert_eq!(cached(&mut harness, first), 0);
    assert_eq!(cached(&mut harness, second.clone()), 64);
    // A third one leaves the second's way behind 128 tokens, and a fourth finds the state there.
    let mut third = second.clone();
    third.prompt.truncate(150);
    third.prompt.extend(request(60, 1, 3).prompt);
    third.turn_end = None;
    let mut fourth = third.clone();
    fourth.prompt.truncate(129);
    assert_eq!(cached(&mut harness, third), 128);
    assert_eq!(cached(&mut harness, fourth), 128);
    harness.close();
}

#[test]
fn states_move_to_the_host_and_back() {
    // A swap needs a place to spare.
    let mut harness = Harness::start(&setup(false, 1, 3));
    let prompts = [1, 2, 3].map(|seed| request(150, 3, seed));
    for prompt in &prompts {
        assert_eq!(cached(&mut harness, prompt.clone()), 0);
    }
    for prompt in prompts.iter().chain(&prompts) {
        assert_eq!(cached(&mut harness, prompt.clone()), 128);
    }
    let stats = harness.handle().stats().prefix_cache;
    assert_eq!((stats.device_snapshots, stats.host_snapshots), (1, 2));
    assert_eq!((stats.query_tokens, stats.hit_tokens), (9 * 150, 6 * 128));
    assert_eq!(harness.handle().flush_cache(), Some(true));
    let stats = harness.handle().stats().prefix_cache;
    assert_eq!(
        (stats.device_snapshots, stats.host_snapshots, stats.pages),
        (0, 0, 0)
    );
    assert_eq!(cached(&mut harness, prompts[0].clone()), 0);
    harness.close();
}

#[test]
fn a_busy_engine_keeps_its_cache() {
    let mut harness = Harness::start(&setup(false, 2, 0));
    harness.gate.close();
    harness.submit(request(100, 50, 1));
    harness.gate.await_calls(1);
    let handle = harness.handle().clone();
    let flush = std::thread::spawn(move || handle.flush_cache());
    while !flush.is_finished() {
        harness.gate.permit(1);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(flush.join().unwrap(), Some(false));
    harness.gate.open();
    harness.close();
}

#[test]
fn answers_are_resumed_only_where_that_is_asked_for() {
    for (decoded, expected) in [(false, 64), (true, 192)] {
        for shape in [Shape::Plain, Shape::Chain(15), Shape::Tree(31)] {
            let mut harness = Harness::start(&Setup {
                drafting: Drafting::Fixed(shape),
                ..setup(decoded, 8, 0)
            });
            let first = Request {
                turn_end: Some(80),
                ..request(90, 120, 1)
            };
            let (answer, _) = harness.run(first.clone());
            let mut second = first;
            second.prompt.extend(answer);
            second.prompt.extend(request(20, 1, 2).prompt);
            assert_eq!(cached(&mut harness, second), expected, "{shape:?}");
            harness.close();
        }
    }
}

#[test]
fn what_a_client_did_not_keep_is_not_resumed() {
    let mut harness = Harness::start(&setup(true, 8, 0));
    harness.gate.close();
    let first = request(90, 400, 1);
    let id = harness.submit(first.clone());
    while harness.tokens(id).len() < 150 {
        harness.gate.permit(1);
        harness.receive();
    }
    // 90 + 60 tokens count, of which the last is not processed: 128 are whole pages.
    harness.handle().finish(id, 60);
    harness.gate.open();
    harness.await_end(id);
    let mut second = first;
    second.prompt.extend(harness.tokens(RequestId(id.0)));
    let kept = cached(&mut harness, second);
    assert!(kept <= 128, "{kept}");
    harness.close();
}

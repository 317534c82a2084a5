//! Who waits, who may not, and who has waited for too long.

use std::time::Duration;

use super::harness::{Harness, Setup, request, wait_until};
use crate::shape::Drafting;
use crate::{FinishReason, Request, RequestId, SubmitError};

/// One slot, whose owner stands at the gate.
fn occupied(queue_max: usize) -> Harness {
    let setup = Setup {
        running_max: 1,
        drafting: Drafting::Off,
        queue_max,
        ..Setup::default()
    };
    let mut harness = Harness::start(&setup);
    harness.gate.close();
    harness.submit(request(10, 5, 1));
    harness.gate.await_calls(1);
    harness
}

fn submit_all(harness: &mut Harness, seeds: &[u64], priority: i64) -> Vec<RequestId> {
    let one = |&seed: &u64| Request {
        priority,
        ..request(20, 5, seed)
    };
    let requests: Vec<_> = seeds.iter().map(one).collect();
    let ids = harness.handle().submit_all(requests.clone()).unwrap();
    harness.requests.extend(ids.iter().copied().zip(requests));
    ids
}

#[test]
fn a_group_is_taken_whole_or_not_at_all() {
    let mut harness = occupied(3);
    let four = vec![request(10, 5, 2); 4];
    let refused = harness.handle().submit_all(four).unwrap_err();
    let (waiting, limit) = (0, 3);
    assert_eq!(refused, SubmitError::QueueFull { waiting, limit });
    assert_eq!(harness.handle().stats().waiting, 0, "nothing was taken");
    let mut bad = vec![request(10, 5, 2); 2];
    bad[1].prompt.clear();
    let refused = harness.handle().submit_all(bad).unwrap_err();
    assert_eq!(refused, SubmitError::EmptyPrompt);
    submit_all(&mut harness, &[2, 3, 4], 0);
    let stats = harness.handle().stats();
    assert_eq!((stats.waiting, stats.waiting_tokens), (3, 60));
    harness.gate.open();
    harness.await_end(RequestId(4));
    let stats = harness.handle().stats();
    assert_eq!((stats.waiting_tokens, stats.ended), (0, 4));
    assert!(stats.prompt_tokens_per_second > 0.0);
    harness.close();
}

#[test]
fn only_a_group_that_waits_as_a_whole_expires() {
    let mut harness = occupied(0);
    let waiting = submit_all(&mut harness, &[2, 3], 0);
    // One of these runs.
    harness.handle().expire(vec![RequestId(1), waiting[0]]);
    harness.handle().expire(vec![RequestId(99)]);
    harness.handle().expire(waiting.clone());
    harness.gate.permit(1);
    for id in waiting {
        let finish = harness.await_end(id);
        assert_eq!(finish.reason, FinishReason::Expired);
        assert_eq!((finish.prompt_tokens, finish.completion_tokens), (20, 0));
    }
    harness.gate.open();
    assert_eq!(harness.await_end(RequestId(1)).reason, FinishReason::Length);
    harness.close();
}

#[test]
fn urgent_requests_overtake_those_that_wait() {
    let mut harness = occupied(0);
    let normal = submit_all(&mut harness, &[2], 0);
    let patient = submit_all(&mut harness, &[3], 7);
    let urgent = submit_all(&mut harness, &[4], -7);
    harness.gate.open();
    let mut ends = Vec::new();
    while ends.len() < 4 {
        assert!(harness.receive());
        for (&id, news) in &harness.news {
            if news.finish.is_some() && !ends.contains(&id) {
                ends.push(id);
            }
        }
    }
    assert_eq!(ends, [RequestId(1), urgent[0], normal[0], patient[0]]);
    harness.close();
}

#[test]
fn a_thread_that_hangs_in_a_step_shows_no_sign_of_life() {
    let harness = occupied(0);
    wait_until(|| harness.handle().status().heartbeat_age > Duration::from_millis(300));
    harness.gate.open();
    wait_until(|| harness.handle().status().heartbeat_age < Duration::from_millis(200));
    harness.close();
}

use std::time::Instant;

use super::*;
use crate::Request;
use crate::tests::request;

fn scheduler(pages: usize, slots: usize) -> Scheduler {
    cached(pages, slots, None)
}

fn cached(pages: usize, slots: usize, snapshots: Option<usize>) -> Scheduler {
    let limits = SchedulerLimits {
        context: 512,
        chunk: 128,
        tree_rows: 16,
        replay_rows: 16,
        replay_rows_all: 24,
        interval: 128,
    };
    let cache = snapshots.map(|snapshots| PrefixCache::new(snapshots, 0));
    Scheduler::new(KvPool::new(pages), StatePool::new(slots), cache, limits)
}

fn submit_request(scheduler: &mut Scheduler, id: u64, request: Request) {
    scheduler.waiting.push(Waiting {
        id: RequestId(id),
        request,
        submitted: Instant::now(),
        history: None,
    });
}

fn submit(scheduler: &mut Scheduler, id: u64, prompt: usize, max_tokens: usize) {
    submit_request(scheduler, id, request(prompt, max_tokens, id));
}

fn admit_all(scheduler: &mut Scheduler) -> Vec<u64> {
    let mut ids = Vec::new();
    while let Some(admission) = scheduler.admit() {
        if let (Some(resumed), Some(cache)) = (admission.resumed, &mut scheduler.cache) {
            cache.unpin(resumed.lease);
        }
        ids.push(scheduler.running[admission.index].id.0);
    }
    ids
}

/// Prefills all that run, and gives each its first tokens.
fn prefill_all(scheduler: &mut Scheduler, emitted: usize) {
    for sequence in &mut scheduler.running {
        sequence.end_chunk(sequence.to_prefill());
        if sequence.emitted() == 0 {
            sequence.history.emit(0..emitted as u32, Instant::now());
        }
    }
}

fn pages(scheduler: &Scheduler) -> Vec<usize> {
    let running = scheduler.running.iter();
    running
        .map(|sequence| sequence.pages.pages().len())
        .collect()
}

#[test]
fn nobody_overtakes_the_head_of_the_queue() {
    let mut scheduler = scheduler(8, 4);
    submit(&mut scheduler, 1, 200, 100);
    submit(&mut scheduler, 2, 300, 200);
    submit(&mut scheduler, 3, 10, 10);
    assert_eq!(admit_all(&mut scheduler), [1]);
    assert_eq!(scheduler.kv.used(), 4, "200 + 1 + 15 tokens");
    scheduler.release(0);
    assert_eq!(admit_all(&mut scheduler), [2, 3]);
    assert_eq!(pages(&scheduler), [5, 1]);
    for _ in 0..2 {
        scheduler.release(0);
    }
    scheduler.audit().expect("everything came back");
}

#[test]
fn urgent_requests_go_first_and_equal_ones_in_order() {
    let mut scheduler = scheduler(64, 8);
    for (id, priority) in [(1, 0), (2, 5), (3, -1), (4, 0), (5, i64::MIN), (6, -1)] {
        let request = Request {
            priority,
            ..request(10, 10, id)
        };
        submit_request(&mut scheduler, id, request);
    }
    assert_eq!(admit_all(&mut scheduler), [5, 3, 6, 1, 4, 2]);
}

#[test]
fn output_is_lowered_to_the_context_and_slots_limit_too() {
    let mut scheduler = scheduler(64, 2);
    for id in 1..=3 {
        submit(&mut scheduler, id, 500, usize::MAX / 2);
    }
    assert_eq!(admit_all(&mut scheduler), [1, 2]);
    assert_eq!(scheduler.running[0].tokens_max, 12);
    assert_eq!(pages(&scheduler), [8, 8]);
}

#[test]
fn a_prompt_that_is_only_scored_has_room_for_one_token() {
    let mut scheduler = scheduler(64, 1);
    scheduler.limits.tree_rows = 1;
    submit(&mut scheduler, 1, 64, 0);
    assert_eq!(admit_all(&mut scheduler), [1]);
    let sequence = &scheduler.running[0];
    assert_eq!((sequence.tokens_max, sequence.pages.tokens()), (0, 128));
}

#[test]
fn a_newcomer_leaves_every_other_a_page_to_grow() {
    let mut scheduler = scheduler(7, 4);
    for id in 1..=3 {
        submit(&mut scheduler, id, 100, 400);
    }
    assert_eq!(admit_all(&mut scheduler), [1, 2]);
    assert_eq!(scheduler.kv.free(), 3, "2 + 2 > 3");
}

#[test]
fn sequences_grow_and_the_last_gives_way() {
    let mut scheduler = scheduler(9, 4);
    for id in 1..=3 {
        submit(&mut scheduler, id, 100, 400);
    }
    assert_eq!(admit_all(&mut scheduler), [1, 2, 3]);
    prefill_all(&mut scheduler, 28 + 64);
    assert!(scheduler.make_room().is_empty());
    assert_eq!((pages(&scheduler), scheduler.kv.free()), (vec![3, 3, 3], 0));
    assert!(!scheduler.grow(0, 16) && scheduler.grow(0, 1));
    for sequence in &mut scheduler.running {
        sequence.history.emit(0..5, Instant::now());
    }
    let sent_back = scheduler.make_room();
    assert_eq!(sent_back, [(RequestId(3), 100)]);
    assert_eq!((pages(&scheduler), scheduler.kv.free()), (vec![4, 4], 1));
    let head = scheduler.waiting.head().expect("it waits again");
    let output = &head.history.as_ref().expect("it has a history").output;
    assert_eq!(output.len(), 97);
    assert!(!scheduler.waiting.is_new(RequestId(3)));
    // It comes back in front of younger ones, with pages for all that it had.
    submit(&mut scheduler, 4, 1, 1);
    assert!(admit_all(&mut scheduler).is_empty());
    scheduler.release(0);
    assert_eq!(admit_all(&mut scheduler), [3]);
    assert_eq!(pages(&scheduler), [4, 4]);
    let sequence = &mut scheduler.running[1];
    assert_eq!(sequence.stage(), Stage::Prefill);
    sequence.end_chunk(100);
    assert_eq!((sequence.stage(), sequence.emitted()), (Stage::Replay, 97));
}

#[test]
fn the_most_urgent_one_never_gives_way() {
    let mut scheduler = scheduler(6, 4);
    for (id, priority) in [(1, 5), (2, 5), (3, 1)] {
        let request = Request {
            priority,
            ..request(60, 400, id)
        };
        submit_request(&mut scheduler, id, request);
    }
    // 60 + 16 tokens are two pages; the others' spare page is not left for a third.
    assert_eq!(admit_all(&mut scheduler), [3, 1]);
    prefill_all(&mut scheduler, 200);
    assert_eq!(scheduler.make_room(), [(RequestId(1), 60)]);
    assert_eq!(pages(&scheduler), [5]);
}

#[test]
fn cached_pages_are_free_for_whoever_needs_them() {
    let mut scheduler = cached(8, 2, Some(2));
    submit(&mut scheduler, 1, 300, 10);
    assert_eq!(admit_all(&mut scheduler), [1]);
    let sequence = &scheduler.running[0];
    let (prompt, own) = (
        sequence.request.prompt.clone(),
        sequence.pages.pages().to_vec(),
    );
    let cache = scheduler.cache.as_mut().expect("it has one");
    cache.insert(None, &prompt[..256], &own[..4], &mut scheduler.kv);
    let reservation = cache.reserve_snapshot().expect("a place");
    assert!(cache.attach(None, &prompt[..128], reservation));
    assert_eq!(scheduler.pages_used(), 5);
    scheduler.release(0);
    assert_eq!((scheduler.pages_used(), scheduler.kv.free()), (0, 4));
    scheduler.audit().expect("pages of the cache are no leak");
    // The same prompt goes on behind the snapshot, and keeps a state where the ways parted.
    submit_request(&mut scheduler, 2, request(300, 10, 1));
    let admission = scheduler.admit().expect("there is room");
    let resumed = admission.resumed.expect("128 tokens are known");
    assert_eq!((resumed.length, resumed.lease.device()), (128, 0));
    scheduler
        .cache
        .as_mut()
        .expect("it has one")
        .unpin(resumed.lease);
    let sequence = &scheduler.running[0];
    assert_eq!(sequence.pages.pages()[..2], own[..2]);
    assert_eq!((sequence.prefilled(), sequence.history.cached), (128, 128));
    assert_eq!(sequence.next_chunk(128), 128..256);
    scheduler.release(0);
    // A scored prompt is computed, and takes what the cache holds.
    let scored = Request {
        prompt_logprobs: Some(0),
        ..request(500, 1, 1)
    };
    submit_request(&mut scheduler, 3, scored);
    let admission = scheduler.admit().expect("there is room");
    assert!(admission.resumed.is_none());
    assert_eq!((scheduler.kv.only_cached(), scheduler.kv.free()), (0, 0));
}

fn run(scheduler: &mut Scheduler, work: &Work) -> String {
    match work {
        Work::Idle => "idle".into(),
        Work::Decode => {
            let decoding = scheduler.decoding();
            scheduler.count_step(16 * decoding.len());
            format!("decode {decoding:?}")
        }
        Work::Replay(replays) => {
            for &(index, tokens) in replays {
                scheduler.running[index].end_replay(tokens);
            }
            format!("replay {replays:?}")
        }
        Work::Prefill(chunks) => {
            let list: Vec<_> = chunks.iter().map(|c| (c.index, c.range.clone())).collect();
            for chunk in chunks {
                let sequence = &mut scheduler.running[chunk.index];
                sequence.end_chunk(chunk.range.len());
                if sequence.stage() == Stage::Decode && sequence.wants_first() {
                    sequence.history.emit(0..1, Instant::now());
                }
            }
            format!("prefill {list:?}")
        }
    }
}

fn rounds(scheduler: &mut Scheduler, calls: usize) -> Vec<String> {
    let mut kinds = Vec::new();
    for _ in 0..calls {
        let work = scheduler.next_work();
        kinds.push(run(scheduler, &work));
    }
    kinds
}

#[test]
fn prompts_share_calls_that_alternate_with_steps() {
    let mut scheduler = scheduler(64, 8);
    for (id, prompt) in [(1, 20), (2, 300), (3, 30), (4, 60)] {
        submit(&mut scheduler, id, prompt, 20);
    }
    admit_all(&mut scheduler);
    let expected = [
        "prefill [(0, 0..20), (1, 0..64), (2, 0..30)]",
        "decode [0, 2]",
        "prefill [(1, 64..128), (3, 0..60)]",
        "decode [0, 2, 3]",
        "prefill [(1, 128..256)]",
        "decode [0, 2, 3]",
        "prefill [(1, 256..300)]",
        "decode [0, 1, 2, 3]",
    ];
    assert_eq!(rounds(&mut scheduler, 8), expected);
}

#[test]
fn replays_have_their_turn() {
    let mut scheduler = scheduler(64, 8);
    for id in 1..=3 {
        submit(&mut scheduler, id, 60, 200);
    }
    admit_all(&mut scheduler);
    prefill_all(&mut scheduler, 20);
    for _ in 0..2 {
        scheduler.preempt(1);
    }
    submit(&mut scheduler, 4, 100, 20);
    assert_eq!(admit_all(&mut scheduler), [2, 3, 4]);
    let expected = [
        "decode [0]",
        "prefill [(1, 0..60), (2, 0..60)]",
        "replay [(1, 16), (2, 8)]",
        "decode [0]",
        "prefill [(3, 0..100)]",
        "replay [(1, 3), (2, 11)]",
        "decode [0, 1, 2, 3]",
    ];
    assert_eq!(rounds(&mut scheduler, 7), expected);
}

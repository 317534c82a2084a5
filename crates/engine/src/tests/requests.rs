//! Single requests and their limits.

use std::sync::atomic::{AtomicU64, Ordering};

use model::{Shape, TokenLogprob};

use super::harness::{Harness, Setup, VOCAB, plain_run, request};
use super::stub_runner::fake_logprob;
use crate::shape::Drafting;
use crate::{FinishReason, Phase, RequestId, SubmitError};

const SHAPES: [Drafting; 6] = [
    Drafting::Off,
    Drafting::Fixed(Shape::Chain(3)),
    Drafting::Fixed(Shape::Chain(15)),
    Drafting::Fixed(Shape::Tree(15)),
    Drafting::Fixed(Shape::Tree(63)),
    Drafting::Auto,
];

fn setup(drafting: Drafting) -> Setup {
    Setup {
        drafting,
        skip_warmup: drafting != Drafting::Auto,
        ..Setup::default()
    }
}

#[test]
fn max_tokens_is_exact_in_every_shape() {
    for drafting in SHAPES {
        let mut harness = Harness::start(&setup(drafting));
        for max_tokens in 1..=64 {
            let (tokens, finish) = harness.run(request(30, max_tokens, 9));
            assert_eq!(tokens.len(), max_tokens);
            assert_eq!(finish.reason, FinishReason::Length);
            assert_eq!(finish.completion_tokens, max_tokens);
        }
        harness.close();
    }
}

#[test]
fn shapes_that_may_draft_do_draft() {
    let mut harness = Harness::start(&setup(Drafting::Fixed(Shape::Tree(31))));
    let (_, finish) = harness.run(request(30, 200, 9));
    assert!(finish.stats.accepted > 0 && finish.stats.steps < 199);
    let mut plain = request(30, 20, 9);
    plain.speculative = false;
    let (_, finish) = harness.run(plain);
    assert_eq!((finish.stats.steps, finish.stats.drafted), (19, 0));
    assert_eq!(finish.stats.acceptance_histogram[0], 19);
    harness.close();
}

#[test]
fn a_request_may_bring_its_own_shape() {
    for drafting in [Drafting::Fixed(Shape::Tree(31)), Drafting::Auto] {
        let mut harness = Harness::start(&setup(drafting));
        for shape in [Shape::Plain, Shape::Chain(7), Shape::Tree(20)] {
            let mut asked = request(30, 60, 9);
            asked.shape = Some(shape);
            harness.shapes.lock().unwrap().clear();
            let tokens = harness.run(asked.clone()).0;
            assert_eq!(tokens, plain_run(&asked, 1024).0);
            let steps = harness.shapes.lock().unwrap().clone();
            // One token is left for the last step at times, and is not drafted for.
            let (_, all) = steps.split_last().expect("there are steps");
            assert!(all.iter().all(|step| step[..] == [shape]), "{all:?}");
        }
        harness.close();
    }
    let harness = Harness::start(&setup(Drafting::Fixed(Shape::Tree(31))));
    for shape in [Shape::Tree(32), Shape::Chain(16), Shape::Chain(0)] {
        let mut asked = request(30, 60, 9);
        asked.shape = Some(shape);
        let refused = harness.handle().submit(asked).unwrap_err();
        assert!(matches!(&refused, SubmitError::Invalid(text) if text.contains("drafts at most")));
    }
    harness.close();
}

#[test]
fn the_last_token_of_a_request_is_not_drafted_for() {
    let mut harness = Harness::start(&setup(Drafting::Fixed(Shape::Tree(63))));
    let (_, finish) = harness.run(request(30, 2, 9));
    assert_eq!((finish.stats.steps, finish.stats.drafted), (1, 0));
    harness.close();
}

#[test]
fn the_context_bounds_prompt_and_output() {
    for drafting in SHAPES {
        for context in [2, 63, 64, 65, 200] {
            let setup = Setup {
                context,
                pages: context.div_ceil(64),
                ..setup(drafting)
            };
            let mut harness = Harness::start(&setup);
            for prompt in [1, context / 2, context - 1] {
                let (tokens, finish) = harness.run(request(prompt.max(1), usize::MAX, 4));
                assert_eq!(tokens.len(), context - prompt.max(1));
                assert_eq!(finish.reason, FinishReason::Length);
            }
            let refused = harness.handle().submit(request(context, 1, 4)).unwrap_err();
            let prompt = context;
            assert_eq!(refused, SubmitError::ContextLength { prompt, context });
            harness.close();
        }
    }
}

#[test]
fn prompts_are_scored_across_chunks() {
    let mut harness = Harness::start(&setup(Drafting::Fixed(Shape::Tree(15))));
    for (length, max_tokens) in [(1, 0), (2, 0), (128, 0), (129, 0), (300, 0), (300, 5)] {
        let mut asked = request(length, max_tokens, 5);
        asked.prompt_logprobs = Some(3);
        asked.logprobs = Some(2);
        let prompt = asked.prompt.clone();
        let id = harness.submit(asked);
        let finish = harness.await_end(id);
        let news = &harness.news[&id];
        let expected: Vec<TokenLogprob> =
            (1..length).map(|i| fake_logprob(i, prompt[i], 3)).collect();
        assert_eq!(news.prompt_logprobs, expected);
        assert_eq!(
            (news.tokens.len(), finish.completion_tokens),
            (max_tokens, max_tokens)
        );
        for (i, token) in news.tokens.iter().enumerate() {
            assert_eq!(token.logprob, Some(fake_logprob(length + i, token.id, 2)));
        }
        assert_eq!(finish.reason, FinishReason::Length);
    }
    assert_eq!(
        harness.handle().stats().prompt_tokens,
        1 + 2 + 128 + 129 + 300 + 300
    );
    harness.close();
}

#[test]
fn stop_ids_end_the_output_and_min_tokens_holds_them_off() {
    let mut harness = Harness::start(&setup(Drafting::Fixed(Shape::Tree(31))));
    let mut stopped = 0;
    for seed in 0..40 {
        let mut asked = request(20, 100, seed);
        asked.stop_ids = vec![3, 4, 5];
        asked.min_tokens = (seed % 12) as usize;
        let (tokens, finish) = harness.run(asked.clone());
        assert_eq!((tokens, finish.reason.clone()), plain_run(&asked, 1024));
        stopped += usize::from(finish.reason == FinishReason::Stop);
    }
    assert!(stopped > 30, "the stub stops often enough to test stops");
    harness.close();
}

#[test]
fn finish_keeps_what_the_caller_says_and_nothing_follows() {
    let mut harness = Harness::start(&setup(Drafting::Fixed(Shape::Chain(7))));
    harness.gate.close();
    let id = harness.submit(request(20, 500, 1));
    harness.gate.permit(4);
    harness.gate.await_calls(5);
    harness.handle().finish(id, 2);
    harness.gate.open();
    let finish = harness.await_end(id);
    assert_eq!(
        (&finish.reason, finish.completion_tokens),
        (&FinishReason::Finished, 2)
    );
    assert!(
        finish.stats.steps <= 1,
        "steps beyond the kept tokens do not count"
    );
    // The step that was under way when the caller decided still reports; no later one does.
    let sent = harness.tokens(id).len();
    assert!((5..=1 + 4 * 8).contains(&sent), "{sent} tokens");
    harness.handle().finish(id, 1);
    harness.handle().abort(id);
    harness.close();
}

#[test]
fn abort_is_seen_between_chunks_and_in_the_queue() {
    let setup = Setup {
        running_max: 1,
        ..setup(Drafting::Off)
    };
    let mut harness = Harness::start(&setup);
    harness.gate.close();
    let long = harness.submit(request(1000, 5, 1));
    let queued = harness.submit(request(10, 5, 2));
    let next = harness.submit(request(10, 5, 3));
    harness.gate.permit(1);
    harness.gate.await_calls(2);
    let stats = harness.handle().stats();
    assert_eq!((stats.running, stats.waiting, stats.slots_used), (1, 2, 1));
    harness.handle().abort(queued);
    harness.handle().abort(long);
    harness.gate.open();
    for id in [queued, long] {
        let finish = harness.await_end(id);
        assert_eq!(
            (finish.reason, finish.completion_tokens),
            (FinishReason::Aborted, 0)
        );
    }
    assert_eq!(harness.await_end(next).reason, FinishReason::Length);
    let prefilled = harness.handle().stats().prompt_tokens;
    assert_eq!(prefilled, 2 * 128 + 10, "no chunk ran after the abort");
    harness.close();
}

#[test]
fn a_long_prompt_does_not_hold_up_running_answers() {
    let mut harness = Harness::start(&setup(Drafting::Off));
    harness.gate.close();
    let short = harness.submit(request(10, 200, 1));
    harness.gate.permit(1);
    harness.gate.await_calls(2);
    let long = harness.submit(request(1000, 5, 2));
    // The step under way, then eight chunks with a step after each but the last.
    harness.gate.permit(16);
    while harness.tokens(long).is_empty() {
        harness.receive();
    }
    assert_eq!(harness.tokens(short).len(), 1 + 1 + 7);
    harness.gate.open();
    harness.close();
}

#[test]
fn the_queue_is_bounded() {
    let setup = Setup {
        running_max: 1,
        queue_max: 2,
        ..setup(Drafting::Off)
    };
    let mut harness = Harness::start(&setup);
    harness.gate.close();
    harness.submit(request(10, 5, 1));
    harness.gate.await_calls(1);
    harness.submit(request(10, 5, 2));
    harness.submit(request(10, 5, 3));
    let refused = harness.handle().submit(request(10, 5, 4)).unwrap_err();
    let (waiting, limit) = (2, 2);
    assert_eq!(refused, SubmitError::QueueFull { waiting, limit });
    harness.gate.open();
    harness.await_end(RequestId(3));
    harness.submit(request(10, 5, 5));
    harness.close();
}

#[test]
fn requests_with_a_free_slot_do_not_queue() {
    let setup = Setup {
        running_max: 4,
        queue_max: 1,
        ..setup(Drafting::Off)
    };
    let mut harness = Harness::start(&setup);
    harness.gate.close();
    // A burst that the thread has not seen yet, or only in part.
    for seed in 1..=5 {
        harness.submit(request(10, 5, seed));
    }
    let refused = (6..=20).find(|&seed| harness.handle().submit(request(10, 5, seed)).is_err());
    assert_eq!(refused, Some(6), "four slots and one place in the queue");
    harness.gate.open();
    harness.await_end(RequestId(5));
    harness.close();
}

#[test]
fn bad_requests_are_refused_with_what_to_change() {
    let harness = Harness::start(&setup(Drafting::Off));
    let submit = |change: &dyn Fn(&mut crate::Request)| {
        let mut asked = request(5, 5, 1);
        change(&mut asked);
        harness.handle().submit(asked).unwrap_err()
    };
    assert_eq!(submit(&|r| r.prompt.clear()), SubmitError::EmptyPrompt);
    let (id, max) = (VOCAB as u32, VOCAB as u32 - 1);
    assert_eq!(
        submit(&|r| r.prompt[3] = id),
        SubmitError::UnknownToken { id, max }
    );
    assert_eq!(
        submit(&|r| r.stop_ids.push(id)),
        SubmitError::UnknownToken { id, max }
    );
    type Change<'a> = &'a dyn Fn(&mut crate::Request);
    let invalid: [(Change<'_>, &str); 12] = [
        (&|r| r.max_tokens = 0, "max_tokens"),
        (&|r| r.stop_ids = vec![0; 73], "stop ids"),
        (&|r| r.logprobs = Some(21), "logprobs"),
        (&|r| r.prompt_logprobs = Some(21), "prompt_logprobs"),
        (&|r| r.sampling.temperature = f32::NAN, "temperature"),
        (&|r| r.sampling.temperature = -1.0, "temperature"),
        (&|r| r.sampling.top_p = 1.5, "top_p"),
        (&|r| r.sampling.min_p = -0.1, "min_p"),
        (
            &|r| r.sampling.repetition_penalty = 0.0,
            "repetition_penalty",
        ),
        (
            &|r| r.sampling.presence_penalty = f32::INFINITY,
            "presence_penalty",
        ),
        (
            &|r| r.sampling.logit_bias = vec![(1, f32::NAN)],
            "logit_bias",
        ),
        (
            &|r| r.sampling.logit_bias = vec![(1, 0.0); 1025],
            "logit_bias",
        ),
    ];
    for (change, word) in invalid {
        let error = submit(change);
        assert!(matches!(error, SubmitError::Invalid(_)) && error.to_string().contains(word));
    }
    harness.close();
}

/// The given shapes of a step of 20 sequences with trees of 63 nodes.
fn full_step(share_rows: bool) -> Vec<Shape> {
    let setup = Setup {
        running_max: 20,
        context: 256,
        pages: 80,
        share_rows,
        ..setup(Drafting::Fixed(Shape::Tree(63)))
    };
    let mut harness = Harness::start(&setup);
    harness.gate.close();
    for seed in 0..20 {
        harness.submit(request(6, 40, seed));
    }
    harness.gate.await_calls(1);
    harness.gate.open();
    let shapes = std::sync::Arc::clone(&harness.shapes);
    harness.close();
    // The stub refuses more than 512 rows; a full batch must still draft.
    let shapes = shapes.lock().unwrap();
    let full = shapes.iter().find(|step| step.len() == 20);
    full.expect("a step of all").clone()
}

#[test]
fn many_sequences_fit_into_a_step() {
    assert_eq!(full_step(false), [Shape::Tree(15); 20]);
    // Where they share rows, all 512 are given.
    let shared = full_step(true);
    assert_eq!(shared[..12], [Shape::Tree(25); 12]);
    assert_eq!(shared[12..], [Shape::Tree(24); 8]);
}

/// A sequence gets more rows than its own when others leave it theirs, and never alone.
#[test]
fn verified_nodes_follow_the_deal() {
    for (share_rows, requests) in [(false, 4), (true, 1), (true, 4)] {
        let setup = Setup {
            share_rows,
            ..setup(Drafting::Fixed(Shape::Tree(15)))
        };
        let mut harness = Harness::start(&setup);
        harness.gate.close();
        let ids: Vec<RequestId> = (0..requests)
            .map(|seed| harness.submit(request(6, 60, seed)))
            .collect();
        harness.gate.await_calls(1);
        harness.gate.open();
        let mut most = 0;
        for id in ids {
            let finish = harness.await_end(id);
            let drafted = finish
                .records
                .iter()
                .map(|record| usize::from(record.drafted));
            most = most.max(drafted.max().unwrap_or(0));
        }
        assert_eq!(most > 15, share_rows && requests > 1, "{most} nodes");
        // All of it is counted as the shape that was asked for.
        let stats = harness.handle().stats();
        let names: Vec<&str> = stats.shapes.iter().map(|shape| &*shape.shape).collect();
        assert!(
            names.iter().all(|name| ["tree-15", "plain"].contains(name)),
            "{names:?}"
        );
        harness.close();
    }
}

/// What a benchmark sets holds until it is taken back, and shares rows like a configured shape.
#[test]
fn drafting_can_be_set_for_benchmarks() {
    let setup = Setup {
        share_rows: true,
        ..setup(Drafting::Auto)
    };
    let mut harness = Harness::start(&setup);
    let mut seen = 0;
    let mut names = |harness: &mut Harness, shape| {
        harness.handle().set_drafting(shape).unwrap();
        harness.gate.close();
        let ids: Vec<RequestId> = (0..4)
            .map(|seed| harness.submit(request(6, 60, seed)))
            .collect();
        harness.gate.await_calls(1);
        harness.gate.open();
        let mut most = 0;
        for id in ids {
            let records = harness.await_end(id).records;
            most = records.iter().fold(most, |most, r| most.max(r.drafted));
        }
        let shapes = harness.handle().stats().shapes;
        let names: Vec<String> = shapes.into_iter().map(|shape| shape.shape).collect();
        let new = names[seen..].to_vec();
        seen = names.len();
        (new, most)
    };
    let (plain, most) = names(&mut harness, Some(Shape::Plain));
    assert_eq!((plain, most), (vec!["plain".to_owned()], 0));
    let (tree, most) = names(&mut harness, Some(Shape::Tree(5)));
    assert_eq!(tree, ["tree-5"]);
    assert!(most > 5, "rows are shared: {most} nodes at most");
    let (back, _) = names(&mut harness, None);
    let first = "chain-15".to_owned();
    assert!(back.contains(&first), "auto begins with a chain: {back:?}");
    let refused = harness.handle().set_drafting(Some(Shape::Tree(64)));
    assert!(matches!(refused, Err(SubmitError::Invalid(_))));
    harness.close();
}

#[test]
fn drafting_stops_above_the_batch_limit() {
    let setup = Setup {
        draft_batch_max: 2,
        ..setup(Drafting::Fixed(Shape::Tree(15)))
    };
    let mut harness = Harness::start(&setup);
    harness.gate.close();
    for seed in 0..4 {
        harness.submit(request(6, 30 + 20 * seed as usize, seed));
    }
    harness.gate.await_calls(1);
    harness.gate.open();
    let shapes = std::sync::Arc::clone(&harness.shapes);
    harness.close();
    let drafted = AtomicU64::new(0);
    for step in shapes.lock().unwrap().iter() {
        let drafts = step.iter().any(|shape| *shape != Shape::Plain);
        assert!(!drafts || step.len() <= 2);
        drafted.fetch_add(u64::from(drafts), Ordering::Relaxed);
    }
    assert!(drafted.into_inner() > 0);
}

#[test]
fn draining_takes_nothing_new_and_finishes_the_rest() {
    let mut harness = Harness::start(&setup(Drafting::Auto));
    harness.gate.close();
    let id = harness.submit(request(300, 50, 1));
    harness.handle().drain();
    assert_eq!(harness.handle().status().phase, Phase::Draining);
    let refused = harness.handle().submit(request(3, 5, 1)).unwrap_err();
    assert!(matches!(refused, SubmitError::Unavailable(_)));
    harness.gate.open();
    assert_eq!(harness.await_end(id).completion_tokens, 50);
    while harness.receive() {}
    let refused = harness.handle().submit(request(3, 5, 1)).unwrap_err();
    assert!(matches!(refused, SubmitError::Unavailable(_)));
    harness.handle().abort(id);
    assert_eq!(harness.handle().status().phase, Phase::Stopped);
    harness.check_all();
}

//! Constrained requests over the random pair of the fixtures: in every mode and beside any others
//! they get the tokens of plain decoding under the same constraint, and change no other's.

use super::constraints::{Cycle, Turn, constrained};
use super::fixture_pair::{
    Answer, EXPECTED, answer, assert_expected, auto, chain, plain, requests, spec, start, tree,
};
use crate::{EngineConfig, FinishReason, Request, RequestId};

/// The prompts and options of the free requests, each under a constraint of its own.
fn asked() -> Vec<(Request, Cycle)> {
    let cycles = [
        Cycle::new(2, 9, Turn::Ends),
        Cycle::new(3, 6, Turn::IsReleased),
        Cycle::new(5, 99, Turn::Ends),
        Cycle::new(4, 12, Turn::Ends),
        Cycle::new(7, 99, Turn::Ends),
        Cycle::new(3, 99, Turn::Ends),
        Cycle::new(11, 1, Turn::Ends),
        Cycle::new(2, 1, Turn::IsReleased),
    ];
    let pairs = requests().into_iter().zip(cycles);
    pairs
        .map(|(request, cycle)| (constrained(request, cycle.clone()), cycle))
        .collect()
}

fn alone(config: EngineConfig) -> Vec<Answer> {
    let mut harness = start(spec(), config);
    let mut answers = Vec::new();
    for (request, _) in asked() {
        let id = harness.submit(request);
        answers.push(answer(&mut harness, id));
    }
    harness.drain();
    answers
}

/// All constrained requests and all free ones at once.
fn together(config: EngineConfig) -> (Vec<Answer>, Vec<Answer>) {
    let mut harness = start(spec(), config);
    let mut ids: [Vec<RequestId>; 2] = Default::default();
    let mut constrained = asked().into_iter();
    for request in requests() {
        ids[1].push(harness.submit(request));
        if let Some((request, _)) = constrained.next() {
            ids[0].push(harness.submit(request));
        }
    }
    let answers = ids.map(|ids| {
        let answers = ids.into_iter().map(|id| answer(&mut harness, id));
        answers.collect()
    });
    harness.drain();
    answers.into()
}

#[test]
fn every_mode_gives_what_plain_decoding_gives_under_the_constraint() {
    let expected = alone(plain());
    for (index, (answer, (_, cycle))) in expected.iter().zip(asked()).enumerate() {
        let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
        let mut bound = ids.iter().take(cycle.at).enumerate();
        assert!(
            bound.all(|(i, &id)| cycle.allows(i, id)),
            "{index}: {ids:?}"
        );
        // Without the constraint it would have said something else.
        let free = EXPECTED[index].tokens.iter().map(|token| token.id);
        assert_ne!(free.collect::<Vec<_>>(), ids, "{index}");
    }
    let ended = |index: usize| (expected[index].tokens.len(), expected[index].reason.clone());
    assert_eq!(ended(0), (9, FinishReason::Stop));
    assert_eq!(ended(1), (15, FinishReason::Length));
    assert_eq!(ended(2), (16, FinishReason::Length));
    assert_eq!(ended(3), (12, FinishReason::Stop));
    assert_eq!(ended(6), (1, FinishReason::Stop));
    for mode in [chain(3), chain(7), tree(7), tree(15), tree(63), auto()] {
        let what = format!("{mode:?}");
        let answers = alone(mode);
        for (index, (expected, answer)) in expected.iter().zip(&answers).enumerate() {
            assert_eq!(expected, answer, "request {index}, {what}");
        }
    }
}

#[test]
fn constrained_and_free_requests_share_steps_and_nothing_else() {
    let expected = alone(plain());
    for mode in [plain(), chain(7), tree(15), tree(63), auto()] {
        let what = format!("{mode:?}");
        let (constrained, free) = together(mode);
        assert_expected(&free, &what);
        for (index, (expected, answer)) in expected.iter().zip(&constrained).enumerate() {
            assert_eq!(expected, answer, "request {index}, {what}");
        }
    }
}

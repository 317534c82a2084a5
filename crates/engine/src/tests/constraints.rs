//! Requests that may not emit every token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model::{Constraint, Shape};

use super::harness::{Harness, Setup, VOCAB, request};
use crate::shape::Drafting;
use crate::{ConstraintState, FinishReason, OutputConstraint, Request};

/// What happens to a [`Cycle`] at one of its tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Turn {
    Ends,
    IsReleased,
    Fails,
    /// `mask` panics there.
    Panics,
    /// Nothing is allowed there.
    IsStuck,
    /// The same, where the text may end.
    MayEnd,
}

/// Output token i is i modulo `modulus`, until the turn at token `at`.
#[derive(Clone, Debug)]
pub(crate) struct Cycle {
    pub(crate) modulus: u32,
    pub(crate) at: usize,
    pub(crate) turn: Turn,
    path: Vec<u32>,
    illegal: Option<usize>,
    masked: Arc<AtomicBool>,
}

impl Cycle {
    pub(crate) fn new(modulus: u32, at: usize, turn: Turn) -> Self {
        Cycle {
            modulus,
            at,
            turn,
            path: Vec::new(),
            illegal: None,
            masked: Arc::default(),
        }
    }

    pub(crate) fn allows(&self, index: usize, token: u32) -> bool {
        token % self.modulus == index as u32 % self.modulus
    }
}

impl Constraint for Cycle {
    fn mask(&mut self, words: &mut [u32]) {
        self.masked.store(true, Ordering::Relaxed);
        let behind = self.path.len() >= self.at;
        match self.turn {
            Turn::Ends | Turn::IsStuck | Turn::MayEnd if behind => return,
            Turn::Panics if behind => panic!("a broken constraint"),
            _ => {}
        }
        let index = self.path.len();
        for id in 0..32 * words.len() as u32 {
            if self.allows(index, id) || behind {
                words[id as usize / 32] |= 1 << (id % 32);
            }
        }
    }

    fn accept(&mut self, token: u32) {
        let index = self.path.len();
        let stuck = matches!(self.turn, Turn::IsStuck | Turn::MayEnd) && index >= self.at;
        if index < self.at && !self.allows(index, token) || stuck {
            self.illegal.get_or_insert(index);
        }
        self.path.push(token);
    }

    fn rollback(&mut self, tokens: usize) {
        self.path.truncate(self.path.len() - tokens);
        self.illegal = self.illegal.filter(|&index| index < self.path.len());
    }
}

impl OutputConstraint for Cycle {
    fn state(&self) -> ConstraintState {
        if self.illegal.is_some() {
            let whole = self.turn == Turn::MayEnd;
            return ConstraintState::Blocked { whole };
        }
        match (self.turn, self.path.len() >= self.at) {
            (Turn::Ends, true) => ConstraintState::Complete,
            (Turn::IsReleased, true) => ConstraintState::Released,
            (Turn::Fails, true) => ConstraintState::Failed("the cycle broke".into()),
            _ => ConstraintState::Open,
        }
    }

    fn boxed_clone(&self) -> Box<dyn OutputConstraint> {
        Box::new(self.clone())
    }
}

pub(crate) fn constrained(mut request: Request, constraint: Cycle) -> Request {
    request.constraint = Some(Box::new(constraint));
    request
}

fn obeys(cycle: &Cycle, tokens: &[u32]) -> bool {
    let mut pairs = tokens.iter().take(cycle.at).enumerate();
    pairs.all(|(index, &token)| cycle.allows(index, token))
}

const SHAPES: [Drafting; 5] = [
    Drafting::Off,
    Drafting::Fixed(Shape::Chain(7)),
    Drafting::Fixed(Shape::Tree(15)),
    Drafting::Fixed(Shape::Tree(63)),
    Drafting::Auto,
];

fn start(drafting: Drafting) -> Harness {
    Harness::start(&Setup {
        drafting,
        skip_warmup: drafting != Drafting::Auto,
        ..Setup::default()
    })
}

/// Ends, at every length, in every shape: what plain decoding gives.
#[test]
fn a_complete_text_ends_its_request() {
    let mut expected = Vec::new();
    for drafting in SHAPES {
        let mut harness = start(drafting);
        let mut answers = Vec::new();
        for at in 1..=40 {
            let cycle = Cycle::new(3, at, Turn::Ends);
            let (tokens, finish) = harness.run(constrained(request(30, 60, 5), cycle.clone()));
            assert!(obeys(&cycle, &tokens), "{drafting:?}: {tokens:?}");
            assert_eq!(finish.reason, FinishReason::Stop);
            assert_eq!((tokens.len(), finish.completion_tokens), (at, at));
            answers.push(tokens);
        }
        harness.drain();
        if expected.is_empty() {
            expected = answers.clone();
        }
        assert_eq!(answers, expected, "{drafting:?}");
    }
}

#[test]
fn the_limit_comes_first_unless_the_text_ends_with_it() {
    for drafting in SHAPES {
        let mut harness = start(drafting);
        for (max_tokens, reason) in [
            (9, FinishReason::Length),
            (10, FinishReason::Stop),
            (11, FinishReason::Stop),
        ] {
            let cycle = Cycle::new(5, 10, Turn::Ends);
            let (tokens, finish) = harness.run(constrained(request(30, max_tokens, 5), cycle));
            assert_eq!((tokens.len(), finish.reason), (max_tokens.min(10), reason));
        }
        harness.drain();
    }
}

#[test]
fn a_released_request_goes_on_freely() {
    for drafting in SHAPES {
        let mut harness = start(drafting);
        let cycle = Cycle::new(4, 7, Turn::IsReleased);
        let masked = Arc::clone(&cycle.masked);
        let asked = constrained(request(30, 80, 5), cycle.clone());
        let (tokens, finish) = harness.run(asked);
        assert!(obeys(&cycle, &tokens), "{tokens:?}");
        assert!(
            !obeys(&Cycle::new(4, 80, Turn::Ends), &tokens),
            "{tokens:?}"
        );
        assert_eq!((tokens.len(), finish.reason), (80, FinishReason::Length));
        assert!(masked.load(Ordering::Relaxed));
        harness.drain();
    }
}

/// Whatever goes wrong in a constraint, its own request fails, behind the tokens that it allowed.
#[test]
fn a_failure_is_that_of_its_own_request() {
    for drafting in SHAPES {
        let mut harness = start(drafting);
        for (turn, word, at) in [
            (Turn::Fails, "the cycle broke", 6),
            (Turn::Fails, "the cycle broke", 1),
            (Turn::Panics, "panicked", 6),
            (Turn::Panics, "panicked", 0),
        ] {
            let cycle = Cycle::new(2, at, turn);
            let free = harness.submit(request(40, 50, 8));
            let broken = harness.submit(constrained(request(30, 60, 5), cycle.clone()));
            let finish = harness.await_end(broken);
            let tokens = harness.tokens(broken);
            let FinishReason::Error(text) = &finish.reason else {
                panic!("{turn:?} at {at}: {:?}", finish.reason)
            };
            assert!(text.contains(word), "{text}");
            assert!(
                tokens.len() <= at && obeys(&cycle, &tokens),
                "{turn:?} {tokens:?}"
            );
            assert_eq!(finish.completion_tokens, tokens.len());
            assert_eq!(harness.await_end(free).reason, FinishReason::Length);
            harness.requests.remove(&broken);
            harness.news.remove(&broken);
            harness.check_free();
        }
        harness.handle().drain();
        while harness.receive() {}
    }
}

/// Where nothing is left of what may follow, a request ends before the token that came all the same.
#[test]
fn a_blocked_request_ends_before_what_may_not_come() {
    let mut expected = Vec::new();
    for drafting in SHAPES {
        let mut harness = start(drafting);
        let mut answers = Vec::new();
        let (alone, _) = harness.run(request(40, 50, 8));
        for (turn, reason) in [
            (Turn::IsStuck, FinishReason::Blocked),
            (Turn::MayEnd, FinishReason::Stop),
        ] {
            for at in [0, 1, 2, 6, 17, 33] {
                let cycle = Cycle::new(2, at, turn);
                let free = harness.submit(request(40, 50, 8));
                let (tokens, finish) = harness.run(constrained(request(30, 60, 5), cycle.clone()));
                assert!(obeys(&cycle, &tokens), "{drafting:?}: {tokens:?}");
                assert_eq!(finish.reason, reason, "{drafting:?} at {at}");
                assert_eq!((tokens.len(), finish.completion_tokens), (at, at));
                assert_eq!(harness.await_end(free).reason, FinishReason::Length);
                assert_eq!(harness.tokens(free), alone);
                answers.push(tokens);
            }
        }
        // The limit may come first, or at the same token.
        for (max_tokens, reason) in [(6, FinishReason::Length), (7, FinishReason::Blocked)] {
            let cycle = Cycle::new(2, 6, Turn::IsStuck);
            let (tokens, finish) = harness.run(constrained(request(30, max_tokens, 5), cycle));
            assert_eq!((tokens.len(), finish.reason), (6, reason));
        }
        harness.drain();
        if expected.is_empty() {
            expected = answers.clone();
        }
        assert_eq!(answers, expected, "{drafting:?}");
    }
}

#[test]
fn a_constrained_request_can_be_aborted_and_finished() {
    let mut harness = start(Drafting::Fixed(Shape::Tree(15)));
    harness.gate.close();
    let cycle = Cycle::new(3, 900, Turn::Ends);
    let ids =
        [1, 2, 3].map(|seed| harness.submit(constrained(request(20, 900, seed), cycle.clone())));
    harness.gate.permit(4);
    harness.gate.await_calls(5);
    harness.handle().abort(ids[0]);
    harness.handle().finish(ids[1], 2);
    harness.gate.open();
    assert_eq!(harness.await_end(ids[0]).reason, FinishReason::Aborted);
    let finish = harness.await_end(ids[1]);
    assert_eq!(
        (finish.reason, finish.completion_tokens),
        (FinishReason::Finished, 2)
    );
    assert_eq!(harness.await_end(ids[2]).completion_tokens, 900);
    harness.drain();
}

#[test]
fn stop_ids_and_minimums_count_beside_the_mask() {
    for drafting in SHAPES {
        let mut harness = start(drafting);
        let cycle = Cycle::new(2, 200, Turn::Ends);
        let mut asked = constrained(request(30, 200, 5), cycle.clone());
        asked.stop_ids = (0..VOCAB as u32).filter(|id| id % 16 < 4).collect();
        asked.min_tokens = 8;
        let (tokens, finish) = harness.run(asked.clone());
        assert_eq!(finish.reason, FinishReason::Stop);
        assert!(tokens.len() > 8 && obeys(&cycle, &tokens), "{tokens:?}");
        let (last, before) = tokens.split_last().expect("there are tokens");
        assert!(asked.stop_ids.contains(last));
        assert!(!before.iter().any(|id| asked.stop_ids.contains(id)));
        harness.drain();
    }
}

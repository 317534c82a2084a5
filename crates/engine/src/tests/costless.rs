//! The stub of the benches.

use std::time::Duration;

use super::harness::{Harness, request};
use crate::Phase;
use crate::stub::{StubSpec, start};

#[test]
fn every_request_gets_as_many_words_as_it_asked_for() {
    let spec = StubSpec {
        words: vec![3, 5, 8],
        vocab_used: 64,
        step: Duration::ZERO,
        running_max: 2,
        context_length: 4096,
    };
    let (engine, clock) = start(spec).unwrap();
    let mut harness = Harness::around(engine);
    harness.await_phase(Phase::Ready);
    let (tokens, finish) = harness.run(request(10, 7, 1));
    assert_eq!(tokens, [3, 5, 8, 3, 5, 8, 3]);
    assert_eq!(finish.completion_tokens, 7);
    assert_eq!(clock.times().len(), 7);
    // A prompt of two chunks: the call with the first one makes no token, so its word is left out.
    let (tokens, _) = harness.run(request(3000, 2, 1));
    assert_eq!(tokens, [8, 3]);
    assert_eq!(clock.times().len(), 10);
    harness.drain();
}

//! Requests that give way before they have said anything.

use super::harness::{Harness, Setup, request};

/// A long prompt is read in small chunks while another answer takes the last pages: it starts again
/// behind that answer, and neither notices.
#[test]
fn a_prompt_that_is_being_read_gives_way_and_is_read_again() {
    for scored in [None, Some(2)] {
        let mut harness = Harness::start(&Setup {
            running_max: 2,
            context: 2048,
            pages: 27,
            chunk: 64,
            ..Setup::default()
        });
        harness.gate.close();
        let talks = harness.submit(request(20, 500, 1));
        let mut long = request(1530, 20, 2);
        long.prompt_logprobs = scored;
        let reads = harness.submit(long);
        harness.gate.open();
        harness.await_end(talks);
        assert!(harness.tokens(reads).is_empty(), "it gave way before");
        harness.await_end(reads);
        let stats = harness.handle().stats();
        assert_eq!((stats.preemptions, stats.replayed_tokens), (1, 0));
        let positions: Vec<_> = harness.news[&reads].prompt_logprobs.iter().collect();
        assert_eq!(positions.len(), scored.map_or(0, |_| 1529));
        harness.close();
    }
}

//! The prefix cache over the random pair of the fixtures: what is found again gives the same
//! answers.

use super::fixture_pair::{EXPECTED, answer, plain, requests, spec, start, tree};
use crate::{EngineConfig, PrefixCacheConfig};

fn cached(config: EngineConfig, snapshots: usize, host_snapshots: usize) -> EngineConfig {
    EngineConfig {
        prefix_cache: Some(PrefixCacheConfig {
            interval: 64,
            snapshots: Some(snapshots),
            host_snapshots,
            decoded: false,
        }),
        ..config
    }
}

#[test]
fn the_second_time_all_whole_pages_are_found() {
    for (config, chunk, places) in [(plain(), 64, (16, 0)), (tree(15), 256, (1, 16))] {
        let config = EngineConfig {
            prefill_chunk: chunk,
            ..cached(config, places.0, places.1)
        };
        let mut harness = start(spec(), config);
        for round in 0..2 {
            for (expected, request) in EXPECTED.iter().zip(requests()) {
                let whole = (request.prompt.len() - 1) / 64 * 64;
                let found = match round == 1 && request.prompt_logprobs.is_none() {
                    true => whole,
                    false => 0,
                };
                let id = harness.submit(request);
                assert_eq!(expected, &answer(&mut harness, id), "round {round}");
                assert_eq!(harness.await_end(id).cached_tokens, found, "round {round}");
            }
        }
        let stats = harness.handle().stats().prefix_cache;
        assert_eq!(stats.fetches > 0, places.1 > 0, "{stats:?}");
        harness.drain();
    }
}

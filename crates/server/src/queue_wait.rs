//! How long a request that comes now would wait: the hint in `Retry-After`.

use engine::EngineStats;

/// Shortest and longest hint, in milliseconds.
const WAIT_MIN_MS: f64 = 1_000.0;
const WAIT_MAX_MS: f64 = 60_000.0;
/// What a request is taken to need where nothing was measured: eight of them a second.
const UNKNOWN_MS: f64 = 125.0;

/// Milliseconds until what waits now is done: the tokens of the waiting prompts, and as many of
/// output as requests had on average, over the tokens per second of the last seconds.
pub(crate) fn wait_ms(stats: &EngineStats) -> u64 {
    let waiting = stats.waiting as f64;
    let had_slot = stats.ended as f64 + stats.running as f64;
    let output = stats.generated_tokens as f64 / had_slot.max(1.0);
    let queued = stats.waiting_tokens as f64 + waiting * output;
    let speed = stats.prompt_tokens_per_second + stats.tokens_per_second;
    let ms = match speed > 0.0 {
        true => queued / speed * 1e3,
        false => waiting * UNKNOWN_MS,
    };
    ms.clamp(WAIT_MIN_MS, WAIT_MAX_MS).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_over_what_was_done_lately() {
        let mut stats = EngineStats {
            waiting: 4,
            waiting_tokens: 1_000,
            running: 2,
            ended: 8,
            generated_tokens: 2_000,
            tokens_per_second: 100.0,
            prompt_tokens_per_second: 200.0,
            ..EngineStats::default()
        };
        // 1,000 of prompts and four times 200 of output at 300 a second.
        assert_eq!(wait_ms(&stats), 6_000);
        stats.waiting_tokens = 1_000_000;
        assert_eq!(wait_ms(&stats), 60_000);
        (stats.waiting, stats.waiting_tokens) = (0, 0);
        assert_eq!(wait_ms(&stats), 1_000);
    }

    #[test]
    fn without_a_measurement_the_number_of_requests_decides() {
        let waits = |waiting| {
            wait_ms(&EngineStats {
                waiting,
                ..EngineStats::default()
            })
        };
        assert_eq!((waits(0), waits(16), waits(4_000)), (1_000, 2_000, 60_000));
    }
}

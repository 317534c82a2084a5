//! Sizes of the KV pool on a device with memory of its own.

use super::*;

const GIB: u64 = 1 << 30;

fn bytes(fixed: u64, page: u64) -> PlanBytes {
    PlanBytes { fixed, page }
}

#[test]
fn a_pool_takes_what_is_left_of_its_share() {
    let memory = DeviceMemory {
        free: 140 * GIB,
        total: 141 * GIB,
    };
    // 141 * 0.88 = 124.08, less the GiB that others have, less 60.
    let pages = pages_in(share(memory, 0.88), bytes(60 * GIB, 5 << 20));
    let expected = (63.08 * 1024.0 / 5.0) as usize;
    assert!(pages.abs_diff(expected) <= 1, "{pages} {expected}");
    assert_eq!(pages_in(share(memory, 1.0), bytes(130 * GIB, GIB)), 10);
    for (fraction, fixed) in [(0.88, 124 * GIB), (0.1, 14 * GIB), (1.0, u64::MAX)] {
        assert_eq!(pages_in(share(memory, fraction), bytes(fixed, 5 << 20)), 0);
    }
}

/// Sizes the pool of the fixture's settings on a device that holds this many pages.
fn sized(config: &EngineConfig, holds: Option<usize>) -> Result<(usize, usize), EngineError> {
    let mut settings = super::tests::ok(config).0;
    settings.size_pool(config, 512, |_| holds)?;
    Ok((settings.runner.context_max, settings.runner.kv_pages))
}

#[test]
fn the_pool_is_no_larger_than_it_can_use_and_no_smaller_than_a_page() {
    let config = super::tests::config();
    // 4 sequences of 512 tokens are 32 pages.
    let cases = [(100, (512, 32)), (32, (512, 32)), (31, (512, 31))];
    for (holds, expected) in cases {
        assert_eq!(sized(&config, Some(holds)).unwrap(), expected);
    }
    assert_eq!(
        sized(&config, Some(3)).unwrap(),
        (192, 3),
        "a shorter context"
    );
    assert_eq!(sized(&config, Some(0)).unwrap(), (64, 1));
    let given = EngineConfig {
        tokens_total: Some(640),
        ..config
    };
    assert_eq!(
        sized(&given, Some(3)).unwrap(),
        (512, 10),
        "what was asked for"
    );
}

#[test]
fn bytes_of_a_page_are_those_of_the_plan() {
    let cpu = ops::Cpu::default();
    let (settings, info) = super::tests::ok(&super::tests::config());
    let (target, drafter) = super::tests::configurations();
    let bytes = page_bytes(&cpu, &target, Some(&drafter), &settings.runner);
    let pages = settings.runner.kv_pages as u64;
    assert_eq!(bytes.fixed + pages * bytes.page, info.plan.total_bytes());
}

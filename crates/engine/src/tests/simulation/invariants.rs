//! What holds behind every turn.

use std::collections::BTreeSet;

use ops::PAGE_TOKENS;

use super::coverage::Coverage;
use super::ledger::Ledger;
use super::progress::{Progress, Rank};
use crate::prefix_cache::{Place, PrefixCache};
use crate::scheduler::Scheduler;
use crate::sequence::Stage;
use crate::tests::stub_memory::{Memory, digest};
use crate::{EngineStats, RequestId};

/// Pages, slots and the cache are what they are counted as.
pub(super) fn ownership(scheduler: &Scheduler) {
    let running = scheduler.running.iter();
    let tables = running.flat_map(|sequence| sequence.pages.pages().iter().copied());
    let cached = scheduler.cache.iter().flat_map(PrefixCache::pages);
    scheduler.kv.audit_with(tables, cached).expect("pages");
    if let Some(cache) = &scheduler.cache {
        cache.audit_idle().expect("a sound cache");
    }
    let slots: BTreeSet<usize> = (scheduler.running.iter())
        .map(|sequence| sequence.slot.index())
        .collect();
    assert_eq!(slots.len(), scheduler.running.len(), "a slot twice");
    assert_eq!(slots.len(), scheduler.slots.used(), "slots");
    assert!(slots.iter().all(|&slot| slot < scheduler.slots.total()));
}

/// What the cache says it holds is what the device holds, where that was written.
pub(super) fn contents(scheduler: &Scheduler, memory: &mut Memory, filled: &mut u64) {
    let Some(cache) = &scheduler.cache else {
        return;
    };
    let touched = memory.take_touched();
    let touched = |page: u32| touched.get(page as usize).copied().unwrap_or_default();
    let copies = memory.snapshots.filled + memory.host.filled;
    if !cache.pages().any(touched) && *filled == copies {
        return;
    }
    *filled = copies;
    let edges = cache.edges();
    let mut ends: Vec<(usize, u64)> = Vec::with_capacity(edges.len());
    for edge in &edges {
        let (mut length, mut all) = edge.above.map_or((0, 0), |above| ends[above]);
        for (tokens, &page) in edge.tokens.chunks_exact(PAGE_TOKENS).zip(edge.pages) {
            let rows = *memory.page(page as usize);
            for (&token, row) in tokens.iter().zip(rows) {
                all = digest(all, token);
                assert_eq!(all, row, "cached page {page} was written");
            }
            length += PAGE_TOKENS;
        }
        ends.push((length, all));
        let kept = match edge.snapshot {
            None => continue,
            Some(Place::Device(place)) => memory.snapshots.get(place),
            Some(Place::Host(place)) => memory.host.get(place),
        };
        assert_eq!(
            (kept.length, kept.digest),
            (length, all),
            "the snapshot in {:?}",
            edge.snapshot
        );
    }
}

/// Gauges say what is true; totals never fall.
pub(super) fn gauges(scheduler: &Scheduler, stats: &EngineStats, before: &EngineStats) {
    let own = (stats.running, stats.waiting, stats.waiting_tokens);
    let waiting = scheduler.waiting.iter();
    let tokens = waiting.map(|waiting| waiting.request.prompt.len());
    let true_ones = (
        scheduler.running.len(),
        scheduler.waiting.iter().count(),
        tokens.sum(),
    );
    assert_eq!(own, true_ones, "running, waiting, waiting tokens");
    let tables = scheduler.running.iter();
    let pages: BTreeSet<u32> = tables
        .flat_map(|sequence| sequence.pages.pages().iter().copied())
        .collect();
    assert_eq!(
        (stats.pages_used, stats.slots_used),
        (pages.len(), scheduler.running.len()),
        "pages and slots in use"
    );
    let cache = scheduler.cache.as_ref().map(PrefixCache::stats);
    assert_eq!(stats.prefix_cache, cache.unwrap_or_default());
    let totals = |stats: &EngineStats| {
        [
            stats.prompt_tokens,
            stats.drafts,
            stats.draft_tokens,
            stats.accepted_tokens,
            stats.preemptions,
            stats.replayed_tokens,
            stats.ended,
            stats.prefix_cache.query_tokens,
            stats.prefix_cache.hit_tokens,
            stats.prefix_cache.pages_evicted,
            stats.prefix_cache.snapshots_evicted,
        ]
    };
    let pairs = totals(before).into_iter().zip(totals(stats));
    assert!(pairs.into_iter().all(|(before, now)| before <= now));
    assert!(stats.prefix_cache.hit_tokens <= stats.prefix_cache.query_tokens);
}

/// Nobody is lost, and nobody stays behind an end.
pub(super) fn nobody_is_lost(scheduler: &Scheduler, ledger: &Ledger) {
    let running = scheduler.running.iter().map(|sequence| sequence.id);
    let waiting = scheduler.waiting.iter().map(|waiting| waiting.id);
    let mut here: Vec<RequestId> = running.chain(waiting).collect();
    here.sort_unstable();
    assert!(here.iter().eq(ledger.live.keys()), "{here:?} are here");
}

/// The queue is in order, who started was before all that wait, who gave way was behind all that
/// still run. `waiting`: the queue before the turn; `progress`: what ran then.
pub(super) fn order(
    scheduler: &Scheduler,
    waiting: &[Rank],
    progress: &Progress,
    coverage: &mut Coverage,
) {
    let now: Vec<Rank> = (scheduler.waiting.iter())
        .map(|waiting| (waiting.request.priority, waiting.id))
        .collect();
    assert!(now.is_sorted_by(|a, b| a < b), "the queue is in order");
    let started = scheduler.running.iter().map(super::progress::rank);
    let started = started.filter(|rank| !progress.running.contains_key(&rank.1));
    let still = waiting.iter().find(|rank| now.binary_search(rank).is_ok());
    for rank in started {
        assert!(
            waiting.binary_search(&rank).is_ok(),
            "{rank:?} came from nowhere"
        );
        assert!(still.is_none_or(|still| &rank < still), "{rank:?} overtook");
    }
    let last = scheduler.running.iter().map(super::progress::rank).max();
    for seen in progress.running.values() {
        if now.binary_search(&seen.rank).is_err() {
            continue;
        }
        assert!(last < Some(seen.rank), "{seen:?} gave way to {last:?}");
        coverage.count(
            match seen.stage {
                Stage::Prefill => "preempted in prefill",
                Stage::Replay => "preempted in replay",
                Stage::Decode => "preempted in decode",
            },
            1,
        );
    }
}

/// With nothing left and the cache empty, nothing is owned.
pub(super) fn nothing_is_left(scheduler: &Scheduler, stats: &EngineStats, ledger: &Ledger) {
    scheduler.audit().expect("everything came back");
    assert!(scheduler.is_empty() && scheduler.kv.used() == 0);
    let gauges = [
        stats.running,
        stats.waiting,
        stats.waiting_tokens,
        stats.pages_used,
        stats.slots_used,
        stats.prefix_cache.pages,
        stats.prefix_cache.device_snapshots,
        stats.prefix_cache.host_snapshots,
    ];
    assert_eq!(gauges, [0; 8]);
    assert_eq!(
        (stats.generated_tokens, stats.ended),
        (ledger.kept, ledger.ended)
    );
    let by_shape: u64 = stats.shapes.iter().map(|shape| shape.steps).sum();
    assert_eq!(by_shape, stats.drafts);
}

//! What happened in a simulation: a test that nothing happens in shows nothing.

use std::collections::BTreeMap;
use std::fmt;

/// Events by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Coverage(BTreeMap<&'static str, u64>);

/// Turns in which each of these comes up once at least: a quarter of what is usual, or less.
const EXPECTED: &[(&str, u64)] = &[
    ("aborted in decode", 1000),
    ("aborted in prefill", 5000),
    ("aborted in replay", 100_000),
    ("aborted new", 1000),
    ("aborted preempted", 40_000),
    ("accepted drafts", 5),
    ("constraints blocked", 8000),
    ("constraints failed", 8000),
    ("copies to the device", 200),
    ("copies to the host", 1000),
    ("expired", 1000),
    ("expired in vain", 2000),
    ("finished in decode", 1000),
    ("finished in prefill", 5000),
    ("finished in replay", 60_000),
    ("finished new", 1000),
    ("finished preempted", 40_000),
    ("flushed", 1000),
    ("flushed in vain", 2000),
    ("hits", 2000),
    ("not finite", 15_000),
    ("pages evicted", 100),
    ("preempted while scored", 40_000),
    ("preemptions", 3000),
    ("refused", 400),
    ("replayed tokens", 50),
    ("requests", 100),
    ("resumed outputs", 30_000),
    ("sequence steps", 5),
    ("shutdowns", 25_000),
    ("snapshots evicted", 200),
];

impl Coverage {
    pub(super) fn count(&mut self, event: &'static str, times: u64) {
        *self.0.entry(event).or_default() += times;
    }

    pub(super) fn get(&self, event: &str) -> u64 {
        self.0.get(event).copied().unwrap_or_default()
    }

    pub(super) fn add(&mut self, other: &Coverage) {
        other.0.iter().for_each(|(event, &n)| self.count(event, n));
    }

    /// Fails if anything came up less often than so many turns let expect.
    pub(super) fn check(&self, turns: u64) {
        let rare = |&&(event, each): &&(&str, u64)| self.get(event) < (turns / each).max(1);
        let rare: Vec<_> = EXPECTED.iter().filter(rare).collect();
        assert!(rare.is_empty(), "too rare in {turns} turns: {rare:?}");
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (event, times) in &self.0 {
            writeln!(out, "{times:>12}  {event}")?;
        }
        Ok(())
    }
}

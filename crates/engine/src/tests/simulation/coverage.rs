//! What happened in a simulation: a test that nothing happens in shows nothing.

use std::collections::BTreeMap;
use std::fmt;

/// Events by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Coverage(BTreeMap<&'static str, u64>);

/// Turns in which each of these must have come up once at least; a tenth of what is usual or less.
const EXPECTED: [(&str, u64); 0] = [];

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

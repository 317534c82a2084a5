//! What became of every request.

use std::collections::BTreeMap;
use std::fmt;

use crate::client::Kind;

/// The end of a request as its client saw it.
#[derive(Debug)]
pub enum Outcome {
    /// A whole answer; milliseconds to its first text, where it was a stream.
    Finished(Option<f64>),
    /// The client left.
    Left,
    /// Ended by `/abort_request`.
    Aborted,
    /// The queue was full.
    Refused,
    /// Refused for what it asked, as it should be.
    Invalid,
    /// Anything else.
    Wrong(String),
}

/// Counts by kind, and how long first tokens took.
#[derive(Default)]
pub struct Tally {
    sent: BTreeMap<Kind, u64>,
    /// Finished, left, aborted, refused, invalid, wrong.
    ended: BTreeMap<Kind, [u64; 6]>,
    first_ms: Vec<f64>,
    wrong: Vec<String>,
}

/// Faults that are shown in full.
const WRONG_SHOWN: usize = 10;

impl Tally {
    /// A request is on its way.
    pub fn send(&mut self, kind: Kind) {
        *self.sent.entry(kind).or_default() += 1;
    }

    /// It has ended.
    pub fn end(&mut self, kind: Kind, outcome: Outcome) {
        let column = match outcome {
            Outcome::Finished(first_ms) => {
                self.first_ms.extend(first_ms);
                0
            }
            Outcome::Left => 1,
            Outcome::Aborted => 2,
            Outcome::Refused => 3,
            Outcome::Invalid => 4,
            Outcome::Wrong(reason) => {
                self.wrong.push(format!("{kind:?}: {reason}"));
                5
            }
        };
        self.ended.entry(kind).or_default()[column] += 1;
    }

    /// Requests that were sent.
    pub fn sent(&self) -> u64 {
        self.sent.values().sum()
    }

    /// Answers that were wrong, ends that are missing, kinds that never got through.
    pub fn faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self.wrong.iter().take(WRONG_SHOWN).cloned().collect();
        if self.wrong.len() > WRONG_SHOWN {
            faults.push(format!("{} more", self.wrong.len() - WRONG_SHOWN));
        }
        let ended: u64 = self.ended.values().flatten().sum();
        if ended != self.sent() {
            faults.push(format!("{} requests sent, {ended} ended", self.sent()));
        }
        for kind in Kind::ALL {
            let counts = self.ended.get(&kind).copied().unwrap_or_default();
            if counts == [0; 6] || counts[3] == counts.iter().sum::<u64>() {
                faults.push(format!(
                    "no {kind:?} request got through: the run is too short"
                ));
            }
        }
        faults
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, sent: u64, counts: [u64; 6]| {
            write!(f, "{name:12} {sent:6}")?;
            counts
                .iter()
                .try_for_each(|count| write!(f, " {count:8}"))?;
            writeln!(f)
        };
        writeln!(
            f,
            "request        sent finished     left  aborted  refused  invalid    wrong"
        )?;
        let mut sums = [0; 6];
        for (kind, sent) in &self.sent {
            let counts = self.ended.get(kind).copied().unwrap_or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
            row(f, &format!("{kind:?}"), *sent, counts)?;
        }
        row(f, "all", self.sent(), sums)?;
        let mut sorted = self.first_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (sorted.len() as f64 * share).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        write!(
            f,
            "first text of {} streams: p50 {:.0} ms, p99 {:.0} ms",
            sorted.len(),
            at(0.5),
            at(0.99)
        )
    }
}

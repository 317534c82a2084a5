//! What an engine that is not ready yet is doing.

use std::time::Duration;

use engine::{Phase, Status};

/// One thing that takes a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stage {
    /// What it is.
    pub(crate) name: &'static str,
    /// Bytes.
    pub(crate) done: u64,
    /// Bytes; 0 = not known.
    pub(crate) total: u64,
    /// Since it began.
    pub(crate) age: Duration,
}

impl Stage {
    /// What an engine that is not ready is doing; `None` once it is or has failed.
    pub(crate) fn of(status: &Status) -> Option<Self> {
        let (name, total) = match status.phase {
            Phase::Init => ("Reading the configuration", 0),
            Phase::Download => ("Downloading", status.bytes_total),
            Phase::Weights => ("Loading weights", status.bytes_total),
            Phase::Warmup => ("Warming up", 0),
            Phase::Ready | Phase::Draining | Phase::Failed | Phase::Stopped => return None,
        };
        Some(Stage {
            name,
            done: status.bytes_done,
            total,
            age: status.phase_age,
        })
    }

    /// As a line of text.
    pub(crate) fn line(&self) -> String {
        if self.total == 0 {
            return self.name.to_owned();
        }
        let percent = 100.0 * self.done as f64 / self.total as f64;
        let mut line = format!(
            "{} {percent:.0} % ({} of {}",
            self.name,
            size(self.done),
            size(self.total)
        );
        let seconds = self.age.as_secs_f64();
        if seconds > 0.0 {
            line.push_str(&format!(", {:.2} GB/s", self.done as f64 / 1e9 / seconds));
        }
        line.push(')');
        line
    }
}

/// Decimal units: files and memory are sold in them.
fn size(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. => format!("{:.2} GB", bytes as f64 / 1e9),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_and_how_fast() {
        let mut stage = Stage {
            name: "Loading weights",
            done: 0,
            total: 0,
            age: Duration::from_secs(2),
        };
        assert_eq!(stage.line(), "Loading weights");
        stage.done = 500_000_000;
        stage.total = 2_000_000_000;
        assert_eq!(
            stage.line(),
            "Loading weights 25 % (500.0 MB of 2.00 GB, 0.25 GB/s)"
        );
        stage.age = Duration::ZERO;
        assert_eq!(stage.line(), "Loading weights 25 % (500.0 MB of 2.00 GB)");
    }
}

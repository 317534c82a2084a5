//! What makes a memory plan smaller that does not fit.

use engine::MemoryPlan;

/// Flags and what of a plan they make smaller.
const FLAGS: &[(&str, &str)] = &[
    ("context-length", "KV pages"),
    ("max-total-tokens", "KV pages"),
    ("contexts", "KV pages"),
    ("prefills", "KV pages"),
    ("max-running-requests", "all but weights and workspace"),
    ("batches", "all but weights and workspace"),
    ("concurrency", "all but weights and workspace"),
    ("chunked-prefill-size", "workspace"),
    ("speculative-ddtree-budget", "journal"),
];

/// What a plan lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes of all weights.
    weights: u64,
    /// Of these, the drafter's.
    drafter: u64,
    /// Bytes that may be taken.
    room: u64,
    cpu: bool,
}

impl Shortage {
    /// Of this plan on this device.
    pub fn new(plan: &MemoryPlan, room: u64, device: &str) -> Self {
        let sum = |part: &str| {
            let lines = plan.lines.iter();
            lines
                .filter(|line| line.part.ends_with(part))
                .map(|line| line.bytes)
                .sum()
        };
        Shortage {
            weights: sum("weights"),
            drafter: sum("drafter weights"),
            room,
            cpu: device == "cpu",
        }
    }

    /// A line for a command that has the flags of which `has` says so; `dtype` is what it was given.
    pub fn hint(&self, has: impl Fn(&str) -> bool, dtype: Option<&str>) -> String {
        let alone = self.weights > self.room;
        let mut ways = Vec::new();
        // Elsewhere that is the default.
        if self.cpu && has("dtype") && dtype != Some("bf16") {
            ways.push("--dtype bf16 (half of weights and pages)".to_owned());
        }
        if !alone {
            let known = FLAGS.iter().filter(|(flag, _)| has(flag));
            ways.extend(known.map(|(flag, part)| format!("--{flag} ({part})")));
        }
        if self.drafter > 0 && has("speculative-algorithm") {
            ways.push("--speculative-algorithm NONE (no drafter)".to_owned());
        }
        if !self.cpu && has("mem-fraction-static") {
            ways.push("a GPU's share is --mem-fraction-static".to_owned());
        }
        if ways.is_empty() {
            ways.push("only another model is".to_owned());
        }
        let ways = ways.join(", ");
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        match alone {
            false => format!("smaller: {ways}"),
            true => format!(
                "the weights alone take {:.0} MiB, {:.0} may be taken; smaller: {ways}",
                mebibytes(self.weights),
                mebibytes(self.room)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortage(weights: u64, room: u64, cpu: bool) -> Shortage {
        Shortage {
            weights: weights << 20,
            drafter: 0,
            room: room << 20,
            cpu,
        }
    }

    #[test]
    fn only_flags_that_the_command_has_are_named() {
        let hint = shortage(1, 2, true).hint(|flag| flag == "context-length", None);
        assert_eq!(hint, "smaller: --context-length (KV pages)");
        let hint = shortage(1, 2, false).hint(|_| true, None);
        for (flag, _) in FLAGS {
            assert!(hint.contains(&format!("--{flag} ")), "{hint}");
        }
        assert!(!hint.contains("--dtype"), "{hint}");
        assert!(hint.contains("--mem-fraction-static"), "{hint}");
    }

    #[test]
    fn weights_that_are_too_large_alone_are_told() {
        let hint = shortage(9, 2, true).hint(|_| true, None);
        let expected = "the weights alone take 9 MiB, 2 may be taken; smaller: --dtype bf16 (half of \
                        weights and pages)";
        assert_eq!(hint, expected);
        let hint = shortage(9, 2, true).hint(|_| true, Some("bf16"));
        assert!(hint.ends_with("smaller: only another model is"), "{hint}");
        let drafted = Shortage {
            drafter: 1 << 20,
            ..shortage(9, 2, true)
        };
        let hint = drafted.hint(|_| true, Some("bf16"));
        assert!(hint.contains("--speculative-algorithm NONE"), "{hint}");
    }
}

//! The objects `usage` and `metrics` of an answer.

use engine::{Algorithm, Budget, ModelInfo, RequestStats};
use serde_json::{Map, Value, json};

use crate::sequence_group::{SequenceGroup, TokenCounts};

/// `usage`.
pub(crate) fn usage(counts: TokenCounts) -> Value {
    let TokenCounts {
        prompt,
        cached,
        completion,
        reasoning,
    } = counts;
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
        "reasoning_tokens": reasoning,
    })
}

/// Counters of several sequences as one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Summary {
    tokens: usize,
    /// Tokens that were not the first of their sequence.
    later_tokens: usize,
    stats: RequestStats,
    /// Sum over sequences; `stats` holds the longest.
    decode_ms: f64,
}

impl Summary {
    /// Of sequences that have ended: output tokens and counters of each.
    pub(crate) fn of(finished: &[(usize, RequestStats)]) -> Self {
        let mut summary = Summary::default();
        summary.stats.acceptance_histogram = vec![0; 16];
        for (tokens, stats) in finished {
            summary.tokens += tokens;
            summary.later_tokens += tokens.saturating_sub(1);
            summary.decode_ms += stats.decode_ms;
            let sum = &mut summary.stats;
            sum.steps += stats.steps;
            sum.drafted += stats.drafted;
            sum.accepted += stats.accepted;
            sum.queue_ms = sum.queue_ms.max(stats.queue_ms);
            sum.prefill_ms = sum.prefill_ms.max(stats.prefill_ms);
            sum.decode_ms = sum.decode_ms.max(stats.decode_ms);
            for (sum, count) in sum
                .acceptance_histogram
                .iter_mut()
                .zip(&stats.acceptance_histogram)
            {
                *sum += count;
            }
        }
        summary
    }

    fn acceptance_rate(&self) -> f64 {
        self.stats.accepted as f64 / self.stats.drafted.max(1) as f64
    }

    fn metrics(&self, first_token_ms: Option<f64>, info: &ModelInfo) -> Value {
        let stats = &self.stats;
        let per_second = match stats.decode_ms > 0.0 {
            true => Some(self.later_tokens as f64 / (stats.decode_ms / 1e3)),
            false => None,
        };
        let between = match self.later_tokens {
            0 => None,
            tokens => Some(self.decode_ms / tokens as f64),
        };
        json!({
            "time_to_first_token_ms": first_token_ms,
            "queue_time_ms": stats.queue_ms,
            "prefill_time_ms": stats.prefill_ms,
            "generation_time_ms": stats.decode_ms,
            "mean_itl_ms": between,
            "tokens_per_second": per_second,
            "speculative_decoding": {
                "mean_acceptance_length": stats.mean_acceptance_length(),
                "draft_acceptance_rate": self.acceptance_rate(),
                "acceptance_histogram": stats.acceptance_histogram,
                "num_spec_steps": stats.steps,
                "num_draft_tokens": stats.drafted,
                "num_accepted_draft_tokens": stats.accepted,
                "num_spec_tokens": spec_tokens(info),
                "algorithm": algorithm(info.algorithm),
                "budget": budget(info),
                "topk": info.topk,
            },
        })
    }

    fn sglang(&self) -> Value {
        let stats = &self.stats;
        json!({"spec_tokens_details": {
            "spec_accept_rate": self.acceptance_rate(),
            "spec_accept_length": stats.mean_acceptance_length(),
            "spec_num_correct_drafts": stats.accepted,
            "spec_num_proposed_drafts": stats.drafted,
            "spec_verify_ct": stats.steps,
            "spec_correct_drafts_histogram": stats.acceptance_histogram,
        }})
    }
}

/// Adds `usage` and, where wanted, the statistics of a group that has ended to its answer.
pub(crate) fn add_totals(
    answer: &mut Map<String, Value>,
    group: &SequenceGroup,
    info: &ModelInfo,
    metrics: bool,
    spec_details: bool,
) {
    answer.insert("usage".into(), usage(group.counts()));
    let summary = Summary::of(group.finished());
    if metrics {
        let metrics = summary.metrics(group.first_token_ms(), info);
        answer.insert("metrics".into(), metrics);
    }
    if spec_details {
        answer.insert("sglext".into(), summary.sglang());
    }
}

/// The name of an algorithm as flags have it.
pub(crate) fn algorithm(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::None => "NONE",
        Algorithm::Dflash => "DFLASH",
        Algorithm::Ddtree => "DDTREE",
    }
}

/// Drafts of one step at most; `None` where they vary.
fn spec_tokens(info: &ModelInfo) -> Option<usize> {
    match info.algorithm {
        Algorithm::None => Some(0),
        Algorithm::Dflash => Some(info.chain_drafts),
        Algorithm::Ddtree => match info.budget {
            Budget::Fixed(nodes) => Some(nodes),
            Budget::Auto => None,
        },
    }
}

/// Nodes of a tree, drafts of a chain, `auto`, or null.
pub(crate) fn budget(info: &ModelInfo) -> Value {
    match (info.algorithm, info.budget) {
        (Algorithm::None, _) => Value::Null,
        (Algorithm::Dflash, _) => info.chain_drafts.into(),
        (Algorithm::Ddtree, Budget::Fixed(nodes)) => nodes.into(),
        (Algorithm::Ddtree, Budget::Auto) => "auto".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_hold() {
        let usage = usage(TokenCounts {
            prompt: 5,
            cached: 4,
            completion: 7,
            reasoning: 3,
        });
        assert_eq!(usage["total_tokens"], 12);
        assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 3);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 4);
    }

    #[test]
    fn sequences_are_summed_and_times_overlap() {
        let stats = |steps, accepted: usize, decode_ms| {
            let mut acceptance_histogram = vec![0; 16];
            acceptance_histogram[accepted / steps] = steps;
            RequestStats {
                steps,
                drafted: 15 * steps,
                accepted,
                acceptance_histogram,
                decode_ms,
                ..RequestStats::default()
            }
        };
        let summary = Summary::of(&[(10, stats(3, 6, 20.0)), (5, stats(1, 3, 30.0))]);
        assert_eq!((summary.tokens, summary.later_tokens), (15, 13));
        let sum = &summary.stats;
        assert_eq!((sum.steps, sum.accepted, sum.drafted), (4, 9, 60));
        assert_eq!(sum.acceptance_histogram[2..4], [3, 1]);
        assert_eq!((sum.decode_ms, summary.decode_ms), (30.0, 50.0));
        let weighted: usize = sum
            .acceptance_histogram
            .iter()
            .enumerate()
            .map(|(k, n)| k * n)
            .sum();
        assert_eq!(weighted, sum.accepted);
    }
}

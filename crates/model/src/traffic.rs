//! Bytes that a step cannot avoid to move: the floor under its time.

use crate::plan::{drafter_weight_bytes, target_weight_bytes};
use crate::{DrafterConfig, ModelConfig, RunnerConfig};

/// Bytes of one step; each weight counts once, whatever the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTraffic {
    /// The target's layers and head, without the rows of the table that are not looked up.
    pub target: u64,
    /// The drafter's layers and the head once more; 0 for a plain step.
    pub draft: u64,
    /// Recurrent state, in and out.
    pub state: u64,
    /// Keys and values of the context, target and drafter.
    pub kv: u64,
}

impl StepTraffic {
    /// Of a step over `contexts`, the committed tokens of each sequence.
    pub fn of(
        target: &ModelConfig,
        drafter: Option<&DrafterConfig>,
        config: &RunnerConfig,
        contexts: &[usize],
    ) -> Self {
        let table = (target.vocab_size * target.hidden_size * config.weight_dtype.bytes()) as u64;
        let looked_up = if target.tied_head { 0 } else { table };
        let state = size_of::<f32>() * target.gdn.state_len();
        let tokens: usize = contexts.iter().sum();
        let kv_row = |layers: usize, heads: usize, head_dim: usize| {
            2 * layers * heads * head_dim * config.kv_dtype.bytes()
        };
        let target_kv = kv_row(target.attention_layers(), target.kv_heads, target.head_dim);
        let draft_kv = drafter.map_or(0, |d| kv_row(d.layers.len(), d.kv_heads, d.head_dim));
        StepTraffic {
            target: target_weight_bytes(target, config) as u64 - looked_up,
            draft: drafter.map_or(0, |d| drafter_weight_bytes(d, config) as u64 + table),
            state: (2 * target.gdn_layers() * contexts.len() * state) as u64,
            kv: (tokens * (target_kv + draft_kv)) as u64,
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.target + self.draft + self.state + self.kv
    }
}

//! The memory plan: what is allocated at start, before the first request.

use crate::{DrafterConfig, ModelConfig, RunnerConfig};

/// One line of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLine {
    /// What it is for.
    pub part: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// All device memory of a runner. Nothing grows afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The parts.
    pub lines: Vec<PlanLine>,
    /// KV pages in the pool.
    pub kv_pages: usize,
    /// State slots.
    pub slots: usize,
}

impl MemoryPlan {
    /// What a runner of these sizes allocates.
    pub fn of(
        _target: &ModelConfig,
        _drafter: Option<&DrafterConfig>,
        _config: &RunnerConfig,
    ) -> Self {
        todo!()
    }

    /// Sum of all parts in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.bytes).sum()
    }
}

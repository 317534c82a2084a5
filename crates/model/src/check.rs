//! Verifies every tensor of a checkpoint without running it.

use crate::{CheckpointSource, ModelError};

/// What was found to be in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Tensors of the language model (or drafter).
    pub tensors: usize,
    /// Values in them.
    pub values: u64,
    /// Tensors skipped by rule (vision, MTP).
    pub skipped: usize,
}

/// Reads every tensor of target and drafter: names, shapes, types, finite values. The first fault
/// is the error.
pub fn check(
    _target: &CheckpointSource,
    _drafter: Option<&CheckpointSource>,
) -> Result<(CheckReport, Option<CheckReport>), ModelError> {
    todo!()
}

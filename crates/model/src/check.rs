//! Verifies every tensor of a checkpoint without running it.

use ops::Cpu;

use crate::checkpoint::{Checkpoint, drafter_naming, target_naming};
use crate::weights::{DrafterWeights, TargetWeights, Uploader};
use crate::{CheckpointSource, DrafterConfig, LoadProgress, ModelConfig, ModelError};

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
    target: &CheckpointSource,
    drafter: Option<&CheckpointSource>,
) -> Result<(CheckReport, Option<CheckReport>), ModelError> {
    let progress = LoadProgress::default();
    let backend = Cpu::default();
    let up = Uploader {
        backend: &backend,
        dtype: None,
    };
    let config = ModelConfig::read(target)?;
    let drafter = drafter
        .map(|source| DrafterConfig::read(source, &config).map(|sizes| (source, sizes)))
        .transpose()?;
    let mut file = Checkpoint::open(target, target_naming, true, &progress)?;
    drop(TargetWeights::load(&up, &config, &mut file)?);
    let report = file.finish()?;
    let Some((source, sizes)) = drafter else {
        return Ok((report, None));
    };
    let mut file = Checkpoint::open(source, drafter_naming, true, &progress)?;
    drop(DrafterWeights::load(&up, &sizes, &mut file)?);
    Ok((report, Some(file.finish()?)))
}

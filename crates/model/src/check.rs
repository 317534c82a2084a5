//! Verifies every tensor of a checkpoint without running it.

use ops::{Cpu, Dtype};

use crate::checkpoint::{Checkpoint, drafter_naming, target_naming};
use crate::loader::{Loader, Origin};
use crate::weights::{DrafterWeights, TargetWeights};
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
    let config = ModelConfig::read(target)?;
    let drafter = drafter
        .map(|source| DrafterConfig::read(source, &config).map(|sizes| (source, sizes)))
        .transpose()?;
    let file = Checkpoint::open(target, target_naming, true)?;
    let report = check_target(file, &config)?;
    let Some((source, sizes)) = drafter else {
        return Ok((report, None));
    };
    let file = Checkpoint::open(source, drafter_naming, true)?;
    Ok((report, Some(check_drafter(file, &sizes)?)))
}

/// Takes every tensor of a target without loading any.
pub(crate) fn check_target(
    file: Checkpoint,
    config: &ModelConfig,
) -> Result<CheckReport, ModelError> {
    let (backend, progress) = (Cpu::default(), LoadProgress::default());
    let mut loader = header(file, &backend, &progress);
    TargetWeights::load(&mut loader, config)?;
    loader.finish()
}

/// Takes every tensor of a drafter without loading any.
pub(crate) fn check_drafter(
    file: Checkpoint,
    config: &DrafterConfig,
) -> Result<CheckReport, ModelError> {
    let (backend, progress) = (Cpu::default(), LoadProgress::default());
    let mut loader = header(file, &backend, &progress);
    DrafterWeights::load(&mut loader, config)?;
    loader.finish()
}

fn header<'a>(file: Checkpoint, backend: &'a Cpu, progress: &'a LoadProgress) -> Loader<'a, Cpu> {
    Loader {
        backend,
        origin: Origin::Header(file),
        dtype: Dtype::Bf16,
        progress,
    }
}

//! What checks need to know of a backend that are written for any.

use half::bf16;

use super::{narrow, wide};
use crate::testing::floats;
use crate::{Backend, Cpu, Cuda};

/// A backend under test: the GPU, or the CPU against itself, where a mistake of the check shows.
pub(super) trait Side: Backend {
    /// Whether a head of a GDN state is `[value_dim, key_dim]`.
    const BY_COLUMN: bool;
    fn narrow(values: &[f32]) -> Vec<Self::Act>;
    fn wide(values: &[Self::Act]) -> Vec<f32>;
}

impl Side for Cpu {
    const BY_COLUMN: bool = false;
    fn narrow(values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }
    fn wide(values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }
}

impl Side for Cuda {
    const BY_COLUMN: bool = true;
    fn narrow(values: &[f32]) -> Vec<bf16> {
        narrow(values)
    }
    fn wide(values: &[bf16]) -> Vec<f32> {
        wide(values)
    }
}

/// Values in -1..1 that bf16 holds.
pub(super) fn round_floats(seed: u64, len: usize) -> Vec<f32> {
    wide(&narrow(&floats(seed, len)))
}

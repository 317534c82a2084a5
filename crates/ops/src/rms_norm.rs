//! Root-mean-square norm over the last axis.

use crate::{Backend, Cpu, Rows};

/// `out = x / sqrt(mean(x^2) + eps) * weight`, per row of `dim` values.
///
/// Checkpoints of the target store `w` and mean `1 + w`; the loader folds that in f32, so here the
/// weight is always the factor itself.
pub struct RmsNorm<'a, B: Backend> {
    /// Rows to norm.
    pub rows: Rows<'a, B>,
    /// Values per row.
    pub dim: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// `[rows, dim]`.
    pub x: &'a B::Buf<f32>,
    /// `[dim]`.
    pub weight: &'a B::Buf<f32>,
    /// `[rows, dim]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(_op: RmsNorm<'_, Cpu>) {
    todo!()
}

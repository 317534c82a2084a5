//! Root-mean-square norm over the last axis.

use crate::product::dot;
use crate::{Backend, Cpu, Rows, parallel};

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

pub(crate) fn cpu(op: RmsNorm<'_, Cpu>) {
    let live = op.rows.count() * op.dim;
    parallel::chunks(&mut op.out[..live], op.dim, live, |row, out| {
        let x = &op.x[row * op.dim..][..op.dim];
        let inverse = inverse_rms(x, op.eps);
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(&op.weight[..op.dim]) {
            *out = x * inverse * weight;
        }
    });
}

/// `1 / sqrt(mean(x^2) + eps)`.
pub(crate) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

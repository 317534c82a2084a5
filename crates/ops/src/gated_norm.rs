//! Norm and gate behind the GDN scan.

use crate::activation::silu;
use crate::rms_norm::inverse_rms;
use crate::{Backend, Cpu, GdnShape, Rows, parallel};

/// Per row and value head: `out = o / sqrt(mean(o^2) + eps) * weight * silu(z)`. The weight is
/// plain (no `1 +`), one vector for all heads; the mean is per head.
pub struct GatedNorm<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Heads and their size.
    pub shape: GdnShape,
    /// Added to the mean of squares.
    pub eps: f32,
    /// `[rows, value_heads, value_dim]`.
    pub o: &'a B::Buf<f32>,
    /// `[rows, value_heads, value_dim]`.
    pub z: &'a B::Buf<f32>,
    /// `[value_dim]`.
    pub weight: &'a B::Buf<f32>,
    /// `[rows, value_heads, value_dim]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(op: GatedNorm<'_, Cpu>) {
    let dim = op.shape.value_dim;
    let live = op.rows.count() * op.shape.value_width();
    let weight = &op.weight[..dim];
    // An exponential costs about as much as 16 multiply-adds.
    parallel::chunks(&mut op.out[..live], dim, 16 * live, |head, out| {
        let o = &op.o[head * dim..][..dim];
        let z = &op.z[head * dim..][..dim];
        let inverse = inverse_rms(o, op.eps);
        for (((out, &o), &z), &weight) in out.iter_mut().zip(o).zip(z).zip(weight) {
            *out = o * inverse * weight * silu(z);
        }
    });
}

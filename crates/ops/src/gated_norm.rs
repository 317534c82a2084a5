//! Norm and gate behind the GDN scan.

use crate::{Backend, Cpu, GdnShape, Rows};

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

pub(crate) fn cpu(_op: GatedNorm<'_, Cpu>) {
    todo!()
}

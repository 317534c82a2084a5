//! Gated activation of the MLP.

use crate::activation::silu;
use crate::{Backend, Cpu, Rows, parallel};

/// `out[r, j] = silu(gate_up[r, j]) * gate_up[r, dim + j]`, `silu(t) = t / (1 + e^-t)`.
pub struct Swiglu<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Values per half.
    pub dim: usize,
    /// `[rows, 2 * dim]`: gate, then up.
    pub gate_up: &'a B::Buf<f32>,
    /// `[rows, dim]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(op: Swiglu<'_, Cpu>) {
    let live = op.rows.count() * op.dim;
    // An exponential costs about as much as 16 multiply-adds.
    parallel::chunks(&mut op.out[..live], op.dim, 16 * live, |row, out| {
        let (gate, up) = op.gate_up[row * 2 * op.dim..][..2 * op.dim].split_at(op.dim);
        for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
            *out = silu(gate) * up;
        }
    });
}

//! Gated activation of the MLP.

use crate::{Backend, Cpu, Rows};

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

pub(crate) fn cpu(_op: Swiglu<'_, Cpu>) {
    todo!()
}

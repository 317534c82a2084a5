//! A product into the residual stream, and the norm in front of the next product.

use crate::linear::product;
use crate::{Backend, Cpu, RmsNorm, Rows, Summation, Tensor};

/// `residual[r] += x[r] Wt`, then `normed = residual / sqrt(mean(residual^2) + eps) * norm_weight`:
/// the end of an attention, a GDN or an MLP, whose inputs are split over ranks where there are
/// several.
pub struct LinearAddNorm<'a, B: Backend> {
    /// Rows to multiply.
    pub rows: Rows<'a, B>,
    /// `[rows, weight.columns]`.
    pub x: &'a B::Buf<B::Act>,
    /// `[outputs, inputs]`.
    pub weight: &'a Tensor<B>,
    /// In which order a product is summed on the CPU. Other backends have one order of their own
    /// for every weight.
    pub summation: Summation,
    /// `[rows, weight.rows]`.
    pub residual: &'a mut B::Buf<f32>,
    /// `[weight.rows]`, the factor itself (see [`RmsNorm`]).
    pub norm_weight: &'a B::Buf<f32>,
    /// Added to the mean of squares.
    pub eps: f32,
    /// `[rows, weight.rows]`.
    pub normed: &'a mut B::Buf<B::Act>,
}

pub(crate) fn cpu(op: LinearAddNorm<'_, Cpu>) {
    product(
        op.x,
        op.rows.count(),
        op.weight,
        op.summation,
        op.weight.rows,
        op.residual,
        |out, product| *out += product,
    );
    crate::rms_norm::cpu(RmsNorm {
        rows: op.rows,
        dim: op.weight.rows,
        eps: op.eps,
        x: op.residual,
        weight: op.norm_weight,
        out: op.normed,
    });
}

#[cfg(test)]
mod tests;

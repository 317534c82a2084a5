//! Gate and up projections of the MLP with their activation.

use crate::activation::silu;
use crate::linear::product;
use crate::{Backend, Cpu, Rows, Summation, Tensor, parallel};

/// Outputs of one kind that lie together in the weight of [`LinearSwiglu`].
const GROUP: usize = 8;

/// `out[r, j] = silu(x[r] . gate_j) * (x[r] . up_j)`, `silu(t) = t / (1 + e^-t)`, each product
/// summed as [`Summation::Whole`].
///
/// Rows of the weight are interleaved by eights: gate 0..8, up 0..8, gate 8..16, up 8..16, ...; the
/// last group is shorter where 8 does not divide `intermediate` ([`gate_up_rows`]). So sixteen rows
/// of the weight, which are one tile of a matrix instruction, hold gate and up of the same outputs.
pub struct LinearSwiglu<'a, B: Backend> {
    /// Rows to multiply.
    pub rows: Rows<'a, B>,
    /// `[rows, weight.columns]`.
    pub x: &'a B::Buf<B::Act>,
    /// `[2 * intermediate, inputs]`, interleaved.
    pub weight: &'a Tensor<B>,
    /// `[rows, 2 * intermediate]` scratch, at least two rows; its contents mean nothing afterwards.
    pub gate_up: &'a mut B::Buf<B::Act>,
    /// `[rows, intermediate]`.
    pub out: &'a mut B::Buf<B::Act>,
}

/// Rows of the weight of [`LinearSwiglu`] that hold gate and up of output `j`.
pub fn gate_up_rows(j: usize, intermediate: usize) -> (usize, usize) {
    let first = j - j % GROUP;
    let group = GROUP.min(intermediate - first);
    let gate = 2 * first + j % GROUP;
    (gate, gate + group)
}

pub(crate) fn cpu(op: LinearSwiglu<'_, Cpu>) {
    let (rows, outputs) = (op.rows.count(), op.weight.rows);
    assert!(outputs.is_multiple_of(2), "{outputs} rows of gate and up");
    let intermediate = outputs / 2;
    product(
        op.x,
        rows,
        op.weight,
        Summation::Whole,
        outputs,
        op.gate_up,
        |out, product| *out = product,
    );
    let live = rows * intermediate;
    if live == 0 {
        return;
    }
    // An exponential costs about as much as 16 multiply-adds.
    let gate_up = &op.gate_up[..];
    parallel::chunks(&mut op.out[..live], intermediate, 16 * live, |row, out| {
        let gate_up = &gate_up[row * outputs..][..outputs];
        let groups = gate_up.chunks(2 * GROUP).zip(out.chunks_mut(GROUP));
        for (gate_up, out) in groups {
            let (gate, up) = gate_up.split_at(out.len());
            for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
                *out = silu(gate) * up;
            }
        }
    });
}

#[cfg(test)]
mod tests;

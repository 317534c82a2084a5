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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, bits, floats, live, on_every_path};

    fn gated(gate_up: &[f32], dim: usize) -> Vec<f32> {
        let rows = gate_up.len() / (2 * dim);
        let mut out = vec![f32::NAN; rows * dim].into();
        let op = Swiglu {
            rows: Rows {
                capacity: rows,
                live: &live(rows),
            },
            dim,
            gate_up: &gate_up.into(),
            out: &mut out,
        };
        Cpu::default().swiglu(op).unwrap();
        out.into()
    }

    #[test]
    fn gates_agree_with_f64() {
        for (rows, dim) in [(1, 1), (5, 17), (3, 256)] {
            let x: Vec<f32> = floats(1, rows * 2 * dim).iter().map(|v| 12.0 * v).collect();
            let mut exact = Vec::new();
            for row in x.chunks(2 * dim) {
                let (gate, up) = row.split_at(dim);
                let pairs = gate.iter().zip(up);
                exact.extend(
                    pairs.map(|(&t, &up)| {
                        f64::from(t) / (1.0 + (-f64::from(t)).exp()) * f64::from(up)
                    }),
                );
            }
            assert_close(&gated(&x, dim), &exact, 1e-12, &format!("{dim} values"));
        }
    }

    #[test]
    fn a_row_depends_on_itself_only() {
        let (rows, dim) = (64, 1040);
        assert!(16 * rows * dim > parallel::PARALLEL_WORK);
        let x = floats(1, rows * 2 * dim);
        let all = on_every_path(|| gated(&x, dim));
        for count in 1..rows {
            let some = gated(&x[(rows - count) * 2 * dim..], dim);
            assert_eq!(bits(&some), bits(&all[(rows - count) * dim..]));
        }
    }

    #[test]
    fn extremes_have_their_limits() {
        let gate = [0.0, -1e30, 1e30, f32::NAN, f32::INFINITY, -90.0];
        let up = [5.0, 2.0, 1.0, 1.0, -1.0, 1.0];
        let out = gated(&[gate, up].concat(), 6);
        assert_eq!(out[..3], [0.0, 0.0, 1e30]);
        assert!(out[3].is_nan());
        assert_eq!(out[4], f32::NEG_INFINITY);
        assert!(out[5] <= 0.0 && out[5] > -1e-36);
    }
}

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
    pub out: &'a mut B::Buf<B::Act>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, bits, floats, live, on_every_path};

    const EPS: f32 = 1e-6;

    fn normed(x: &[f32], weight: &[f32]) -> Vec<f32> {
        let dim = weight.len();
        let rows = x.len() / dim;
        let mut out = vec![f32::NAN; x.len()].into();
        let op = RmsNorm {
            rows: Rows {
                capacity: rows,
                live: &live(rows),
                prompt: false,
            },
            dim,
            eps: EPS,
            x: &x.into(),
            weight: &weight.into(),
            out: &mut out,
        };
        Cpu::default().rms_norm(op).unwrap();
        out.into()
    }

    #[test]
    fn norms_agree_with_f64_and_with_candle() {
        for (rows, dim) in [(3, 1), (4, 17), (2, 128), (3, 5120)] {
            let (x, weight) = (floats(1, rows * dim), floats(2, dim));
            let mut exact = Vec::new();
            for x in x.chunks(dim) {
                let x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
                let mean = x.iter().map(|x| x * x).sum::<f64>() / dim as f64;
                let root = (mean + f64::from(EPS)).sqrt();
                let weighted = x.iter().zip(&weight);
                exact.extend(weighted.map(|(x, &w)| x / root * f64::from(w)));
            }
            let out = normed(&x, &weight);
            assert_close(&out, &exact, 1e-13, &format!("{dim} values"));

            let device = candle_core::Device::Cpu;
            let x = candle_core::Tensor::from_slice(&x, (rows, dim), &device).unwrap();
            let weight = candle_core::Tensor::from_slice(&weight, dim, &device).unwrap();
            let theirs = candle_nn::ops::rms_norm(&x, &weight, EPS).unwrap();
            let theirs = theirs.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let theirs: Vec<f64> = theirs.into_iter().map(f64::from).collect();
            assert_close(&out, &theirs, 1e-12, &format!("candle, {dim} values"));
        }
    }

    #[test]
    fn a_row_depends_on_itself_only() {
        let (rows, dim) = (64, 16_400);
        assert!(rows * dim > parallel::PARALLEL_WORK);
        let (x, weight) = (floats(1, rows * dim), floats(2, dim));
        let all = on_every_path(|| normed(&x, &weight));
        for count in 1..rows {
            let first = (rows - count) / 2;
            let some = normed(&x[first * dim..][..count * dim], &weight);
            assert_eq!(bits(&some), bits(&all[first * dim..][..count * dim]));
        }
    }

    #[test]
    fn zeros_stay_zero_and_not_a_number_stays_in_its_row() {
        let mut x = floats(1, 3 * 20);
        x[..20].fill(0.0);
        let weight = floats(2, 20);
        let clean = normed(&x, &weight);
        assert!(clean[..20].iter().all(|&v| v == 0.0));
        for bad in [f32::NAN, f32::INFINITY] {
            x[33] = bad;
            let out = normed(&x, &weight);
            assert_eq!(bits(&out[..20]), bits(&clean[..20]));
            assert_eq!(bits(&out[40..]), bits(&clean[40..]));
            assert!(out[33].is_nan());
        }
        assert!(normed(&[], &weight).is_empty());
    }
}

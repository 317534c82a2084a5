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
    pub o: &'a B::Buf<B::Act>,
    /// `[rows, mixed_stride]`: z stands at columns `channels .. channels + value_width`
    /// ([`crate::GdnJournal::mixed`]).
    pub mixed: &'a B::Buf<B::Act>,
    /// `[value_dim]`.
    pub weight: &'a B::Buf<f32>,
    /// `[rows, value_heads, value_dim]`.
    pub out: &'a mut B::Buf<B::Act>,
}

pub(crate) fn cpu(op: GatedNorm<'_, Cpu>) {
    let dim = op.shape.value_dim;
    let live = op.rows.count() * op.shape.value_width();
    let weight = &op.weight[..dim];
    let (heads, channels) = (op.shape.value_heads, op.shape.channels());
    // An exponential costs about as much as 16 multiply-adds.
    parallel::chunks(&mut op.out[..live], dim, 16 * live, |head, out| {
        let o = &op.o[head * dim..][..dim];
        let (row, head) = (head / heads, head % heads);
        let z = &op.mixed[row * op.shape.mixed_stride() + channels + head * dim..][..dim];
        let inverse = inverse_rms(o, op.eps);
        for (((out, &o), &z), &weight) in out.iter_mut().zip(o).zip(z).zip(weight) {
            *out = o * inverse * weight * silu(z);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, bits, floats, live, on_every_path};

    const EPS: f32 = 1e-6;

    fn shape(value_heads: usize, value_dim: usize) -> GdnShape {
        GdnShape {
            key_heads: 1,
            value_heads,
            key_dim: 3,
            value_dim,
        }
    }

    fn normed(shape: GdnShape, o: &[f32], z: &[f32], weight: &[f32]) -> Vec<f32> {
        let (rows, width) = (o.len() / shape.value_width(), shape.value_width());
        let mut mixed = vec![f32::NAN; rows * shape.mixed_stride()];
        for (mixed, z) in mixed.chunks_mut(shape.mixed_stride()).zip(z.chunks(width)) {
            mixed[shape.channels()..][..width].copy_from_slice(z);
        }
        let mut out = vec![f32::NAN; o.len()].into();
        let op = GatedNorm {
            rows: Rows {
                capacity: rows,
                live: &live(rows),
                prompt: false,
            },
            shape,
            eps: EPS,
            o: &o.into(),
            mixed: &mixed.into(),
            weight: &weight.into(),
            out: &mut out,
        };
        Cpu::default().gated_norm(op).unwrap();
        out.into()
    }

    #[test]
    fn every_head_has_its_own_mean() {
        for (heads, dim) in [(1, 1), (3, 17), (6, 128)] {
            let shape = shape(heads, dim);
            let len = 4 * shape.value_width();
            let (mut o, z, weight) = (floats(1, len), floats(2, len), floats(3, dim));
            // Heads of different sizes: a mean over all heads would be far off.
            for (head, o) in o.chunks_mut(dim).enumerate() {
                o.iter_mut().for_each(|o| *o *= (1 << (head % 8)) as f32);
            }
            let mut exact = Vec::new();
            for (o, z) in o.chunks(dim).zip(z.chunks(dim)) {
                let squares: f64 = o.iter().map(|&o| f64::from(o).powi(2)).sum();
                let root = (squares / dim as f64 + f64::from(EPS)).sqrt();
                for ((&o, &z), &w) in o.iter().zip(z).zip(&weight) {
                    let silu = f64::from(z) / (1.0 + (-f64::from(z)).exp());
                    exact.push(f64::from(o) / root * f64::from(w) * silu);
                }
            }
            let out = normed(shape, &o, &z, &weight);
            assert_close(&out, &exact, 1e-12, &format!("{heads} heads of {dim}"));
        }
    }

    #[test]
    fn a_row_depends_on_itself_only() {
        let shape = shape(8, 130);
        let (rows, width) = (64, shape.value_width());
        assert!(16 * rows * width > parallel::PARALLEL_WORK);
        let (o, z) = (floats(1, rows * width), floats(2, rows * width));
        let weight = floats(3, 130);
        let all = on_every_path(|| normed(shape, &o, &z, &weight));
        for count in 1..rows {
            let first = (rows - count) * width;
            let some = normed(shape, &o[first..], &z[first..], &weight);
            assert_eq!(bits(&some), bits(&all[first..]));
        }
    }

    #[test]
    fn not_a_number_stays_in_its_head() {
        let shape = shape(2, 9);
        let (mut o, z, weight) = (floats(1, 36), floats(2, 36), floats(3, 9));
        let clean = normed(shape, &o, &z, &weight);
        o[10] = f32::NAN;
        let out = normed(shape, &o, &z, &weight);
        assert!(out[9..18].iter().all(|v| v.is_nan()));
        assert_eq!(bits(&out[..9]), bits(&clean[..9]));
        assert_eq!(bits(&out[18..]), bits(&clean[18..]));
    }
}

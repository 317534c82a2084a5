//! The gated norm against the CPU's.

use super::{SHAPES, Side, TINY, cases, get, put, round_floats, scanning_gpu};
use crate::testing::{assert_close, floats};
use crate::{Cpu, GatedNorm, GdnShape, Rows};

/// `[rows + 3, value_width]`, of which the last three rows are padding.
fn normed<B: Side>(backend: &B, shape: GdnShape, rows: usize) -> Vec<f32> {
    let capacity = rows + 3;
    let width = shape.value_width();
    let mut o = round_floats(71, capacity * width);
    // Heads of different sizes: a mean over all heads would be far off.
    for (head, o) in o.chunks_mut(shape.value_dim).enumerate() {
        o.iter_mut().for_each(|o| *o *= (1 << (head % 8)) as f32);
    }
    let mut mixed = round_floats(72, capacity * shape.mixed_stride());
    // Gates up to 128, so that silu is met where it is linear, curved and next to nothing.
    for (at, mixed) in mixed.iter_mut().enumerate() {
        *mixed *= (1 << (at % 8)) as f32;
    }
    let mut out = put(backend, &B::narrow(&vec![f32::NAN; capacity * width]));
    let op = GatedNorm {
        rows: Rows {
            capacity,
            live: &put(backend, &[rows as u32, 1]),
            prompt: false,
        },
        shape,
        eps: 1e-6,
        o: &put(backend, &B::narrow(&o)),
        mixed: &put(backend, &B::narrow(&mixed)),
        weight: &put(backend, &floats(73, shape.value_dim)),
        out: &mut out,
    };
    backend.gated_norm(op).unwrap();
    B::wide(&get(backend, &out))
}

fn agrees_with_the_cpu<B: Side>(backend: &B, shapes: &[GdnShape]) {
    for &shape in shapes {
        for rows in [1, 5, 64] {
            let live = rows * shape.value_width();
            let out = normed(backend, shape, rows);
            let expected = normed(&Cpu::default(), shape, rows);
            let expected: Vec<f64> = expected[..live].iter().map(|&v| v.into()).collect();
            let what = format!("{rows} rows of {shape:?}");
            assert_close(&out[..live], &expected, 5e-6, &what);
            // One rounding, whatever the size of the value; but silu is 0 where its denominator
            // exceeds 2^126, below a gate of -87.3, instead of up to 1e-36.
            for (&out, expected) in out.iter().zip(&expected) {
                let error = (f64::from(out) - expected).abs();
                let bound = expected.abs() / 250.0 + 2e-36;
                assert!(error <= bound, "{what}: {out} for {expected}");
            }
            assert!(out[live..].iter().all(|v| v.is_nan()), "padding rows");
        }
    }
}

#[test]
fn norm_and_gate_agree_with_the_cpu() {
    agrees_with_the_cpu(&Cpu::default(), &[TINY]);
    let Some(cuda) = scanning_gpu() else { return };
    agrees_with_the_cpu(&cuda, cases(&SHAPES, 2));
}

use super::*;
use crate::parallel::PARALLEL_WORK;
use crate::testing::{DTYPES, assert_close, bits, floats, live, on_every_path, rounded};
use crate::{Dtype, Tensor};

/// Gate rows and up rows, each `[intermediate, k]`, as the op wants them.
fn interleaved(gate: &[f32], up: &[f32], k: usize) -> Vec<f32> {
    let intermediate = gate.len() / k;
    let mut weight = vec![f32::NAN; 2 * gate.len()];
    for j in 0..intermediate {
        let (to_gate, to_up) = gate_up_rows(j, intermediate);
        weight[to_gate * k..][..k].copy_from_slice(&gate[j * k..][..k]);
        weight[to_up * k..][..k].copy_from_slice(&up[j * k..][..k]);
    }
    weight
}

fn gated(x: &[f32], gate: &[f32], up: &[f32], k: usize, dtype: Dtype) -> Vec<f32> {
    let (rows, intermediate) = (x.len() / k, gate.len() / k);
    let weight = interleaved(gate, up, k);
    let weight = Tensor::from_f32(&Cpu::default(), dtype, 2 * intermediate, k, &weight).unwrap();
    let mut gate_up = vec![f32::NAN; (rows + 1) * 2 * intermediate].into();
    let mut out: Box<[f32]> = vec![7.0; (rows + 1) * intermediate].into();
    let op = LinearSwiglu {
        rows: Rows {
            capacity: rows + 1,
            live: &live(rows),
            prompt: false,
        },
        x: &x.into(),
        weight: &weight,
        gate_up: &mut gate_up,
        out: &mut out,
    };
    Cpu::default().linear_swiglu(op).unwrap();
    let live = rows * intermediate;
    assert!(out[live..].iter().all(|&v| v == 7.0), "padding rows");
    out[..live].into()
}

#[test]
fn every_row_of_the_weight_has_one_place() {
    for intermediate in [1, 7, 8, 9, 16, 20, 512] {
        let mut rows: Vec<usize> = (0..intermediate)
            .flat_map(|j| <[usize; 2]>::from(gate_up_rows(j, intermediate)))
            .collect();
        rows.sort_unstable();
        assert!(rows.into_iter().eq(0..2 * intermediate));
    }
    let pairs: Vec<_> = [0, 7, 8, 15, 16, 19].map(|j| gate_up_rows(j, 20)).into();
    assert_eq!(
        pairs,
        [(0, 8), (7, 15), (16, 24), (23, 31), (32, 36), (35, 39)]
    );
}

#[test]
fn gates_agree_with_f64() {
    for (rows, k, intermediate) in [(1, 3, 1), (5, 64, 17), (3, 48, 256), (2, 16, 20)] {
        let x: Vec<f32> = floats(1, rows * k).iter().map(|v| 3.0 * v).collect();
        let (gate, up) = (floats(2, intermediate * k), floats(3, intermediate * k));
        for dtype in DTYPES {
            let product = |x: &[f32], w: &[f32]| -> f64 {
                let terms = x.iter().zip(w);
                terms
                    .map(|(&x, &w)| f64::from(x) * f64::from(rounded(dtype, w)))
                    .sum()
            };
            let mut exact = Vec::new();
            for x in x.chunks(k) {
                for (gate, up) in gate.chunks(k).zip(up.chunks(k)) {
                    let t = product(x, gate);
                    exact.push(t / (1.0 + (-t).exp()) * product(x, up));
                }
            }
            let out = gated(&x, &gate, &up, k, dtype);
            assert_close(&out, &exact, 1e-12, &format!("{intermediate} of {k}"));
        }
    }
}

#[test]
fn a_row_depends_on_itself_only() {
    let (rows, k, intermediate) = (64, 16, 1040);
    assert!(16 * rows * intermediate > PARALLEL_WORK);
    let x = floats(1, rows * k);
    let (gate, up) = (floats(2, intermediate * k), floats(3, intermediate * k));
    let all = on_every_path(|| gated(&x, &gate, &up, k, Dtype::Bf16));
    for count in [1, 2, 5, 63] {
        let some = gated(&x[(rows - count) * k..], &gate, &up, k, Dtype::Bf16);
        assert_eq!(bits(&some), bits(&all[(rows - count) * intermediate..]));
    }
}

#[test]
fn extremes_have_their_limits() {
    let gate = [0.0, -1e30, 1e30, f32::NAN, f32::INFINITY, -90.0];
    let up = [5.0, 2.0, 1.0, 1.0, -1.0, 1.0];
    let out = gated(&[1.0], &gate, &up, 1, Dtype::F32);
    assert_eq!(out[..3], [0.0, 0.0, 1e30]);
    assert!(out[3].is_nan());
    assert_eq!(out[4], f32::NEG_INFINITY);
    assert!(out[5] <= 0.0 && out[5] > -1e-36);
}

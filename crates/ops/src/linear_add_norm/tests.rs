use super::*;
use crate::testing::{assert_close, bits, floats, live, on_every_path};
use crate::{Dtype, Linear, LinearOut};

const EPS: f32 = 1e-6;

/// Residual stream and normed rows behind the op.
fn added(
    x: &[f32],
    w: &Tensor<Cpu>,
    summation: Summation,
    before: &[f32],
    norm: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let rows = x.len() / w.columns;
    let mut residual: Box<[f32]> = [before, &[7.0; 3]].concat().into();
    let mut normed: Box<[f32]> = vec![7.0; before.len() + 3].into();
    let op = LinearAddNorm {
        rows: Rows {
            capacity: rows + 1,
            live: &live(rows),
            prompt: false,
        },
        x: &x.into(),
        weight: w,
        summation,
        residual: &mut residual,
        norm_weight: &norm.into(),
        eps: EPS,
        normed: &mut normed,
    };
    Cpu::default().linear_add_norm(op).unwrap();
    assert_eq!(residual[before.len()..], [7.0; 3], "padding rows");
    assert_eq!(normed[before.len()..], [7.0; 3], "padding rows");
    let len = before.len();
    (residual[..len].into(), normed[..len].into())
}

#[test]
fn sums_and_norms_agree_with_f64() {
    for (rows, k, n) in [(1, 16, 1), (5, 128, 20), (3, 200, 130)] {
        let (x, before) = (floats(1, rows * k), floats(3, rows * n));
        let (w, norm) = (floats(2, n * k), floats(4, n));
        let tensor = Tensor::from_f32(&Cpu::default(), Dtype::F32, n, k, &w).unwrap();
        let (mut sums, mut normed) = (Vec::new(), Vec::new());
        for (x, before) in x.chunks(k).zip(before.chunks(n)) {
            let row = w.chunks(k).zip(before).map(|(w, &before)| {
                let terms = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w));
                f64::from(before) + terms.sum::<f64>()
            });
            let row: Vec<f64> = row.collect();
            let mean = row.iter().map(|v| v * v).sum::<f64>() / n as f64;
            let root = (mean + f64::from(EPS)).sqrt();
            normed.extend(row.iter().zip(&norm).map(|(v, &w)| v / root * f64::from(w)));
            sums.extend(row);
        }
        for summation in [Summation::Whole, Summation::EightBlocks] {
            let out = added(&x, &tensor, summation, &before, &norm);
            assert_close(&out.0, &sums, 1e-12, "residual");
            assert_close(&out.1, &normed, 1e-12, "normed");
        }
    }
}

/// The bits of a product, one addition and a norm by themselves.
#[test]
fn adding_is_one_addition_behind_the_product() {
    let (rows, k, n) = (6, 130, 70);
    let (x, before, norm) = (floats(1, rows * k), floats(3, rows * n), floats(4, n));
    let w = Tensor::from_f32(&Cpu::default(), Dtype::Bf16, n, k, &floats(2, n * k)).unwrap();
    let live = live(rows);
    let rows = Rows::new(rows, &live);
    let mut products: Box<[f32]> = vec![0.0; before.len()].into();
    let product = Linear {
        rows,
        x: &x[..].into(),
        weight: &w,
        out: LinearOut::F32(&mut products),
        out_stride: n,
    };
    Cpu::default().linear(product).unwrap();
    let sum: Box<[f32]> = before.iter().zip(&products).map(|(a, b)| a + b).collect();
    let mut normed: Box<[f32]> = vec![0.0; before.len()].into();
    let norm_op = RmsNorm {
        rows,
        dim: n,
        eps: EPS,
        x: &sum,
        weight: &norm[..].into(),
        out: &mut normed,
    };
    Cpu::default().rms_norm(norm_op).unwrap();
    let out = added(&x, &w, Summation::Whole, &before, &norm);
    assert_eq!((bits(&out.0), bits(&out.1)), (bits(&sum), bits(&normed)));
}

#[test]
fn a_row_depends_on_itself_only() {
    let (rows, k, n) = (33, 520, 130);
    let (x, before, norm) = (floats(1, rows * k), floats(3, rows * n), floats(4, n));
    let w = Tensor::from_f32(&Cpu::default(), Dtype::Bf16, n, k, &floats(2, n * k)).unwrap();
    let run = |first: usize, count: usize| {
        let (x, before) = (
            &x[first * k..][..count * k],
            &before[first * n..][..count * n],
        );
        let out = added(x, &w, Summation::EightBlocks, before, &norm);
        [out.0, out.1].concat()
    };
    let all = on_every_path(|| run(0, rows));
    for row in [0, 1, 17, 32] {
        let alone = run(row, 1);
        assert_eq!(bits(&alone[..n]), bits(&all[row * n..][..n]));
        assert_eq!(bits(&alone[n..]), bits(&all[(rows + row) * n..][..n]));
    }
}

//! Against the CPU on small shapes, against f64 on samples of large ones.

use super::super::{cases, gpu, wide};
use super::*;
use crate::testing::{assert_close, below, live, rng};
use crate::{Cpu, Linear, LinearOut, LinearSwiglu};

/// Rounding to bf16 gives 2.8e-6 on average over many values.
pub(super) const BF16_BOUND: f64 = 5e-6;
/// Values from which on that average can be relied on.
const MANY: usize = 500;

/// Normalised squared error of f32 sums over K. Tensor cores cut a sum's low bits off at every step
/// of 16 columns, always towards zero, so the error grows with K^2: 4e-11 at 5,120 columns, 9e-10 at
/// 25,600 (a relative 3e-5, a hundredth of what rounding to bf16 costs).
pub(super) fn f32_bound(columns: usize) -> f64 {
    match columns {
        0..=8192 => 1e-10,
        _ => 1e-9,
    }
}

/// Every value is off by one rounding to bf16 at most, a relative 2^-8, and many by less on average.
#[track_caller]
fn assert_rounded(values: &[bf16], exact: &[f64], what: &str) {
    for (value, exact) in values.iter().zip(exact) {
        let error = (f64::from(*value) - exact).abs();
        assert!(
            error <= exact.abs() / 250.0 + 1e-5,
            "{what}: {value} for {exact}"
        );
    }
    if values.len() >= MANY {
        assert_close(&wide(values), exact, BF16_BOUND, what);
    }
}

/// The bf16 product is the f32 product, rounded.
#[track_caller]
fn assert_narrowed(values: &[bf16], sums: &[f32], what: &str) {
    assert!(
        values == narrow(sums),
        "{what}: bf16 and f32 products differ"
    );
}

/// Outputs and inputs: the products of the bundled model, then sizes that divide nothing.
const SMALL: [(usize, usize); 15] = [
    (1030, 192),
    (1536, 192),
    (192, 384),
    (192, 512),
    (1024, 192),
    (2048, 192),
    (192, 960),
    (1, 16),
    (15, 48),
    (16, 64),
    (17, 144),
    (100, 400),
    (33, 1040),
    (4, 528),
    (272, 16),
];

#[test]
fn ops_agree_with_the_cpu() {
    let Some(cuda) = gpu() else { return };
    let limits = Limits::of(&cuda).unwrap();
    for &(outputs, columns) in cases(&SMALL, 3) {
        let problem = Problem::new(&cuda, outputs, columns, 130);
        for (capacity, live) in [
            (1, 1),
            (5, 5),
            (8, 7),
            (9, 9),
            (16, 13),
            (24, 17),
            (32, 32),
            (48, 33),
            (64, 64),
            (64, 1),
            (65, 65),
            (130, 127),
            (130, 3),
        ] {
            let what = format!("{outputs} x {columns}, {live} of {capacity} rows");
            compare(&problem, live, &problem.run(capacity, live, &limits), &what);
        }
    }
}

/// The CPU's results for the first `rows` rows.
fn compare(problem: &Problem<'_>, rows: usize, written: &Written, what: &str) {
    let cpu = Cpu::default();
    let (outputs, columns) = (problem.outputs, problem.columns);
    let weight = Tensor::<Cpu> {
        storage: Storage::F32(
            (0..outputs * columns)
                .map(|at| problem.block[at % PERIOD].to_f32())
                .collect(),
        ),
        rows: outputs,
        columns,
    };
    let live = live(rows);
    let rows_of = Rows::new(rows, &live);
    let x: Box<[f32]> = wide(&problem.x[..rows * columns]).into();
    let mut out: Box<[f32]> = vec![f32::NAN; rows * outputs].into();
    let op = Linear {
        rows: rows_of,
        x: &x,
        weight: &weight,
        out: LinearOut::F32(&mut out),
        out_stride: outputs,
    };
    cpu.linear(op).unwrap();
    let stride = outputs + PAD;
    let act = only_live(&written.act, rows, outputs, stride, what);
    let f32 = only_live(&written.f32, rows, outputs, stride, what);
    assert_close(&f32, &double(&out), f32_bound(columns), what);
    assert_narrowed(&act, &f32, what);
    if problem.gated() {
        let intermediate = outputs / 2;
        let mut gated: Box<[f32]> = vec![f32::NAN; rows * intermediate].into();
        let op = LinearSwiglu {
            rows: rows_of,
            x: &x,
            weight: &weight,
            gate_up: &mut out,
            out: &mut gated,
        };
        cpu.linear_swiglu(op).unwrap();
        let swiglu = only_live(&written.swiglu, rows, intermediate, intermediate, what);
        assert_rounded(&swiglu, &double(&gated), what);
    }
    if problem.normed() {
        let mut residual: Box<[f32]> = problem.residual[..rows * outputs].into();
        let mut normed: Box<[f32]> = vec![f32::NAN; rows * outputs].into();
        let op = LinearAddNorm {
            rows: rows_of,
            x: &x,
            weight: &weight,
            summation: Summation::Whole,
            residual: &mut residual,
            norm_weight: &problem.norm_weight[..].into(),
            eps: EPS,
            normed: &mut normed,
        };
        cpu.linear_add_norm(op).unwrap();
        let got = only_live(&written.residual, rows, outputs, outputs, what);
        assert_close(&got, &double(&residual), f32_bound(columns), what);
        let got = only_live(&written.normed, rows, outputs, outputs, what);
        assert_rounded(&got, &double(&normed), what);
    }
}

fn double(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// The products of the 27B target and its drafter.
const LARGE: [(usize, usize); 9] = [
    (16480, 5120),
    (14336, 5120),
    (5120, 6144),
    (34816, 5120),
    (5120, 17408),
    (6144, 5120),
    (5120, 4096),
    (5120, 25600),
    (248_320, 5120),
];

#[test]
fn large_products_agree_with_f64_on_a_sample() {
    let Some(cuda) = gpu() else { return };
    let limits = Limits::of(&cuda).unwrap();
    for &(outputs, columns) in cases(&LARGE, 0) {
        let problem = Problem::new(&cuda, outputs, columns, 64);
        for rows in [1, 12, 32, 64] {
            let what = format!("{outputs} x {columns}, {rows} rows");
            sample(&problem, rows, &problem.run(rows, rows, &limits), &what);
        }
    }
}

/// Compares 300 values of every result with f64, and whole rows of the norm.
fn sample(problem: &Problem<'_>, rows: usize, written: &Written, what: &str) {
    const COUNT: usize = 300;
    let mut rng = rng(rows as u64);
    let (outputs, stride) = (problem.outputs, problem.outputs + PAD);
    let act = only_live(&written.act, rows, outputs, stride, what);
    let f32 = only_live(&written.f32, rows, outputs, stride, what);
    let residual = only_live(&written.residual, rows, outputs, outputs, what);
    let picks: Vec<(usize, usize)> = (0..COUNT)
        .map(|i| match i {
            // The last outputs are the ones that are easily forgotten.
            0..16 => (below(&mut rng, rows), outputs - 16 + i),
            _ => (below(&mut rng, rows), below(&mut rng, outputs)),
        })
        .collect();
    let exact: Vec<f64> = picks.iter().map(|&(r, o)| problem.exact(r, o)).collect();
    let of = |values: &[f32]| -> Vec<f32> {
        picks
            .iter()
            .map(|&(r, o)| values[r * outputs + o])
            .collect()
    };
    assert_close(&of(&f32), &exact, f32_bound(problem.columns), what);
    assert_narrowed(&act, &f32, what);
    if problem.gated() {
        let intermediate = outputs / 2;
        let swiglu = only_live(&written.swiglu, rows, intermediate, intermediate, what);
        let (mut got, mut exact) = (Vec::new(), Vec::new());
        for _ in 0..COUNT {
            let (row, j) = (below(&mut rng, rows), below(&mut rng, intermediate));
            let (gate, up) = crate::gate_up_rows(j, intermediate);
            let gate = problem.exact(row, gate);
            got.push(swiglu[row * intermediate + j]);
            exact.push(gate / (1.0 + (-gate).exp()) * problem.exact(row, up));
        }
        assert_rounded(&got, &exact, what);
    }
    if problem.normed() {
        let sums: Vec<f64> = (picks.iter().zip(&exact))
            .map(|(&(r, o), exact)| f64::from(problem.residual[r * outputs + o]) + exact)
            .collect();
        assert_close(&of(&residual), &sums, f32_bound(problem.columns), what);
        let normed = only_live(&written.normed, rows, outputs, outputs, what);
        let mut exact = Vec::with_capacity(rows * outputs);
        for row in residual.chunks(outputs) {
            let squares: f64 = row.iter().map(|&v| f64::from(v).powi(2)).sum();
            let scale = 1.0 / (squares / outputs as f64 + f64::from(EPS)).sqrt();
            let pairs = row.iter().zip(&problem.norm_weight);
            exact.extend(pairs.map(|(&v, &w)| f64::from(v) * scale * f64::from(w)));
        }
        assert_rounded(&normed, &exact, what);
    }
}

#[test]
fn unfit_weights_are_refused_by_name() {
    let Some(cuda) = gpu() else { return };
    let live = put(&cuda, &[1u32, 1]);
    let rows = Rows::new(1, &live);
    let x = put(&cuda, &[bf16::ONE; 32]);
    let mut out = poisoned::<f32>(&cuda, 8);
    for (dtype, columns, says) in [
        (crate::Dtype::F32, 32, "bf16 weights"),
        (crate::Dtype::Bf16, 24, "multiple of 16 inputs"),
    ] {
        let weight = Tensor::from_f32(&cuda, dtype, 8, columns, &vec![1.0; 8 * columns]).unwrap();
        let op = Linear {
            rows,
            x: &x,
            weight: &weight,
            out: LinearOut::F32(&mut out),
            out_stride: 8,
        };
        let error = cuda.linear(op).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    for (outputs, says) in [(6, "multiple of 4 values"), (5136, "at most 5120")] {
        let weight = Tensor::from_f32(
            &cuda,
            crate::Dtype::Bf16,
            outputs,
            16,
            &vec![1.0; outputs * 16],
        )
        .unwrap();
        let op = LinearAddNorm {
            rows,
            x: &x,
            weight: &weight,
            summation: Summation::Whole,
            residual: &mut poisoned(&cuda, outputs),
            norm_weight: &poisoned(&cuda, outputs),
            eps: EPS,
            normed: &mut poisoned(&cuda, outputs),
        };
        let error = cuda.linear_add_norm(op).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

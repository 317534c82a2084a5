//! More rows than the small kernel is made for: the kernels of Hopper against it, bit by bit, and
//! cuBLASLt.

use super::super::{cases, gpu, wide};
use super::agreement::{BF16_BOUND, f32_bound};
use super::bits::same_rows;
use super::*;
use crate::testing::assert_close;

/// Outputs and inputs: of the tiny pair, ones that divide nothing, those of the 27B target.
const SHAPES: [(usize, usize); 10] = [
    (1030, 192),
    (192, 384),
    (1024, 192),
    (100, 400),
    (40, 1104),
    (6144, 5120),
    (5120, 6144),
    (16480, 5120),
    (34816, 5120),
    (5120, 17408),
];

/// The limits of the GPU, and those of one like it without warpgroup products.
fn limits(cuda: &Cuda) -> (Limits, Limits) {
    let here = Limits::of(cuda).unwrap();
    let without = Limits {
        warpgroups: false,
        ..here
    };
    (here, without)
}

/// The most rows that the small kernel gets.
const SMALL_ROWS: usize = 512;

#[test]
fn hopper_kernels_have_the_bits_of_the_small_one() {
    let Some(cuda) = gpu() else { return };
    let (here, without) = limits(&cuda);
    if !here.warpgroups {
        return println!("skipped: no Hopper GPU");
    }
    for &(outputs, columns) in cases(&SHAPES, 5) {
        let problem = Problem::new(&cuda, outputs, columns, 700);
        let small = problem.run(SMALL_ROWS, SMALL_ROWS, &without);
        for (rows, live) in [
            (17, 17),
            (24, 23),
            (33, 33),
            (48, 48),
            (64, 64),
            (96, 90),
            (128, 128),
            (192, 192),
            (256, 255),
            (300, 300),
            (512, 512),
        ] {
            let what = format!("{outputs} x {columns}, {live} of {rows} rows");
            same_rows(
                &problem,
                live,
                &problem.run(rows, live, &here),
                &small,
                &what,
            );
        }
        let what = format!("{outputs} x {columns}, 700 rows");
        same_rows(
            &problem,
            SMALL_ROWS,
            &problem.run(700, 700, &here),
            &small,
            &what,
        );
    }
}

/// The library's kernels may sum in another order than ours, but a row's sums do not depend on the
/// number of rows.
#[test]
fn cublas_rows_do_not_depend_on_their_number() {
    let Some(cuda) = gpu() else { return };
    let (_, without) = limits(&cuda);
    for &(outputs, columns) in cases(&SHAPES, 5) {
        let what = format!("{outputs} x {columns}");
        let problem = Problem::new(&cuda, outputs, columns, 2048);
        let all = problem.run(2048, 2048, &without);
        for rows in [513, 700, 1999] {
            let some = problem.run(rows, rows, &without);
            same_rows(&problem, rows, &some, &all, &format!("{what}, {rows} rows"));
        }
        let small = problem.run(SMALL_ROWS, SMALL_ROWS, &without);
        let equal = close(&problem, &small, &all, &what);
        println!("{what}: {equal} of the library's results have the bits of our kernel");
    }
}

/// On either route of prompts few rows have the bits of many, and both are those of a step but for
/// the order of its sums.
#[test]
fn rows_of_prompts_do_not_depend_on_their_number() {
    let Some(cuda) = gpu() else { return };
    let (here, without) = limits(&cuda);
    for (outputs, columns) in SHAPES {
        let mut problem = Problem::new(&cuda, outputs, columns, 2048);
        let step = problem.run(SMALL_ROWS, SMALL_ROWS, &without);
        problem.prompt = true;
        for (route, limits) in [("here", &here), ("library", &without)] {
            let what = format!("{outputs} x {columns}, {route}");
            let all = problem.run(2048, 2048, limits);
            for rows in [1, 5, 16, 17, 40, 64, 200, 512, 700, 1999] {
                let some = problem.run(rows, rows, limits);
                same_rows(&problem, rows, &some, &all, &format!("{what}, {rows} rows"));
            }
            println!(
                "{what}: {} as in a step",
                close(&problem, &step, &all, &what)
            );
        }
        let some = problem.run(300, 290, &here);
        let all = problem.run(2048, 2048, &here);
        same_rows(&problem, 290, &some, &all, "290 of 300 rows");
    }
}

/// Fails unless the results of the small kernel's rows are as close as rounding allows. Says which
/// are equal.
#[track_caller]
fn close(problem: &Problem<'_>, small: &Written, many: &Written, what: &str) -> String {
    let (outputs, stride) = (problem.outputs, problem.outputs + PAD);
    let (bound, mut equal) = (f32_bound(problem.columns), Vec::new());
    let mut compare = |name, some: Vec<f32>, all: Vec<f32>, bound| {
        let exact: Vec<f64> = some.iter().copied().map(f64::from).collect();
        assert_close(&all, &exact, bound, &format!("{what}, {name}"));
        if some == all {
            equal.push(name);
        }
    };
    let act = |written: &Written| wide(&inside(&written.act, outputs, stride));
    compare("act", act(small), act(many), BF16_BOUND);
    let f32 = |written: &Written| inside(&written.f32, outputs, stride);
    compare("f32", f32(small), f32(many), bound);
    if problem.gated() {
        let swiglu = |written: &Written| wide(&inside(&written.swiglu, outputs / 2, outputs / 2));
        compare("swiglu", swiglu(small), swiglu(many), BF16_BOUND);
    }
    if problem.normed() {
        let residual = |written: &Written| inside(&written.residual, outputs, outputs);
        compare("residual", residual(small), residual(many), bound);
        let normed = |written: &Written| wide(&inside(&written.normed, outputs, outputs));
        compare("normed", normed(small), normed(many), BF16_BOUND);
    }
    equal.join(", ")
}

/// The first `width` values of the small kernel's rows.
fn inside<T: Copy>(values: &[T], width: usize, stride: usize) -> Vec<T> {
    let rows = values.chunks(stride).take(SMALL_ROWS);
    rows.flat_map(|row| &row[..width]).copied().collect()
}

/// Blocks hand sums over to each other: a race would show as a run that differs.
#[test]
fn repeated_products_are_equal() {
    let Some(cuda) = gpu() else { return };
    let here = Limits::of(&cuda).unwrap();
    let all = [
        (1024, 192, 256),
        (5120, 6144, 256),
        (34816, 5120, 64),
        (14336, 5120, 512),
    ];
    for &(outputs, columns, rows) in cases(&all, 1) {
        let problem = Problem::new(&cuda, outputs, columns, rows);
        let first = problem.run(rows, rows, &here);
        for run in 0..10 {
            let what = format!("{outputs} x {columns}, {rows} rows, run {run}");
            same_rows(
                &problem,
                rows,
                &problem.run(rows, rows, &here),
                &first,
                &what,
            );
        }
    }
}

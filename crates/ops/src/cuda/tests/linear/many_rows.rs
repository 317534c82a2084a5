//! More rows than the small kernel is made for: the kernels of Hopper and cuBLASLt against it, bit
//! by bit.

use super::super::gpu;
use super::bits::same_rows;
use super::*;

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
    for (outputs, columns) in SHAPES {
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

#[test]
fn cublas_has_the_bits_of_the_small_kernel() {
    let Some(cuda) = gpu() else { return };
    let (_, without) = limits(&cuda);
    for (outputs, columns) in SHAPES {
        let problem = Problem::new(&cuda, outputs, columns, 2048);
        let small = problem.run(SMALL_ROWS, SMALL_ROWS, &without);
        for rows in [513, 700, 2048] {
            let what = format!("{outputs} x {columns}, {rows} rows by cuBLASLt");
            let many = problem.run(rows, rows, &without);
            same_rows(&problem, SMALL_ROWS, &many, &small, &what);
        }
    }
}

/// Blocks hand sums over to each other: a race would show as a run that differs.
#[test]
fn repeated_products_are_equal() {
    let Some(cuda) = gpu() else { return };
    let here = Limits::of(&cuda).unwrap();
    for (outputs, columns, rows) in [(5120, 6144, 256), (34816, 5120, 64), (14336, 5120, 512)] {
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

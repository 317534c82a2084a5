use super::*;
use crate::testing::{DTYPES, assert_close, bits, floats, live, on_every_path, rounded};
use crate::{Backend, Dtype};

fn tensor(dtype: Dtype, rows: usize, columns: usize, values: &[f32]) -> Tensor<Cpu> {
    Tensor::from_f32(&Cpu::default(), dtype, rows, columns, values).unwrap()
}

fn stored(x: &[f32], w: &Tensor<Cpu>, summation: Summation) -> Vec<f32> {
    let rows = x.len() / w.columns;
    let mut out = vec![f32::NAN; rows * w.rows];
    let put = |out: &mut f32, product| *out = product;
    product(x, rows, w, summation, w.rows, &mut out, put);
    out
}

#[test]
fn products_agree_with_f64() {
    let shapes = [
        (1, 1, 1),
        (3, 17, 5),
        (5, 64, 50),
        (7, 130, 97),
        (2, 7, 3),
        (64, 512, 49),
        (6, 128, 48),
    ];
    for dtype in DTYPES {
        for (case, (rows, k, n)) in shapes.into_iter().enumerate() {
            let x = floats(case as u64, rows * k);
            let w = floats(100 + case as u64, n * k);
            let exact: Vec<f64> = (0..rows * n)
                .map(|at| {
                    let (x, w) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
                    let terms = x.iter().zip(w);
                    terms
                        .map(|(&x, &w)| f64::from(x) * f64::from(rounded(dtype, w)))
                        .sum()
                })
                .collect();
            for summation in [Summation::Whole, Summation::EightBlocks] {
                let out = stored(&x, &tensor(dtype, n, k, &w), summation);
                let what = format!("{dtype:?} {rows} x {k} x {n} {summation:?}");
                assert_close(&out, &exact, 1e-12, &what);
            }
        }
    }
}

/// The order that [`Summation::Whole`] promises, one rounding per multiply-add.
fn sixteen_lanes(x: &[f32], w: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    for (k, (x, w)) in x.iter().zip(w).enumerate() {
        lanes[k % 16] = x.mul_add(*w, lanes[k % 16]);
    }
    for half in [8, 4, 2, 1] {
        for j in 0..half {
            lanes[j] += lanes[j + half];
        }
    }
    lanes[0]
}

#[test]
fn whole_sums_run_over_sixteen_lanes() {
    for k in [1, 7, 8, 9, 16, 17, 24, 31, 130] {
        let (x, w) = (floats(k as u64, k), floats(k as u64 + 1, k));
        let out = stored(&x, &tensor(Dtype::F32, 1, k, &w), Summation::Whole);
        assert_eq!(bits(&out), bits(&[sixteen_lanes(&x, &w)]), "K = {k}");
    }
}

#[test]
fn a_row_does_not_depend_on_the_rows_beside_it() {
    let (k, n) = (136, 53);
    let x = floats(1, 64 * k);
    for dtype in DTYPES {
        let w = tensor(dtype, n, k, &floats(2, n * k));
        for summation in [Summation::Whole, Summation::EightBlocks] {
            let all = stored(&x, &w, summation);
            for count in 1..=64 {
                for first in [0, 64 - count, (64 - count) / 2] {
                    let some = stored(&x[first * k..][..count * k], &w, summation);
                    let same = &all[first * n..][..count * n];
                    assert_eq!(bits(&some), bits(same), "{count} rows from {first}");
                }
            }
        }
    }
}

#[test]
fn threads_and_vectors_do_not_enter_the_bits() {
    let (rows, k, n) = (33, 520, 130);
    assert!(rows * k * n > PARALLEL_WORK);
    let x = floats(1, rows * k);
    for dtype in DTYPES {
        let w = tensor(dtype, n, k, &floats(2, n * k));
        for summation in [Summation::Whole, Summation::EightBlocks] {
            let spread = on_every_path(|| stored(&x, &w, summation));
            // A single row is below the work that is spread.
            let alone = stored(&x[..k], &w, summation);
            assert_eq!(bits(&alone), bits(&spread[..n]));
        }
    }
}

/// The columns that `rank` of `ranks` holds.
fn columns(values: &[f32], k: usize, rank: usize, ranks: usize) -> Vec<f32> {
    let len = k / ranks;
    values
        .chunks(k)
        .flat_map(|row| &row[rank * len..(rank + 1) * len])
        .copied()
        .collect()
}

/// Neighbours first.
fn all_reduce(mut parts: Vec<Vec<f32>>) -> Vec<f32> {
    while parts.len() > 1 {
        parts = parts
            .chunks(2)
            .map(|pair| pair[0].iter().zip(&pair[1]).map(|(a, b)| a + b).collect())
            .collect();
    }
    parts.remove(0)
}

#[test]
fn every_number_of_ranks_gives_the_same_bits() {
    let rows = 5;
    for (k, n) in [(1024, 50), (128, 3), (136, 7), (8 * 33, 48)] {
        let (x, w) = (floats(3, rows * k), floats(4, n * k));
        for dtype in DTYPES {
            let one = stored(&x, &tensor(dtype, n, k, &w), Summation::EightBlocks);
            for ranks in [2, 4, 8] {
                let parts = (0..ranks).map(|rank| {
                    let shard = tensor(dtype, n, k / ranks, &columns(&w, k, rank, ranks));
                    stored(
                        &columns(&x, k, rank, ranks),
                        &shard,
                        Summation::Shard { ranks },
                    )
                });
                let sum = all_reduce(parts.collect());
                assert_eq!(bits(&one), bits(&sum), "{ranks} ranks, K = {k}");
            }
            let shards = (0..8).map(|rank| {
                let shard = tensor(dtype, n, k / 8, &columns(&w, k, rank, 8));
                stored(&columns(&x, k, rank, 8), &shard, Summation::Whole)
            });
            assert_eq!(bits(&one), bits(&all_reduce(shards.collect())), "K = {k}");
        }
    }
    let (x, w) = (
        floats(3, 1024),
        tensor(Dtype::F32, 9, 1024, &floats(4, 9 * 1024)),
    );
    let blocks = stored(&x, &w, Summation::EightBlocks);
    assert_ne!(bits(&blocks), bits(&stored(&x, &w, Summation::Whole)));
}

#[test]
#[should_panic(expected = "3 ranks share a product")]
fn three_ranks_are_refused() {
    let w = tensor(Dtype::F32, 1, 128, &floats(1, 128));
    stored(&floats(2, 128), &w, Summation::Shard { ranks: 3 });
}

#[test]
fn padding_rows_and_columns_behind_the_outputs_are_left_alone() {
    let (k, stride) = (4, 5);
    let w = tensor(Dtype::F32, 3, k, &floats(2, 3 * k));
    let x = floats(1, 5 * k);
    for live_rows in [0, 2] {
        let mut acts: Box<[f32]> = vec![7.0; 5 * stride].into();
        let mut floats = acts.clone();
        for out in [LinearOut::Act(&mut acts), LinearOut::F32(&mut floats)] {
            let op = Linear {
                rows: Rows {
                    capacity: 5,
                    live: &live(live_rows),
                    prompt: false,
                },
                x: &x[..].into(),
                weight: &w,
                out,
                out_stride: stride,
            };
            Cpu::default().linear(op).unwrap();
        }
        let products = stored(&x, &w, Summation::Whole);
        for out in [&acts, &floats] {
            for (row, out) in out.chunks(stride).enumerate() {
                let outputs = if row < live_rows { 3 } else { 0 };
                assert_eq!(bits(&out[..outputs]), bits(&products[row * 3..][..outputs]));
                assert!(out[outputs..].iter().all(|&v| v == 7.0), "row {row}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "3 outputs in rows of 2")]
fn rows_must_hold_the_outputs() {
    let w = tensor(Dtype::F32, 3, 4, &floats(2, 12));
    product(
        &floats(1, 4),
        1,
        &w,
        Summation::Whole,
        2,
        &mut [0.0; 2],
        |_, _| (),
    );
}

#[test]
fn not_a_number_stays_in_its_row() {
    let (rows, k, n) = (9, 40, 50);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = floats(1, rows * k);
        let w = tensor(Dtype::F32, n, k, &floats(2, n * k));
        let clean = stored(&x, &w, Summation::Whole);
        x[4 * k + 39] = bad;
        let out = stored(&x, &w, Summation::Whole);
        for row in 0..rows {
            let (out, clean) = (&out[row * n..][..n], &clean[row * n..][..n]);
            if row == 4 {
                assert!(out.iter().all(|v| !v.is_finite()));
            } else {
                assert_eq!(bits(out), bits(clean));
            }
        }
    }
}

use super::*;
use crate::testing::{bits, floats, live, normalised_error};
use crate::{Backend, Dtype};

#[test]
#[ignore]
fn speed() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for (k, n) in [(256, 1024), (512, 2048), (192, 128), (1024, 256)] {
            let weight = Tensor::from_f32(&Cpu::default(), dtype, n, k, &floats(1, n * k)).unwrap();
            for summation in [Summation::Whole, Summation::EightBlocks] {
                for rows in [1usize, 4, 16, 64, 1024] {
                    let x = floats(2, rows * k).into();
                    let mut out: Box<[f32]> = vec![0.0; rows * n].into();
                    let live = live(rows, 1);
                    let mut best = f64::MAX;
                    let repeat = (40_000_000 / (rows * n * k)).max(3);
                    for _ in 0..repeat {
                        let start = std::time::Instant::now();
                        cpu(Linear {
                            rows: Rows {
                                capacity: rows,
                                live: &live,
                            },
                            x: &x,
                            weight: &weight,
                            summation,
                            output: Output::Store,
                            out: &mut out,
                        });
                        best = best.min(start.elapsed().as_secs_f64());
                    }
                    println!(
                        "{dtype:?} k={k} n={n} {summation:?} m={rows}: {:.1} us {:.1} GFLOP/s",
                        best * 1e6,
                        2e-9 * (rows * n * k) as f64 / best
                    );
                }
            }
        }
    }
}

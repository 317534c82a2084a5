//! Time of one product on the CPU over weight type, row count and shape. Throughput counts two
//! operations per multiply-add, so Gelem/s reads as GFLOP/s.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ops::{Backend, Batch, Cpu, Dtype, Linear, LinearOut, Tensor};

/// Inputs and outputs per row: projections of the bundled model and of a wider one.
const SHAPES: [(usize, usize); 2] = [(256, 1024), (512, 2048)];
const ROWS: [usize; 4] = [1, 4, 16, 64];

/// Values in -1..1 without a pattern.
fn values(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(next).collect()
}

fn linear(criterion: &mut Criterion) {
    let backend = Cpu::default();
    for (columns, outputs) in SHAPES {
        let mut group = criterion.benchmark_group(format!("linear/{columns}x{outputs}"));
        group.sample_size(20);
        group.warm_up_time(Duration::from_millis(200));
        group.measurement_time(Duration::from_millis(700));
        let weights = values(outputs * columns);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let weight =
                Tensor::from_f32(&backend, dtype, outputs, columns, &weights).expect("host memory");
            for rows in ROWS {
                let mut batch = Batch::new(&backend, rows, 1).expect("host memory");
                batch.live.copy_from_slice(&[rows as u32, 1]);
                let x: Box<[f32]> = values(rows * columns).into();
                let mut out: Box<[f32]> = vec![0.0; rows * outputs].into();
                group.throughput(Throughput::Elements((2 * rows * columns * outputs) as u64));
                let id = BenchmarkId::new(format!("{dtype:?}"), rows);
                group.bench_function(id, |bencher| {
                    bencher.iter(|| {
                        let op = Linear {
                            rows: batch.rows(rows),
                            x: black_box(&x),
                            weight: &weight,
                            out: LinearOut::F32(&mut out),
                            out_stride: outputs,
                        };
                        backend.linear(op).expect("a CPU op cannot fail");
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, linear);
criterion_main!(benches);

//! The activation of gate and up over the whole range of gates.

use super::super::gpu;
use super::*;
use crate::gate_up_rows;
use crate::testing::live;

/// Outputs of each kind; gate `j` is `2^(j % 8 - 3)` times the row's own.
const INTERMEDIATE: usize = 64;
const COLUMNS: usize = 64;

/// Gates of the rows, of either sign: where silu is linear, curved, next to nothing (its denominator
/// is large but finite from -88.7 on), and beyond what an exponential can hold.
const GATES: [f32; 16] = [
    0.0, 1e-30, 1e-3, 0.125, 0.5, 1.0, 1.75, 3.0, 5.5, 5.75, 7.0, 11.0, 22.0, 44.0, 1e4, 1e30,
];
const UP: f32 = 0.625;

fn factor(j: usize) -> f32 {
    2f32.powi(j as i32 % 8 - 3)
}

fn gate(row: usize) -> f32 {
    let size = bf16::from_f32(GATES[row / 2 % GATES.len()]).to_f32();
    if row.is_multiple_of(2) { size } else { -size }
}

/// `[rows, INTERMEDIATE]`.
fn activated(cuda: &Cuda, rows: usize, limits: &Limits) -> Vec<f32> {
    let mut weight = vec![0.0; 2 * INTERMEDIATE * COLUMNS];
    for j in 0..INTERMEDIATE {
        let (gate, up) = gate_up_rows(j, INTERMEDIATE);
        weight[gate * COLUMNS] = factor(j);
        weight[up * COLUMNS + COLUMNS - 1] = 1.0;
    }
    let dtype = crate::Dtype::Bf16;
    let weight = Tensor::from_f32(cuda, dtype, 2 * INTERMEDIATE, COLUMNS, &weight).unwrap();
    let mut x = vec![0.0; rows * COLUMNS];
    for (row, x) in x.chunks_mut(COLUMNS).enumerate() {
        (x[0], x[COLUMNS - 1]) = (gate(row), UP);
    }
    let needs = ScratchNeeds {
        rows,
        hidden: 2 * INTERMEDIATE,
        ..ScratchNeeds::default()
    };
    cuda.reserve(&needs).unwrap();
    let room = poisoned::<bf16>(cuda, rows * 2 * INTERMEDIATE);
    let out = poisoned::<bf16>(cuda, rows * INTERMEDIATE);
    let product = Product {
        rows: Rows {
            capacity: rows,
            live: &put(cuda, &live(rows)),
            prompt: false,
        },
        x: &put(cuda, &narrow(&x)),
        weight: &weight,
        slices: 1,
        store: Store::Swiglu,
        out: out.ptr(),
        out_row: INTERMEDIATE,
        scratch_used: 0,
        room: (room.ptr(), 2 * room.len()),
    };
    product.enqueue(cuda, limits).unwrap();
    super::super::wide(&get(cuda, &out))
}

#[test]
fn gates_of_every_size_are_one_rounding_off() {
    let Some(cuda) = gpu() else { return };
    let here = Limits::of(&cuda).unwrap();
    let without = Limits {
        warpgroups: false,
        ..here
    };
    // All small kernels, those of Hopper, and the one behind cuBLASLt.
    for rows in [8, 16, 32, 64, 130, 600] {
        for limits in [&here, &without] {
            let out = activated(&cuda, rows, limits);
            for (at, &out) in out.iter().enumerate() {
                let gate =
                    f64::from(gate(at / INTERMEDIATE)) * f64::from(factor(at % INTERMEDIATE));
                let exact = gate / (1.0 + (-gate).exp()) * f64::from(UP);
                let error = (f64::from(out) - exact).abs();
                assert!(
                    error <= exact.abs() / 250.0 + 1e-36,
                    "{rows} rows, {limits:?}, gate {gate}: {out} for {exact}"
                );
            }
        }
    }
}

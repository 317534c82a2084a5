//! Products: against the CPU, against f64, and bit by bit against themselves.

use half::bf16;

use super::{get, narrow, poisoned, put};
use crate::cuda::linear::Product;
use crate::cuda::linear::plan::{Limits, Store};
use crate::cuda::linear_add_norm;
use crate::testing::floats;
use crate::{Backend, Cuda, LinearAddNorm, Rows, ScratchNeeds, Storage, Summation, Tensor};

mod activation;
mod agreement;
mod bits;
mod many_rows;

const EPS: f32 = 1e-6;

/// Columns behind the outputs of a row that must stay as they are.
const PAD: usize = 3;

/// A weight repeats a block of values of this length, a prime: no two rows and no two columns see
/// the same values, and the host need not hold the weights of a large model.
const PERIOD: usize = 1_000_003;

/// Weight, rows and residual of a product, on the device.
struct Problem<'a> {
    cuda: &'a Cuda,
    outputs: usize,
    columns: usize,
    /// One period of the weight.
    block: Vec<bf16>,
    weight: Tensor<Cuda>,
    x: Vec<bf16>,
    residual: Vec<f32>,
    norm_weight: Vec<f32>,
    /// Whether the rows are those of prompts.
    prompt: bool,
}

/// What the ops wrote, all of their buffers.
#[derive(PartialEq)]
struct Written {
    /// `[rows + 1, outputs + PAD]`.
    act: Vec<bf16>,
    /// `[rows + 1, outputs + PAD]`.
    f32: Vec<f32>,
    /// `[rows + 1, outputs / 2]`; empty where gate and up do not come in eights.
    swiglu: Vec<bf16>,
    /// `[rows + 1, outputs]`; empty where outputs do not come in fours.
    residual: Vec<f32>,
    /// `[rows + 1, outputs]`, as above.
    normed: Vec<bf16>,
}

impl<'a> Problem<'a> {
    /// `rows`: the most that will be used.
    fn new(cuda: &'a Cuda, outputs: usize, columns: usize, rows: usize) -> Self {
        let seed = (outputs * 31 + columns) as u64;
        // Variance 1 / columns, so that products are about as large as x.
        let scale = (3.0 / columns as f32).sqrt();
        let len = outputs * columns;
        let block: Vec<f32> = floats(seed, len.min(PERIOD))
            .iter()
            .map(|value| value * scale)
            .collect();
        let block = narrow(&block);
        let mut weight = cuda.alloc::<bf16>(len).unwrap();
        for start in (0..len).step_by(PERIOD) {
            let part = &block[..PERIOD.min(len - start)];
            cuda.upload(part, &mut weight, start).unwrap();
        }
        let needs = ScratchNeeds {
            rows,
            hidden: outputs,
            ..ScratchNeeds::default()
        };
        cuda.reserve(&needs).unwrap();
        Problem {
            cuda,
            outputs,
            columns,
            block,
            weight: Tensor {
                storage: Storage::Bf16(weight),
                rows: outputs,
                columns,
            },
            x: narrow(&floats(seed + 1, rows * columns)),
            residual: floats(seed + 2, rows * outputs),
            norm_weight: floats(seed + 3, outputs),
            prompt: false,
        }
    }

    fn gated(&self) -> bool {
        self.outputs.is_multiple_of(16)
    }

    fn normed(&self) -> bool {
        self.outputs.is_multiple_of(4) && self.outputs <= 5120
    }

    fn weight_at(&self, output: usize, column: usize) -> f64 {
        f64::from(self.block[(output * self.columns + column) % PERIOD])
    }

    /// The product of one row and output.
    fn exact(&self, row: usize, output: usize) -> f64 {
        let x = &self.x[row * self.columns..][..self.columns];
        let terms = x.iter().enumerate();
        terms
            .map(|(k, &x)| f64::from(x) * self.weight_at(output, k))
            .sum()
    }

    /// All ops on the first `live` of `capacity` rows, divided as on a GPU of these limits.
    fn run(&self, capacity: usize, live: usize, limits: &Limits) -> Written {
        let cuda = self.cuda;
        let live_table = put(cuda, &[live as u32, 1]);
        let rows = Rows {
            prompt: self.prompt,
            ..Rows::new(capacity, &live_table)
        };
        let mut x = put(cuda, &vec![bf16::NAN; capacity * self.columns]);
        cuda.upload(&self.x[..live * self.columns], &mut x, 0)
            .unwrap();
        let room = poisoned::<bf16>(cuda, (capacity + 1) * self.outputs);
        let product = |store, out, out_row| {
            let product = Product {
                rows,
                x: &x,
                weight: &self.weight,
                slices: 1,
                store,
                out,
                out_row,
                scratch_used: 0,
                room: (room.ptr(), 2 * room.len()),
            };
            product.enqueue(cuda, limits).unwrap();
        };
        let stride = self.outputs + PAD;
        let act = poisoned::<bf16>(cuda, (capacity + 1) * stride);
        product(Store::Bf16, act.ptr(), stride);
        let f32 = poisoned::<f32>(cuda, (capacity + 1) * stride);
        product(Store::F32, f32.ptr(), stride);
        let gated = (capacity + 1) * self.outputs / 2 * usize::from(self.gated());
        let swiglu = poisoned::<bf16>(cuda, gated);
        if self.gated() {
            product(Store::Swiglu, swiglu.ptr(), self.outputs / 2);
        }
        let values = (capacity + 1) * self.outputs * usize::from(self.normed());
        let mut residual = poisoned::<f32>(cuda, values);
        let mut normed = poisoned::<bf16>(cuda, values);
        if self.normed() {
            let before = &self.residual[..live * self.outputs];
            cuda.upload(before, &mut residual, 0).unwrap();
            let op = LinearAddNorm {
                rows,
                x: &x,
                weight: &self.weight,
                summation: Summation::Whole,
                residual: &mut residual,
                norm_weight: &put(cuda, &self.norm_weight),
                eps: EPS,
                normed: &mut normed,
            };
            linear_add_norm::enqueue(cuda, op, limits).unwrap();
        }
        Written {
            act: get(cuda, &act),
            f32: get(cuda, &f32),
            swiglu: get(cuda, &swiglu),
            residual: get(cuda, &residual),
            normed: get(cuda, &normed),
        }
    }
}

/// The first `width` values of the first `live` rows of `stride`; fails unless all others are as
/// `poisoned` made them.
#[track_caller]
fn only_live<T: bytemuck::Pod>(
    values: &[T],
    live: usize,
    width: usize,
    stride: usize,
    what: &str,
) -> Vec<T> {
    let mut inside = Vec::with_capacity(live * width);
    for (row, values) in values.chunks(stride).enumerate() {
        let written = if row < live { width } else { 0 };
        inside.extend_from_slice(&values[..written]);
        let untouched: &[u8] = bytemuck::cast_slice(&values[written..]);
        assert!(
            untouched.iter().all(|&byte| byte == 0xAB),
            "{what}: row {row} is written past its {written} values"
        );
    }
    inside
}

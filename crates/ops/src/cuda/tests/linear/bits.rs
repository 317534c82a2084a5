//! A row's bits: the same whatever runs beside it, on whatever GPU, recorded or not.

use super::super::{cases, gpu};
use super::*;
use crate::cuda::CudaBuf;
use crate::{Linear, LinearOut, LinearSwiglu, OpsError};

/// Outputs and inputs: small ones, ones that divide nothing, and those of the 27B target.
const SHAPES: [(usize, usize); 8] = [
    (1030, 192),
    (192, 512),
    (100, 400),
    (16480, 5120),
    (14336, 5120),
    (5120, 6144),
    (34816, 5120),
    (5120, 17408),
];

/// Multiprocessors and shared memory of the GPUs that the kernels are built for.
fn gpus(cuda: &Cuda) -> Vec<Limits> {
    let mut all = vec![Limits::of(cuda).unwrap()];
    for (multiprocessors, kib) in [(132, 228), (108, 164), (142, 100), (188, 100), (24, 100)] {
        all.push(Limits {
            multiprocessors,
            shared_bytes: kib << 10,
            warpgroups: false,
        });
    }
    all
}

#[test]
fn rows_do_not_depend_on_their_number() {
    let Some(cuda) = gpu() else { return };
    let limits = Limits::of(&cuda).unwrap();
    for &(outputs, columns) in cases(&SHAPES, 3) {
        let most = 130;
        let problem = Problem::new(&cuda, outputs, columns, most);
        let all = problem.run(most, most, &limits);
        for rows in [
            1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96,
        ] {
            let what = format!("{outputs} x {columns}, {rows} rows");
            same_rows(
                &problem,
                rows,
                &problem.run(rows, rows, &limits),
                &all,
                &what,
            );
        }
        let what = format!("{outputs} x {columns}, 40 of 64 rows");
        same_rows(&problem, 40, &problem.run(64, 40, &limits), &all, &what);
    }
}

#[test]
fn rows_do_not_depend_on_the_gpu() {
    let Some(cuda) = gpu() else { return };
    let gpus = gpus(&cuda);
    for &(outputs, columns) in cases(&SHAPES, 3) {
        let problem = Problem::new(&cuda, outputs, columns, 64);
        for rows in [1, 16, 32, 64] {
            let here = problem.run(rows, rows, &gpus[0]);
            for limits in &gpus[1..] {
                let there = problem.run(rows, rows, limits);
                let what = format!("{outputs} x {columns}, {rows} rows, {limits:?}");
                same_rows(&problem, rows, &there, &here, &what);
            }
        }
    }
}

#[track_caller]
pub(super) fn same_rows(
    problem: &Problem<'_>,
    rows: usize,
    some: &Written,
    all: &Written,
    what: &str,
) {
    let (outputs, stride) = (problem.outputs, problem.outputs + PAD);
    let same = |some: &[u8], all: &[u8], bytes: usize| {
        assert!(
            some[..rows * bytes] == all[..rows * bytes],
            "{what}: rows differ"
        );
    };
    same(bytes(&some.act), bytes(&all.act), 2 * stride);
    same(bytes(&some.f32), bytes(&all.f32), 4 * stride);
    if problem.gated() {
        same(bytes(&some.swiglu), bytes(&all.swiglu), outputs);
    }
    if problem.normed() {
        same(bytes(&some.residual), bytes(&all.residual), 4 * outputs);
        same(bytes(&some.normed), bytes(&all.normed), 2 * outputs);
    }
}

fn bytes<T: bytemuck::Pod>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Layers of a small residual network whose every op reads what the one in front of it wrote.
struct Network<'a> {
    cuda: &'a Cuda,
    live: CudaBuf<u32>,
    rows: usize,
    up: Vec<Tensor<Cuda>>,
    down: Vec<Tensor<Cuda>>,
    out: Tensor<Cuda>,
    norm_weight: CudaBuf<f32>,
    residual: CudaBuf<f32>,
    normed: CudaBuf<bf16>,
    gate_up: CudaBuf<bf16>,
    gated: CudaBuf<bf16>,
    logits: CudaBuf<f32>,
}

const HIDDEN: usize = 512;
const INTERMEDIATE: usize = 2048;
const LAYERS: usize = 12;
const VOCABULARY: usize = 4001;

impl<'a> Network<'a> {
    fn new(cuda: &'a Cuda, rows: usize) -> Self {
        let tensor = |seed, outputs, columns: usize| {
            let scale = (3.0 / columns as f32).sqrt();
            let values: Vec<f32> = floats(seed, outputs * columns)
                .iter()
                .map(|value| value * scale)
                .collect();
            Tensor::from_f32(cuda, crate::Dtype::Bf16, outputs, columns, &values).unwrap()
        };
        let needs = ScratchNeeds {
            rows,
            hidden: HIDDEN,
            ..ScratchNeeds::default()
        };
        cuda.reserve(&needs).unwrap();
        let layers = |seed: u64, outputs, columns| -> Vec<Tensor<Cuda>> {
            (0..LAYERS as u64)
                .map(|layer| tensor(seed + layer, outputs, columns))
                .collect()
        };
        Network {
            cuda,
            live: put(cuda, &[rows as u32, 1]),
            rows,
            up: layers(100, 2 * INTERMEDIATE, HIDDEN),
            down: layers(200, HIDDEN, INTERMEDIATE),
            out: tensor(7, VOCABULARY, HIDDEN),
            norm_weight: put(cuda, &floats(8, HIDDEN)),
            residual: put(cuda, &vec![0.0; rows * HIDDEN]),
            normed: put(cuda, &vec![bf16::ZERO; rows * HIDDEN]),
            gate_up: poisoned(cuda, rows * 2 * INTERMEDIATE),
            gated: poisoned(cuda, rows * INTERMEDIATE),
            logits: poisoned(cuda, rows * VOCABULARY),
        }
    }

    /// Sets what a forward starts from.
    fn reset(&mut self) {
        let residual = floats(9, self.rows * HIDDEN);
        let normed = narrow(&residual);
        self.cuda.upload(&residual, &mut self.residual, 0).unwrap();
        self.cuda.upload(&normed, &mut self.normed, 0).unwrap();
        self.logits = poisoned(self.cuda, self.rows * VOCABULARY);
    }

    /// All layers; `after` is called behind every op.
    fn forward(&mut self, after: &dyn Fn(&Cuda)) -> Result<(), OpsError> {
        let cuda = self.cuda;
        let rows = Rows::new(self.rows, &self.live);
        for (up, down) in self.up.iter().zip(&self.down) {
            cuda.linear_swiglu(LinearSwiglu {
                rows,
                x: &self.normed,
                weight: up,
                gate_up: &mut self.gate_up,
                out: &mut self.gated,
            })?;
            after(cuda);
            cuda.linear_add_norm(LinearAddNorm {
                rows,
                x: &self.gated,
                weight: down,
                summation: Summation::Whole,
                residual: &mut self.residual,
                norm_weight: &self.norm_weight,
                eps: EPS,
                normed: &mut self.normed,
            })?;
            after(cuda);
        }
        cuda.linear(Linear {
            rows,
            x: &self.normed,
            weight: &self.out,
            out: LinearOut::F32(&mut self.logits),
            out_stride: VOCABULARY,
        })?;
        after(cuda);
        Ok(())
    }
}

/// Kernels overlap the ones in front of them when they are recorded; a missing wait would read old
/// values.
#[test]
fn recorded_ops_equal_ops_run_one_by_one() {
    let Some(cuda) = gpu() else { return };
    let wait = |cuda: &Cuda| {
        let word = put(cuda, &[0u32]);
        get(cuda, &word);
    };
    for &rows in cases(&[16, 1, 8, 32, 64, 96], 1) {
        let mut network = Network::new(&cuda, rows);
        network.reset();
        network.forward(&wait).unwrap();
        let one_by_one = get(&cuda, &network.logits);
        let graph = cuda
            .record(&mut || network.forward(&|_| {}))
            .unwrap()
            .expect("CUDA has graphs");
        for &run in cases(&(0..20).collect::<Vec<_>>(), 2) {
            let residual = floats(9, rows * HIDDEN);
            cuda.upload(&narrow(&residual), &mut network.normed, 0)
                .unwrap();
            cuda.upload(&residual, &mut network.residual, 0).unwrap();
            let gone = vec![f32::NAN; rows * VOCABULARY];
            cuda.upload(&gone, &mut network.logits, 0).unwrap();
            cuda.launch(&graph).unwrap();
            let recorded = get(&cuda, &network.logits);
            assert!(
                bytes(&recorded) == bytes(&one_by_one),
                "{rows} rows, run {run}: recorded ops give other bits"
            );
        }
    }
}

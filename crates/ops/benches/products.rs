//! Times of the target's matrix products on a GPU, in GB/s of weights, beside a copy measured in the
//! same run.
//!
//!     cargo bench -p ops --features cuda --bench products -- [layers]
//!
//! Every shape is timed by itself over different weights, so that none come from a cache; then all
//! products of `layers` layers (64 are the 27B model; 51 GB) and the head in one graph, in the
//! order of a forward, each reading what the one in front of it wrote. A figure is the median of
//! rounds of at least 0.3 s: under load a GPU lowers its clock, which bursts do not show.

use std::time::Instant;

use half::bf16;
use ops::{
    Backend, Cuda, Dtype, Fill, FillLaw, FillTarget, GatherRows, Linear, LinearAddNorm, LinearOut,
    LinearSwiglu, OpsError, Rows, ScratchNeeds, Storage, Summation, Tensor,
};

const ROWS: [usize; 7] = [1, 8, 16, 24, 32, 48, 64];
const HIDDEN: usize = 5120;
const INTERMEDIATE: usize = 17408;
const VOCABULARY: usize = 248_320;
const GDN_IN: usize = 16480;
const ATTENTION_IN: usize = 14336;
const MIXED: usize = 6144;
const LAYERS_DEFAULT: usize = 16;
/// Every fourth layer is an attention layer.
const PERIOD: usize = 4;
/// Weights of a shape that are timed in turn: well above any cache.
const ROTATION_BYTES: usize = 1 << 30;
const ROUNDS: usize = 3;
const ROUND_SECONDS: f64 = 0.3;

type Buf<T> = <Cuda as Backend>::Buf<T>;

fn main() -> Result<(), OpsError> {
    let cuda = match Cuda::open(0) {
        Ok(cuda) => cuda,
        Err(error) => {
            println!("skipped: {error}");
            return Ok(());
        }
    };
    let layers = std::env::args().find_map(|argument| argument.parse().ok());
    let mut model = Model::new(&cuda, layers.unwrap_or(LAYERS_DEFAULT))?;
    let copy = copy_rate(&cuda)?;
    println!(
        "{}, {} layers; copy {copy:.0} GB/s",
        cuda.name(),
        model.layers.len()
    );
    println!(
        "| product | bytes | {} |",
        ROWS.map(|rows| format!("{rows} rows")).join(" | ")
    );
    println!("|---|---:|{}", "---:|".repeat(ROWS.len()));
    for product in ALL {
        let (count, bytes) = model.rotation(product);
        let mut cells = Vec::new();
        for rows in ROWS {
            model.set_rows(rows)?;
            let seconds = time(&cuda, &mut || {
                (0..count).try_for_each(|layer| model.product(product, layer, rows))
            })?;
            cells.push(rate((count * bytes) as f64, seconds, copy));
        }
        println!("| {product:?} | {bytes} | {} |", cells.join(" | "));
    }
    let bytes = model.bytes();
    let mut cells = Vec::new();
    for rows in ROWS {
        model.set_rows(rows)?;
        let seconds = time(&cuda, &mut || model.forward(rows))?;
        let rate = rate(bytes as f64, seconds, copy);
        cells.push(format!("{:.3} ms, {rate}", seconds * 1e3));
    }
    println!("| all | {bytes} | {} |", cells.join(" | "));
    Ok(())
}

/// GB/s and the share of the copy's.
fn rate(bytes: f64, seconds: f64, copy: f64) -> String {
    let rate = bytes / seconds / 1e9;
    format!("{rate:.0} ({:.2})", rate / copy)
}

/// Seconds of what `enqueue` enqueues, recorded and repeated.
fn time(cuda: &Cuda, enqueue: &mut dyn FnMut() -> Result<(), OpsError>) -> Result<f64, OpsError> {
    enqueue()?;
    let graph = cuda.record(enqueue)?.expect("CUDA has graphs");
    let done = cuda.alloc::<u32>(1)?;
    let wait = || cuda.download(&done, 0, &mut [0]);
    let run = |count: usize| -> Result<f64, OpsError> {
        wait()?;
        let start = Instant::now();
        for _ in 0..count {
            cuda.launch(&graph)?;
        }
        wait()?;
        Ok(start.elapsed().as_secs_f64() / count as f64)
    };
    run(1)?;
    let once = run(1)?;
    let count = (ROUND_SECONDS / once).ceil() as usize;
    let mut rounds = (0..ROUNDS)
        .map(|_| run(count))
        .collect::<Result<Vec<f64>, _>>()?;
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

/// GB/s read and written by a copy of large rows.
fn copy_rate(cuda: &Cuda) -> Result<f64, OpsError> {
    const COUNT: usize = 512;
    const DIM: usize = 1 << 20;
    let live = put(cuda, &[COUNT as u32, 1])?;
    let order: Vec<u32> = (0..COUNT as u32).collect();
    let source = put(cuda, &order)?;
    let mut x = cuda.alloc::<bf16>(COUNT * DIM)?;
    fill(cuda, FillTarget::Bf16(&mut x), 1.0)?;
    let mut out = cuda.alloc::<bf16>(COUNT * DIM)?;
    let seconds = time(cuda, &mut || {
        cuda.gather_rows(GatherRows {
            rows: Rows::new(COUNT, &live),
            source: &source,
            dim: DIM,
            x: &x,
            out: &mut out,
        })
    })?;
    Ok((2 * COUNT * DIM * size_of::<bf16>()) as f64 / seconds / 1e9)
}

fn put<T: ops::Element>(cuda: &Cuda, values: &[T]) -> Result<Buf<T>, OpsError> {
    let mut buf = cuda.alloc(values.len())?;
    cuda.upload(values, &mut buf, 0)?;
    Ok(buf)
}

fn fill(cuda: &Cuda, values: FillTarget<'_, Cuda>, deviation: f32) -> Result<(), OpsError> {
    cuda.fill(Fill {
        values,
        law: FillLaw::Normal {
            mean: 0.0,
            deviation,
        },
        seed: 1,
        name: "products",
    })
}

/// The products of a forward.
#[derive(Clone, Copy, Debug)]
enum Product {
    GdnIn,
    AttentionIn,
    Out,
    GateUp,
    Down,
    Head,
}

const ALL: [Product; 6] = [
    Product::GdnIn,
    Product::AttentionIn,
    Product::Out,
    Product::GateUp,
    Product::Down,
    Product::Head,
];

struct Layer {
    input: Tensor<Cuda>,
    out: Tensor<Cuda>,
    gate_up: Tensor<Cuda>,
    down: Tensor<Cuda>,
}

struct Model<'a> {
    cuda: &'a Cuda,
    layers: Vec<Layer>,
    head: Tensor<Cuda>,
    live: Buf<u32>,
    norm_weight: Buf<f32>,
    residual: Buf<f32>,
    normed: Buf<bf16>,
    mixed: Buf<bf16>,
    gate_up: Buf<bf16>,
    gated: Buf<bf16>,
    logits: Buf<f32>,
}

impl<'a> Model<'a> {
    fn new(cuda: &'a Cuda, layers: usize) -> Result<Self, OpsError> {
        let rows = ROWS[ROWS.len() - 1];
        cuda.reserve(&ScratchNeeds {
            rows,
            hidden: HIDDEN,
            ..ScratchNeeds::default()
        })?;
        let layers = (0..layers)
            .map(|layer| {
                let attention = layer % PERIOD == PERIOD - 1;
                let inputs = if attention { ATTENTION_IN } else { GDN_IN };
                Ok(Layer {
                    input: tensor(cuda, inputs, HIDDEN)?,
                    out: tensor(cuda, HIDDEN, MIXED)?,
                    gate_up: tensor(cuda, 2 * INTERMEDIATE, HIDDEN)?,
                    down: tensor(cuda, HIDDEN, INTERMEDIATE)?,
                })
            })
            .collect::<Result<_, OpsError>>()?;
        let mut model = Model {
            cuda,
            layers,
            head: tensor(cuda, VOCABULARY, HIDDEN)?,
            live: cuda.alloc(2)?,
            norm_weight: cuda.alloc(HIDDEN)?,
            residual: cuda.alloc(rows * HIDDEN)?,
            normed: cuda.alloc(rows * HIDDEN)?,
            mixed: cuda.alloc(rows * GDN_IN)?,
            gate_up: cuda.alloc(rows * 2 * INTERMEDIATE)?,
            gated: cuda.alloc(rows * INTERMEDIATE)?,
            logits: cuda.alloc(rows * VOCABULARY)?,
        };
        for values in [&mut model.normed, &mut model.mixed, &mut model.gated] {
            fill(cuda, FillTarget::Bf16(values), 1.0)?;
        }
        for values in [&mut model.norm_weight, &mut model.residual] {
            fill(cuda, FillTarget::F32(values), 1.0)?;
        }
        Ok(model)
    }

    fn set_rows(&mut self, rows: usize) -> Result<(), OpsError> {
        self.cuda.upload(&[rows as u32, 1], &mut self.live, 0)
    }

    fn bytes(&self) -> usize {
        let layers = self.layers.iter();
        let layers = layers.map(|layer| {
            layer.input.bytes() + layer.out.bytes() + layer.gate_up.bytes() + layer.down.bytes()
        });
        layers.sum::<usize>() + self.head.bytes()
    }

    /// Weights of a product to take in turn, and the bytes of one.
    fn rotation(&self, product: Product) -> (usize, usize) {
        let attention = self.layers.len() / PERIOD;
        let (count, bytes) = match product {
            Product::GdnIn => (self.layers.len() - attention, 2 * GDN_IN * HIDDEN),
            Product::AttentionIn => (attention, 2 * ATTENTION_IN * HIDDEN),
            Product::Out => (self.layers.len(), 2 * HIDDEN * MIXED),
            Product::GateUp => (self.layers.len(), 4 * INTERMEDIATE * HIDDEN),
            Product::Down => (self.layers.len(), 2 * INTERMEDIATE * HIDDEN),
            Product::Head => (1, 2 * VOCABULARY * HIDDEN),
        };
        (count.min(ROTATION_BYTES.div_ceil(bytes)), bytes)
    }

    /// Number `index` among the weights of a product.
    fn product(&mut self, product: Product, index: usize, capacity: usize) -> Result<(), OpsError> {
        let layer = match product {
            Product::GdnIn => index / (PERIOD - 1) * PERIOD + index % (PERIOD - 1),
            Product::AttentionIn => index * PERIOD + PERIOD - 1,
            _ => index,
        };
        let rows = Rows::new(capacity, &self.live);
        let linear = |x, weight, out, out_stride| {
            self.cuda.linear(Linear {
                rows,
                x,
                weight,
                out,
                out_stride,
            })
        };
        let layer = self.layers.get(layer);
        let layer = || layer.expect("weights as counted");
        match product {
            Product::GdnIn | Product::AttentionIn => {
                let out = LinearOut::Act(&mut self.mixed);
                linear(&self.normed, &layer().input, out, layer().input.rows)
            }
            Product::Head => {
                let out = LinearOut::F32(&mut self.logits);
                linear(&self.normed, &self.head, out, VOCABULARY)
            }
            Product::GateUp => self.cuda.linear_swiglu(LinearSwiglu {
                rows,
                x: &self.normed,
                weight: &layer().gate_up,
                gate_up: &mut self.gate_up,
                out: &mut self.gated,
            }),
            Product::Out | Product::Down => {
                let (x, weight) = match product {
                    Product::Out => (&self.mixed, &layer().out),
                    _ => (&self.gated, &layer().down),
                };
                self.cuda.linear_add_norm(LinearAddNorm {
                    rows,
                    x,
                    weight,
                    summation: Summation::Whole,
                    residual: &mut self.residual,
                    norm_weight: &self.norm_weight,
                    eps: 1e-6,
                    normed: &mut self.normed,
                })
            }
        }
    }

    /// All products; `Out` reads the first columns of what the product in front of it wrote.
    fn forward(&mut self, rows: usize) -> Result<(), OpsError> {
        for layer in 0..self.layers.len() {
            match layer % PERIOD == PERIOD - 1 {
                true => self.product(Product::AttentionIn, layer / PERIOD, rows)?,
                false => {
                    let index = layer / PERIOD * (PERIOD - 1) + layer % PERIOD;
                    self.product(Product::GdnIn, index, rows)?;
                }
            }
            for product in [Product::Out, Product::GateUp, Product::Down] {
                self.product(product, layer, rows)?;
            }
        }
        self.product(Product::Head, 0, rows)
    }
}

/// A random weight that keeps a product as large as its input.
fn tensor(cuda: &Cuda, rows: usize, columns: usize) -> Result<Tensor<Cuda>, OpsError> {
    let mut storage = Storage::zeros(cuda, Dtype::Bf16, rows * columns)?;
    fill(cuda, (&mut storage).into(), (columns as f32).powf(-0.5))?;
    Ok(Tensor {
        storage,
        rows,
        columns,
    })
}

//! The products of a step: each shape by itself, and the 257 of the model as one graph, ours and
//! cuBLASLt in turn.

use ops::{Cuda, OpsError, Tensor};

use crate::bench::{Bench, ROWS_MAX, VOCABULARY};
use crate::memory::{turns, weight};
use crate::peer::Peer;
use crate::product::Products;
use crate::shape::{ATTENTION_IN, DOWN, GATE_UP, GDN_IN, HEAD, OUT, Shape};
use crate::times::{Time, Times};

const ROWS: [usize; 8] = [1, 8, 16, 32, 64, 128, 256, ROWS_MAX];
/// Every fourth layer is an attention layer.
const PERIOD: usize = 4;
/// Seconds of a round of a single shape.
const SHAPE_SECONDS: f64 = 0.01;

/// A product of the chain.
pub struct Link {
    /// Number in `shapes`.
    pub shape: usize,
    pub weight: Tensor<Cuda>,
}

/// Products in the order of a forward.
pub struct Chain {
    pub shapes: Vec<Shape>,
    pub links: Vec<Link>,
}

impl Chain {
    /// Of `layers` layers, and the head where asked for.
    pub fn new(cuda: &Cuda, layers: usize, head: bool) -> Result<Self, OpsError> {
        let shapes = vec![GDN_IN, ATTENTION_IN, OUT, GATE_UP, DOWN, HEAD];
        let input = |layer: usize| usize::from(layer % PERIOD == PERIOD - 1);
        let mut order: Vec<usize> = (0..layers)
            .flat_map(|layer| [input(layer), 2, 3, 4])
            .collect();
        order.extend(head.then_some(5));
        let link = |shape: usize| {
            let Shape {
                outputs, columns, ..
            } = shapes[shape];
            Ok(Link {
                shape,
                weight: weight(cuda, outputs, columns)?,
            })
        };
        let links = order
            .into_iter()
            .map(link)
            .collect::<Result<_, OpsError>>()?;
        Ok(Chain { shapes, links })
    }

    /// Weights of a shape, as many as no cache holds.
    pub fn weights(&self, shape: usize) -> Vec<&Tensor<Cuda>> {
        let links = self.links.iter().filter(|link| link.shape == shape);
        let count = turns(self.shapes[shape].bytes()).max(4);
        links.map(|link| &link.weight).take(count).collect()
    }

    fn sum(&self, value: impl Fn(&Shape) -> usize) -> usize {
        let links = self.links.iter();
        links.map(|link| value(&self.shapes[link.shape])).sum()
    }
}

pub fn run(bench: &Bench) -> Result<(), OpsError> {
    let chain = Chain::new(&bench.cuda, bench.layers, true)?;
    let mut products = Products::new(&bench.cuda, ROWS_MAX, VOCABULARY)?;
    head();
    ROWS.into_iter()
        .try_for_each(|rows| measure(bench, &chain, &mut products, rows))
}

/// The head of a table of [`measure`].
pub fn head() {
    println!(
        "| product | ours us | with norm | fastest of cuBLASLt | its first choice | fastest / ours \
         | / with norm | first / with norm | GB/s (of copy) | TFLOP/s | proposals of cuBLASLt |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|");
}

/// Shapes by themselves, then the chain.
pub fn measure(
    bench: &Bench,
    chain: &Chain,
    products: &mut Products<'_>,
    rows: usize,
) -> Result<(), OpsError> {
    products.set_rows(rows)?;
    let name = |what: &str| format!("{what}, {rows} rows");
    let whole = name("chain");
    let mut peers = Vec::new();
    for (number, shape) in chain.shapes.iter().enumerate() {
        let (name, weights) = (name(shape.name), chain.weights(number));
        let wanted = bench.wants(&name) || bench.wants(&whole);
        if weights.is_empty() || !wanted {
            peers.push(None);
            continue;
        }
        let peer = Peer::choose(bench, products, shape, rows, &weights)?;
        if bench.wants(&name) {
            let mut times = bench.times(SHAPE_SECONDS);
            let links: Vec<_> = weights.iter().map(|&weight| (shape, weight)).collect();
            contend(&mut times, products, &links, &|_| &peer)?;
            let times: Vec<_> = times.run()?;
            let times = times.iter().map(|time| time.of(weights.len()));
            let bytes = shape.traffic(rows);
            line(
                bench,
                &name,
                times.collect(),
                bytes,
                shape.operations(rows),
                &peer,
            );
        }
        peers.push(Some(peer));
    }
    if !bench.wants(&whole) {
        return Ok(());
    }
    let links: Vec<_> = (chain.links.iter())
        .map(|link| (&chain.shapes[link.shape], &link.weight))
        .collect();
    let of = |number: usize| {
        let peer = peers[chain.links[number].shape].as_ref();
        peer.expect("chosen above")
    };
    let mut times = bench.times(bench.chain_seconds);
    contend(&mut times, products, &links, &of)?;
    let bytes = chain.sum(|shape| shape.traffic(rows));
    let operations = chain.sum(|shape| shape.operations(rows));
    line(bench, &whole, times.run()?, bytes, operations, of(0));
    Ok(())
}

/// Records ours without and with norms, then cuBLASLt by its fastest proposals and by its first.
fn contend<'p>(
    times: &mut Times<'_>,
    products: &mut Products<'_>,
    links: &[(&Shape, &Tensor<Cuda>)],
    peer: &dyn Fn(usize) -> &'p Peer,
) -> Result<(), OpsError> {
    for norm in [false, true] {
        times.record(&mut || {
            let mut links = links.iter();
            links.try_for_each(|(shape, weight)| products.op(shape, weight, norm))
        })?;
    }
    for algorithm in [|peer: &Peer| peer.fastest, |_: &Peer| 0] {
        times.record(&mut || {
            let mut links = links.iter().enumerate();
            links.try_for_each(|(number, (_, weight))| {
                let peer = peer(number);
                products.peer(peer, algorithm(peer), weight)
            })
        })?;
    }
    Ok(())
}

fn line(bench: &Bench, name: &str, times: Vec<Time>, bytes: usize, operations: usize, peer: &Peer) {
    let [ours, normed, other, first] = times[..] else {
        unreachable!("four contenders");
    };
    let cell = |time: Time| {
        format!(
            "{:.1} ({:.1}-{:.1})",
            time.median * 1e6,
            time.least * 1e6,
            time.most * 1e6
        )
    };
    let rate = bytes as f64 / ours.median;
    let proposals: Vec<_> = peer
        .microseconds
        .iter()
        .map(|us| format!("{us:.1}"))
        .collect();
    println!(
        "| {name} | {} | {} | {} | {} | {:.3} | {:.3} | {:.3} | {:.0} ({:.2}) | {:.0} | {} |",
        cell(ours),
        cell(normed),
        cell(other),
        cell(first),
        other.median / ours.median,
        other.median / normed.median,
        first.median / normed.median,
        rate / 1e9,
        rate / bench.copy_rate,
        operations as f64 / ours.median / 1e12,
        match name.starts_with("chain") {
            true => String::new(),
            false => proposals.join(" "),
        },
    );
}

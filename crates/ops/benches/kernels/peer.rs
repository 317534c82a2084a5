//! cuBLASLt with the algorithm that it proposes first, and with the fastest of its proposals.

use ops::{Cuda, OpsError, PeerLinear, Tensor};

use crate::bench::Bench;
use crate::product::Products;
use crate::shape::{Kind, Shape};

/// Seconds of a round of a proposal.
const PROPOSAL_SECONDS: f64 = 0.004;

/// The library for one shape and row count.
pub struct Peer {
    pub shape: Shape,
    pub linear: PeerLinear,
    /// The fastest; 0 is the library's own first choice.
    pub fastest: usize,
    /// Microseconds of each proposal.
    pub microseconds: Vec<f64>,
}

impl Peer {
    /// Times every proposal over `weights` in turn.
    pub fn choose(
        bench: &Bench,
        products: &mut Products<'_>,
        shape: &Shape,
        rows: usize,
        weights: &[&Tensor<Cuda>],
    ) -> Result<Self, OpsError> {
        let wide = shape.kind == Kind::Logits;
        let linear = bench
            .cuda
            .peer_linear(rows, shape.outputs, shape.columns, wide)?;
        let mut peer = Peer {
            shape: *shape,
            linear,
            fastest: 0,
            microseconds: Vec::new(),
        };
        for algorithm in 0..peer.linear.algorithms() {
            let mut times = bench.times(PROPOSAL_SECONDS);
            times.record(&mut || {
                let mut weights = weights.iter();
                weights.try_for_each(|weight| products.peer(&peer, algorithm, weight))
            })?;
            let time = times.run()?[0].of(weights.len());
            peer.microseconds.push(time.median * 1e6);
        }
        let best = peer.microseconds.iter().enumerate();
        let best = best.min_by(|a, b| a.1.total_cmp(b.1));
        peer.fastest = best.map_or(0, |(algorithm, _)| algorithm);
        Ok(peer)
    }
}

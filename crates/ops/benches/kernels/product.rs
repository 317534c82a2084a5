//! Our products.

use half::bf16;
use ops::{
    Backend, Cuda, Linear, LinearAddNorm, LinearOut, LinearSwiglu, OpsError, Rows, Summation,
    Tensor,
};

use crate::bench::HIDDEN;
use crate::memory::{Buf, normal, normal_f32, put};
use crate::peer::Peer;
use crate::shape::{Kind, Shape};

/// The widest row that any product reads, and the widest that one writes as bf16.
const WIDTH_MAX: usize = 34_816;

/// Buffers of products of `rows` rows.
pub struct Products<'a> {
    cuda: &'a Cuda,
    rows: usize,
    live: Buf<u32>,
    x: Buf<bf16>,
    pub residual: Buf<f32>,
    pub act: Buf<bf16>,
    pub logits: Buf<f32>,
    gate_up: Buf<bf16>,
    norm_weight: Buf<f32>,
}

impl<'a> Products<'a> {
    /// For up to `rows_max` rows, with an f32 output of up to `wide` values a row.
    pub fn new(cuda: &'a Cuda, rows_max: usize, wide: usize) -> Result<Self, OpsError> {
        Ok(Products {
            cuda,
            rows: rows_max,
            live: put(cuda, &[rows_max as u32, 1])?,
            x: normal(cuda, rows_max * WIDTH_MAX)?,
            residual: normal_f32(cuda, rows_max * HIDDEN)?,
            act: cuda.alloc(rows_max * WIDTH_MAX)?,
            logits: cuda.alloc(rows_max * wide)?,
            gate_up: cuda.alloc(rows_max * WIDTH_MAX)?,
            norm_weight: normal_f32(cuda, HIDDEN)?,
        })
    }

    /// From here on products have `rows` rows.
    pub fn set_rows(&mut self, rows: usize) -> Result<(), OpsError> {
        self.rows = rows;
        self.cuda.upload(&[rows as u32, 1], &mut self.live, 0)
    }

    /// The op, `norm` included where it has one.
    pub fn op(&mut self, shape: &Shape, weight: &Tensor<Cuda>, norm: bool) -> Result<(), OpsError> {
        let rows = Rows {
            capacity: self.rows,
            live: &self.live,
            prompt: false,
        };
        let linear = |out| {
            self.cuda.linear(Linear {
                rows,
                x: &self.x,
                weight,
                out,
                out_stride: shape.outputs,
            })
        };
        match shape.kind {
            Kind::Plain => linear(LinearOut::Act(&mut self.act)),
            Kind::Logits => linear(LinearOut::F32(&mut self.logits)),
            Kind::Gated => self.cuda.linear_swiglu(LinearSwiglu {
                rows,
                x: &self.x,
                weight,
                gate_up: &mut self.gate_up,
                out: &mut self.act,
            }),
            Kind::Normed => {
                let op = LinearAddNorm {
                    rows,
                    x: &self.x,
                    weight,
                    summation: Summation::Whole,
                    residual: &mut self.residual,
                    norm_weight: &self.norm_weight,
                    eps: 1e-6,
                    normed: &mut self.act,
                };
                match norm {
                    true => self.cuda.linear_add_norm(op),
                    false => self.cuda.linear_slices(&op),
                }
            }
        }
    }

    /// The bare product by one of cuBLASLt's algorithms.
    pub fn peer(
        &mut self,
        peer: &Peer,
        algorithm: usize,
        weight: &Tensor<Cuda>,
    ) -> Result<(), OpsError> {
        let out = match peer.shape.kind {
            Kind::Logits => LinearOut::F32(&mut self.logits),
            _ => LinearOut::Act(&mut self.act),
        };
        peer.linear
            .enqueue(self.cuda, algorithm, &self.x, weight, out)
    }
}

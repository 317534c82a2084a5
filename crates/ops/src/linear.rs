//! Matrix products: rows of activations times the transpose of a weight.

use std::ops::Range;

use rayon::prelude::*;

use crate::parallel::PARALLEL_WORK;
use crate::product::{Products, RowView};
use crate::vector::{Lane, dispatch};
use crate::{Backend, Cpu, Rows, Storage, Tensor};

/// In which order the products of one output are summed. The order is a property of the weight,
/// never of the row count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summation {
    /// One run over K: 16 partial sums, lane `j` takes columns `j, j + 16, ...` (the last ones too
    /// where 16 does not divide K), then a balanced tree over the lanes: `j` with `j + 8`, `j + 4`,
    /// `j + 2`, `j + 1`.
    Whole,
    /// Row-parallel weights: K cut into 8 equal blocks, each summed as `Whole`, then a balanced
    /// tree over the blocks, so that tensor-parallel sizes 1, 2, 4 and 8 give the same bits. K must
    /// be a multiple of 8 and at least 128; a smaller or odd K is summed as `Whole`.
    EightBlocks,
    /// The columns that one of 2, 4 or 8 ranks holds of a weight summed as `EightBlocks`: K / 8 of
    /// the whole weight per block, `8 / ranks` blocks here. Adding the ranks' results by a balanced
    /// tree (neighbours first) gives the bits of `EightBlocks` on one rank.
    Shard {
        /// Number of ranks.
        ranks: usize,
    },
}

impl Summation {
    fn blocks(self, columns: usize) -> usize {
        let ranks = match self {
            Summation::Whole => return 1,
            Summation::EightBlocks => 1,
            Summation::Shard { ranks } => ranks,
        };
        assert!(
            matches!(ranks, 1 | 2 | 4 | 8),
            "{ranks} ranks share a product; the tree over 8 blocks serves 1, 2, 4 or 8"
        );
        let all = columns * ranks;
        match all >= 128 && all.is_multiple_of(8) {
            true => 8 / ranks,
            false => 1,
        }
    }
}

/// Where a product goes.
pub enum LinearOut<'a, B: Backend> {
    /// An activation.
    Act(&'a mut B::Buf<B::Act>),
    /// Logits, or a value that a norm follows.
    F32(&'a mut B::Buf<f32>),
}

/// `out[r, o] = sum_k x[r, k] * weight[o, k]`, summed as [`Summation::Whole`].
pub struct Linear<'a, B: Backend> {
    /// Rows to multiply.
    pub rows: Rows<'a, B>,
    /// `[rows, weight.columns]`.
    pub x: &'a B::Buf<B::Act>,
    /// `[outputs, inputs]`.
    pub weight: &'a Tensor<B>,
    /// `[rows, out_stride]`; columns from `weight.rows` on keep what they had.
    pub out: LinearOut<'a, B>,
    /// Values per row of `out`, at least `weight.rows`.
    pub out_stride: usize,
}

/// Outputs whose weights are widened, and stay in cache, while all rows pass over them.
const OUTPUT_BLOCK: usize = 48;

/// Rows that pass over a narrow weight once, in one strip: each weight is used too rarely to be
/// worth storing widened. Widening is exact, so both ways give the same bits.
const WIDEN_ON_LOAD_ROWS: usize = 4;

pub(crate) fn cpu(op: Linear<'_, Cpu>) {
    let (LinearOut::Act(out) | LinearOut::F32(out)) = op.out;
    product(
        op.x,
        op.rows.count(),
        op.weight,
        Summation::Whole,
        op.out_stride,
        out,
        |out, product| *out = product,
    );
}

/// Gives `put` every value of `out` `[rows, out_stride]` that has a product, and the product.
pub(crate) fn product(
    x: &[f32],
    rows: usize,
    weight: &Tensor<Cpu>,
    summation: Summation,
    out_stride: usize,
    out: &mut [f32],
    put: impl Fn(&mut f32, f32),
) {
    let outputs = weight.rows;
    assert!(
        outputs <= out_stride,
        "{outputs} outputs in rows of {out_stride}"
    );
    if rows * outputs == 0 {
        return;
    }
    let blocks = outputs.div_ceil(OUTPUT_BLOCK);
    let work = rows * outputs * weight.columns;
    let range = |block: usize| block * OUTPUT_BLOCK..outputs.min((block + 1) * OUTPUT_BLOCK);
    let mut store = |products: &[f32], range: Range<usize>| {
        let rows = out.chunks_mut(out_stride);
        for (products, out) in products.chunks(range.len()).zip(rows) {
            for (out, &product) in out[range.clone()].iter_mut().zip(products) {
                put(out, product);
            }
        }
    };
    if work < PARALLEL_WORK {
        let mut wide = Vec::new();
        let mut products = vec![0.0; rows * OUTPUT_BLOCK.min(outputs)];
        for range in (0..blocks).map(range) {
            let products = &mut products[..rows * range.len()];
            block_products(
                x,
                rows,
                weight,
                range.clone(),
                summation,
                &mut wide,
                products,
            );
            store(products, range);
        }
    } else {
        let done: Vec<Vec<f32>> = (0..blocks)
            .into_par_iter()
            .map_init(Vec::new, |wide, block| {
                let range = range(block);
                let mut products = vec![0.0; rows * range.len()];
                block_products(x, rows, weight, range, summation, wide, &mut products);
                products
            })
            .collect();
        for (block, products) in done.iter().enumerate() {
            store(products, range(block));
        }
    }
}

/// `products[r, o - outputs.start]` for the given outputs. `wide` is scratch.
fn block_products(
    x: &[f32],
    rows: usize,
    weight: &Tensor<Cpu>,
    outputs: Range<usize>,
    summation: Summation,
    wide: &mut Vec<f32>,
    products: &mut [f32],
) {
    let at = outputs.start * weight.columns;
    let cut = at..outputs.end * weight.columns;
    let shape = (rows, outputs.len(), weight.columns);
    let blocks = summation.blocks(weight.columns);
    match &weight.storage {
        Storage::F32(values) => multiply(shape, x, &values[cut], blocks, products),
        Storage::F16(values) if rows <= WIDEN_ON_LOAD_ROWS => {
            multiply(shape, x, &values[cut], blocks, products);
        }
        Storage::Bf16(values) if rows <= WIDEN_ON_LOAD_ROWS => {
            multiply(shape, x, &values[cut], blocks, products);
        }
        narrow => {
            wide.resize(cut.len(), 0.0);
            narrow.widen_to(at, wide);
            multiply(shape, x, wide.as_slice(), blocks, products);
        }
    }
}

/// `shape`: rows, outputs, columns.
fn multiply<T: Lane>(
    (rows, outputs, columns): (usize, usize, usize),
    x: &[f32],
    w: &[T],
    blocks: usize,
    products: &mut [f32],
) {
    dispatch(Products {
        x: RowView {
            values: x,
            stride: columns,
            count: rows,
        },
        w: RowView {
            values: w,
            stride: columns,
            count: outputs,
        },
        columns,
        blocks,
        out: products,
        out_stride: outputs,
    });
}

#[cfg(test)]
mod tests;

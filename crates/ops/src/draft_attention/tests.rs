use super::*;
use crate::testing::{
    DTYPES, assert_close, bits, chain, floats, on_every_path, paged_slots, rounded, tree_batch,
};
use crate::{Dtype, PAGE_TOKENS};

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

const SMALL: Shape = Shape {
    heads: 6,
    kv_heads: 2,
    dim: 20,
};

impl Shape {
    fn width(self) -> usize {
        self.kv_heads * self.dim
    }
}

/// Context and block of one sequence.
struct Sequence {
    context: usize,
    block: usize,
    /// `[context + block, width]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[block, heads, dim]`.
    query: Vec<f32>,
}

impl Sequence {
    fn new(seed: u64, shape: Shape, context: usize, block: usize) -> Self {
        let cells = (context + block) * shape.width();
        let query = floats(10 * seed + 2, block * shape.heads * shape.dim);
        Sequence {
            context,
            block,
            keys: floats(10 * seed, cells),
            values: floats(10 * seed + 1, cells),
            query: query.iter().map(|q| 6.0 * q).collect(),
        }
    }

    /// `[block, heads, dim]`; `sees(p, r)` says whether position p sees position r.
    fn exact(&self, shape: Shape, dtype: Dtype, sees: impl Fn(usize, usize) -> bool) -> Vec<f64> {
        let Shape { heads, dim, .. } = shape;
        let mut out = Vec::new();
        for (at, query) in self.query.chunks(dim).enumerate() {
            let (row, head) = (at / heads, at % heads);
            let kv = head / (heads / shape.kv_heads) * dim;
            let cell = |values: &[f32], t: usize, j: usize| {
                let value = values[t * shape.width() + kv + j];
                // Only the context is stored in the cache's type.
                f64::from(if t < self.context {
                    rounded(dtype, value)
                } else {
                    value
                })
            };
            let seen = (0..self.context + self.block).filter(|&r| sees(self.context + row, r));
            let seen: Vec<usize> = seen.collect();
            let weight = |t: usize| {
                let terms = (0..dim).map(|j| f64::from(query[j]) * cell(&self.keys, t, j));
                (terms.sum::<f64>() / (dim as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = seen.iter().map(|&t| weight(t)).collect();
            let total: f64 = weights.iter().sum();
            out.extend((0..dim).map(|j| {
                let terms = seen.iter().zip(&weights);
                terms
                    .map(|(&t, w)| w * cell(&self.values, t, j))
                    .sum::<f64>()
                    / total
            }));
        }
        out
    }
}

fn attend(mask: BlockMask, shape: Shape, dtype: Dtype, sequences: &[&Sequence]) -> Vec<f32> {
    let lengths: Vec<usize> = sequences.iter().map(|s| s.context).collect();
    // A drafter needs no pages for its block.
    let pages = lengths
        .iter()
        .map(|l| l.div_ceil(PAGE_TOKENS))
        .max()
        .unwrap_or(0)
        .max(1);
    let slots = paged_slots(&lengths, pages);
    let (backend, width) = (Cpu::default(), shape.width());
    let pool = pages * sequences.len();
    let mut cache = KvLayer::new(&backend, dtype, pool, shape.kv_heads, shape.dim).unwrap();
    let hole = vec![f32::NAN; pool * PAGE_TOKENS * width];
    cache.keys.narrow_from(0, &hole);
    cache.values.narrow_from(0, &hole);
    let (mut keys, mut values, mut query) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, s) in sequences.iter().enumerate() {
        for t in 0..s.context {
            let at = cache.offset(&slots, slot, t);
            cache.keys.narrow_from(at, &s.keys[t * width..][..width]);
            cache
                .values
                .narrow_from(at, &s.values[t * width..][..width]);
        }
        keys.extend_from_slice(&s.keys[s.context * width..]);
        values.extend_from_slice(&s.values[s.context * width..]);
        query.extend_from_slice(&s.query);
    }
    let blocks: Vec<Vec<i32>> = sequences.iter().map(|s| chain(s.block)).collect();
    let blocks: Vec<&[i32]> = blocks.iter().map(|block| &block[..]).collect();
    let batch = tree_batch(&blocks);
    let mut out = vec![7.0; query.len() + 2 * shape.heads * shape.dim].into();
    let op = DraftAttention {
        rows: batch.rows(batch.rows_max),
        batch: &batch,
        slots: &slots,
        cache: &cache,
        mask,
        heads: shape.heads,
        query: &query[..].into(),
        block_keys: &keys.into(),
        block_values: &values.into(),
        out: &mut out,
    };
    backend.draft_attention(op).unwrap();
    assert!(out[query.len()..].iter().all(|&v| v == 7.0), "padding rows");
    out[..query.len()].into()
}

/// What each mask's documentation says.
fn sees(mask: BlockMask, length: usize, p: usize, r: usize) -> bool {
    match mask {
        BlockMask::Full => true,
        BlockMask::CausalWindow(window) => r <= p && p - r < window,
        BlockMask::Window(window) => p.abs_diff(r) < window,
        BlockMask::Causal => r < length || r <= p,
    }
}

fn masks() -> Vec<BlockMask> {
    let mut masks = vec![BlockMask::Full, BlockMask::Causal];
    // Smaller than the block, as large, over a page, larger than everything.
    for window in [1, 3, 8, 66, 2048] {
        masks.extend([BlockMask::CausalWindow(window), BlockMask::Window(window)]);
    }
    masks
}

#[test]
fn every_mask_agrees_with_f64() {
    let wide = Shape {
        heads: 4,
        kv_heads: 1,
        dim: 128,
    };
    for shape in [SMALL, wide] {
        for context in [0, 1, 63, 64, 65, 130] {
            let sequence = Sequence::new(context as u64, shape, context, 8);
            for mask in masks() {
                for dtype in DTYPES {
                    let exact = sequence.exact(shape, dtype, |p, r| sees(mask, context, p, r));
                    let out = attend(mask, shape, dtype, &[&sequence]);
                    let what = format!("{mask:?} {dtype:?}, {context} cached");
                    assert_close(&out, &exact, 1e-11, &what);
                }
            }
        }
    }
}

#[test]
fn full_blocks_agree_with_candle() {
    let s = Sequence::new(1, SMALL, 100, 16);
    let out = attend(BlockMask::Full, SMALL, Dtype::F32, &[&s]);
    let device = candle_core::Device::Cpu;
    let Shape {
        heads,
        kv_heads,
        dim,
    } = SMALL;
    let heads_first = |values: &[f32], rows: usize, heads: usize| {
        let x = candle_core::Tensor::from_slice(values, (rows, heads, dim), &device).unwrap();
        x.transpose(0, 1).unwrap().contiguous().unwrap()
    };
    let repeated = |values: &[f32]| {
        let x = heads_first(values, 116, kv_heads).unsqueeze(1).unwrap();
        let x = x.repeat((1, heads / kv_heads, 1, 1)).unwrap();
        x.reshape((heads, 116, dim)).unwrap()
    };
    let query = heads_first(&s.query, 16, heads);
    let scores = query
        .matmul(&repeated(&s.keys).transpose(1, 2).unwrap())
        .unwrap();
    let scores = (scores / (dim as f64).sqrt()).unwrap();
    let weights = candle_nn::ops::softmax_last_dim(&scores).unwrap();
    let theirs = weights.matmul(&repeated(&s.values)).unwrap();
    let theirs = theirs.transpose(0, 1).unwrap().flatten_all().unwrap();
    let theirs: Vec<f64> = theirs
        .to_vec1::<f32>()
        .unwrap()
        .into_iter()
        .map(f64::from)
        .collect();
    assert_close(&out, &theirs, 1e-11, "candle");
}

#[test]
fn a_sequence_does_not_depend_on_those_beside_it() {
    let places = [(0, 16), (63, 1), (64, 16), (300, 7)];
    let sequences =
        places.map(|(context, block)| Sequence::new(context as u64, SMALL, context, block));
    let all: Vec<&Sequence> = sequences.iter().collect();
    for mask in masks() {
        let together = attend(mask, SMALL, Dtype::Bf16, &all);
        let alone = all
            .iter()
            .flat_map(|s| attend(mask, SMALL, Dtype::Bf16, &[s]));
        assert_eq!(
            bits(&together),
            bits(&alone.collect::<Vec<_>>()),
            "{mask:?}"
        );
    }
}

#[test]
fn threads_and_vectors_do_not_enter_the_bits() {
    let shape = Shape {
        heads: 8,
        kv_heads: 2,
        dim: 128,
    };
    let s = Sequence::new(1, shape, 300, 16);
    for dtype in DTYPES {
        for mask in [BlockMask::Full, BlockMask::Window(100)] {
            on_every_path(|| attend(mask, shape, dtype, &[&s]));
        }
    }
}

#[test]
fn causal_rows_do_not_depend_on_the_rest_of_the_block() {
    let s = Sequence::new(1, SMALL, 70, 16);
    for mask in [BlockMask::Causal, BlockMask::CausalWindow(9)] {
        let whole = attend(mask, SMALL, Dtype::F32, &[&s]);
        for block in 1..16 {
            let cells = (70 + block) * SMALL.width();
            let short = Sequence {
                context: 70,
                block,
                keys: s.keys[..cells].into(),
                values: s.values[..cells].into(),
                query: s.query[..block * SMALL.heads * SMALL.dim].into(),
            };
            let short = attend(mask, SMALL, Dtype::F32, &[&short]);
            assert_eq!(bits(&short), bits(&whole[..short.len()]));
        }
    }
}

#[test]
fn not_a_number_outside_the_window_is_not_seen() {
    let mut s = Sequence::new(1, SMALL, 70, 4);
    let clean = attend(BlockMask::CausalWindow(5), SMALL, Dtype::F32, &[&s]);
    s.keys[..66 * SMALL.width()].fill(f32::NAN);
    s.values[..66 * SMALL.width()].fill(f32::INFINITY);
    let out = attend(BlockMask::CausalWindow(5), SMALL, Dtype::F32, &[&s]);
    assert_eq!(bits(&out), bits(&clean));
    let all = attend(BlockMask::Full, SMALL, Dtype::F32, &[&s]);
    assert!(all.iter().all(|v| v.is_nan()));
}

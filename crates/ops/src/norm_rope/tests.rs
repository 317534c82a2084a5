use super::*;
use crate::testing::{
    DTYPES, Segment, assert_close, batch, bits, chain, floats, live, on_every_path, paged_slots,
    random_tree, rounded,
};
use crate::{Dtype, PAGE_TOKENS};

const EPS: f32 = 1e-6;

/// Inputs of some rows.
#[derive(Clone)]
struct Inputs {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    rotary: usize,
    /// Values from one query head to the next.
    stride: usize,
    frequency: Box<[f32]>,
    /// `[rows, row_stride]`: queries, keys, values and two columns that nothing reads.
    x: Vec<f32>,
    query_weight: Box<[f32]>,
    key_weight: Box<[f32]>,
}

impl Inputs {
    fn new(rows: usize, dim: usize, rotary: usize) -> Self {
        let (heads, kv_heads, stride) = (6, 2, 2 * dim);
        let frequency = |j: usize| 1e7f64.powf(-2.0 * j as f64 / rotary as f64) as f32;
        Inputs {
            heads,
            kv_heads,
            dim,
            rotary,
            stride,
            frequency: (0..rotary / 2).map(frequency).collect(),
            x: floats(1, rows * (heads * stride + 2 * kv_heads * dim + 2)),
            query_weight: floats(3, dim).into(),
            key_weight: floats(4, dim).into(),
        }
    }

    fn width(&self) -> usize {
        self.kv_heads * self.dim
    }

    fn kv_offset(&self) -> usize {
        self.heads * self.stride
    }

    fn row_stride(&self) -> usize {
        self.kv_offset() + 2 * self.width() + 2
    }

    fn row_values(&self, row: usize) -> &[f32] {
        &self.x[row * self.row_stride()..][..self.row_stride()]
    }

    /// Row `row` alone.
    fn row(&self, row: usize) -> Inputs {
        Inputs {
            x: self.row_values(row).into(),
            ..self.clone()
        }
    }

    /// Runs the op; the rotated queries.
    fn run(&self, rows: Rows<'_, Cpu>, target: KvTarget<'_, Cpu>) -> Box<[f32]> {
        let len = self.x.len() / self.row_stride() * self.heads * self.dim;
        let mut out: Box<[f32]> = vec![7.0; len].into();
        let op = NormRope {
            rows,
            head_dim: self.dim,
            rotary: self.rotary,
            frequency: &self.frequency,
            eps: EPS,
            x: &self.x[..].into(),
            row_stride: self.row_stride(),
            query: Some(QuerySource {
                heads: self.heads,
                head_stride: self.stride,
                weight: &self.query_weight,
                out: &mut out,
            }),
            kv_heads: self.kv_heads,
            kv_offset: self.kv_offset(),
            key_weight: &self.key_weight,
            target,
        };
        Cpu::default().norm_rope(op).unwrap();
        out
    }

    /// One head at a position, straight from the formula; the angle is formed in f32.
    fn exact(&self, x: &[f32], weight: &[f32], position: usize) -> Vec<f64> {
        let wide: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        let mean = wide.iter().map(|x| x * x).sum::<f64>() / self.dim as f64;
        let root = (mean + f64::from(EPS)).sqrt();
        let normed = wide.iter().zip(weight);
        let mut out: Vec<f64> = normed.map(|(x, &w)| x / root * f64::from(w)).collect();
        for j in 0..self.rotary / 2 {
            let (sin, cos) = f64::from(position as f32 * self.frequency[j]).sin_cos();
            let (a, b) = (out[j], out[j + self.rotary / 2]);
            out[j] = a * cos - b * sin;
            out[j + self.rotary / 2] = b * cos + a * sin;
        }
        out
    }

    fn exact_queries(&self, row: usize, position: usize) -> Vec<f64> {
        let heads = (0..self.heads).map(|head| {
            let x = &self.row_values(row)[head * self.stride..][..self.dim];
            self.exact(x, &self.query_weight, position)
        });
        heads.flatten().collect()
    }

    fn exact_keys(&self, row: usize, position: usize) -> Vec<f64> {
        let keys = &self.row_values(row)[self.kv_offset()..][..self.width()];
        let heads = keys.chunks(self.dim);
        heads
            .flat_map(|x| self.exact(x, &self.key_weight, position))
            .collect()
    }

    fn values(&self, row: usize) -> &[f32] {
        &self.row_values(row)[self.kv_offset() + self.width()..][..self.width()]
    }
}

fn two_trees<'a>(trees: [&'a [i32]; 2], token: &'a [u32]) -> Batch<Cpu> {
    let segments = [1, 0].map(|slot| Segment {
        slot,
        token: &token[..trees[slot as usize].len()],
        parent: trees[slot as usize],
    });
    batch(&segments)
}

fn cell(storage: &crate::Storage<Cpu>, at: usize, len: usize) -> Vec<f32> {
    let mut out = vec![0.0; len];
    storage.widen_to(at, &mut out);
    out
}

#[test]
fn rows_of_a_tree_stand_at_their_depth_and_are_cached_by_number() {
    let token = [0; 64];
    for (dim, rotary) in [(256, 64), (20, 20), (17, 4), (9, 0), (2, 2)] {
        for lengths in [[0, 63], [64, 65], [1, 262_000]] {
            // Row numbers and depths differ, and rows cross a page.
            let trees = [random_tree(1, 20), random_tree(2, 13)];
            let batch = two_trees([&trees[0], &trees[1]], &token);
            let inputs = Inputs::new(35, dim, rotary);
            let pages = (lengths[0].max(lengths[1]) + 20usize).div_ceil(PAGE_TOKENS);
            let mut slots = paged_slots(&lengths, pages);
            // Early pages of a long sequence are not touched: one page serves for all of them.
            let used = 3usize;
            for entry in slots.block_table.iter_mut() {
                *entry = (*entry).min(2 * used as u32 - 1);
            }
            for (slot, length) in lengths.into_iter().enumerate() {
                for (n, entry) in (0..used).zip(length / PAGE_TOKENS..pages) {
                    slots.block_table[slot * pages + entry] = (slot * used + n) as u32;
                }
            }
            for dtype in DTYPES {
                let mut cache =
                    KvLayer::new(&Cpu::default(), dtype, 2 * used, inputs.kv_heads, dim).unwrap();
                let target = KvTarget::Pages {
                    batch: &batch,
                    slots: &slots,
                    cache: &mut cache,
                };
                let query = inputs.run(batch.rows(35), target);
                let wide = inputs.heads * dim;
                for row in 0..33 {
                    let (slot, number) = if row < 13 { (1, row) } else { (0, row - 13) };
                    let position = lengths[slot] + batch.depth[row] as usize;
                    let exact = inputs.exact_queries(row, position);
                    let what = format!("query {row} at {position}, head of {dim}");
                    assert_close(&query[row * wide..][..wide], &exact, 1e-12, &what);
                    let at = cache.offset(&slots, slot, lengths[slot] + number);
                    let bound = match dtype {
                        Dtype::F32 => 1e-12,
                        Dtype::F16 => 1e-6,
                        Dtype::Bf16 => 2e-5,
                    };
                    let keys = cell(&cache.keys, at, inputs.width());
                    assert_close(&keys, &inputs.exact_keys(row, position), bound, "keys");
                    let values: Vec<f32> = inputs
                        .values(row)
                        .iter()
                        .map(|&v| rounded(dtype, v))
                        .collect();
                    assert_eq!(
                        bits(&cell(&cache.values, at, inputs.width())),
                        bits(&values)
                    );
                }
                assert!(query[33 * wide..].iter().all(|&v| v == 7.0), "padding rows");
            }
        }
    }
}

#[test]
fn block_rows_stand_one_after_another_and_agree_with_candle() {
    let (dim, rows, length) = (32, 16, 77);
    let inputs = Inputs {
        stride: dim,
        x: floats(1, rows * (6 * dim + 2 * 2 * dim + 2)),
        ..Inputs::new(rows, dim, dim)
    };
    // A block is a chain; its depths are not what gives the positions.
    let mut batch = crate::testing::tree_batch(&[&chain(rows)]);
    batch.depth.fill(0);
    let slots = paged_slots(&[length], 2);
    let mut keys: Box<[f32]> = vec![0.0; rows * inputs.width()].into();
    let mut values = keys.clone();
    let target = KvTarget::Block {
        batch: &batch,
        slots: &slots,
        keys: &mut keys,
        values: &mut values,
    };
    let query = inputs.run(batch.rows(rows), target);

    let device = candle_core::Device::Cpu;
    let angles: Vec<f32> = (length..length + rows)
        .flat_map(|p| inputs.frequency.iter().map(move |f| p as f32 * f))
        .collect();
    let angles = candle_core::Tensor::from_vec(angles, (rows, dim / 2), &device).unwrap();
    let theirs = |x: &[f32], heads: usize, weight: &[f32]| -> Vec<f64> {
        let x = candle_core::Tensor::from_slice(x, (1, rows, heads, dim), &device).unwrap();
        let weight = candle_core::Tensor::from_slice(weight, dim, &device).unwrap();
        let x = candle_nn::ops::rms_norm(&x, &weight, EPS).unwrap();
        let x = x.transpose(1, 2).unwrap().contiguous().unwrap();
        let x = candle_nn::rotary_emb::rope(&x, &angles.cos().unwrap(), &angles.sin().unwrap());
        let x = x.unwrap().transpose(1, 2).unwrap().flatten_all().unwrap();
        x.to_vec1::<f32>()
            .unwrap()
            .into_iter()
            .map(f64::from)
            .collect()
    };
    let columns = |first: usize, len: usize| -> Vec<f32> {
        let rows = (0..rows).flat_map(|row| &inputs.row_values(row)[first..first + len]);
        rows.copied().collect()
    };
    let queries = columns(0, inputs.kv_offset());
    let exact = theirs(&queries, inputs.heads, &inputs.query_weight);
    assert_close(&query, &exact, 1e-12, "queries");
    let cached = columns(inputs.kv_offset(), inputs.width());
    let exact = theirs(&cached, inputs.kv_heads, &inputs.key_weight);
    assert_close(&keys, &exact, 1e-12, "keys");
    let plain = columns(inputs.kv_offset() + inputs.width(), inputs.width());
    assert_eq!(bits(&values), bits(&plain));
}

#[test]
fn listed_rows_go_where_the_list_says_without_queries() {
    let inputs = Inputs::new(5, 16, 16);
    let slots = paged_slots(&[0, 0], 2);
    let mut context = ContextRows::new(&Cpu::default(), 5).unwrap();
    let places = [(1, 0), (0, 63), (0, 64), (1, 127)];
    context.live[0] = places.len() as u32;
    for (row, (slot, position)) in places.into_iter().enumerate() {
        (context.slot[row], context.position[row]) = (slot, position);
    }
    let mut cache = KvLayer::new(&Cpu::default(), Dtype::F32, 4, 2, 16).unwrap();
    let op = NormRope {
        rows: context.rows(5),
        head_dim: 16,
        rotary: 16,
        frequency: &inputs.frequency,
        eps: EPS,
        x: &inputs.x[..].into(),
        row_stride: inputs.row_stride(),
        query: None,
        kv_heads: 2,
        kv_offset: inputs.kv_offset(),
        key_weight: &inputs.key_weight,
        target: KvTarget::Listed {
            context: &context,
            slots: &slots,
            cache: &mut cache,
        },
    };
    Cpu::default().norm_rope(op).unwrap();
    for (row, (slot, position)) in places.into_iter().enumerate() {
        let at = cache.offset(&slots, slot as usize, position as usize);
        let exact = inputs.exact_keys(row, position as usize);
        assert_close(&cell(&cache.keys, at, 32), &exact, 1e-12, "keys");
        assert_eq!(bits(&cell(&cache.values, at, 32)), bits(inputs.values(row)));
    }
    let mut all = vec![0.0; 4 * PAGE_TOKENS * 32];
    cache.values.widen_to(0, &mut all);
    let written = all
        .chunks(32)
        .filter(|row| row.iter().any(|&v| v != 0.0))
        .count();
    assert_eq!(written, places.len(), "cells written");
}

#[test]
fn a_row_depends_on_itself_only() {
    let (rows, dim) = (64, 720);
    let inputs = Inputs::new(rows, dim, 64);
    assert!(4 * rows * inputs.heads * dim > parallel::PARALLEL_WORK);
    let run = |inputs: &Inputs, length: usize, rows: usize| -> Vec<f32> {
        let batch = crate::testing::tree_batch(&[&chain(rows)]);
        let slots = paged_slots(&[length], 4);
        let mut keys = vec![0.0; rows * inputs.width()].into();
        let mut values = vec![0.0; rows * inputs.width()].into();
        let target = KvTarget::Block {
            batch: &batch,
            slots: &slots,
            keys: &mut keys,
            values: &mut values,
        };
        let query = inputs.run(batch.rows(rows), target);
        [query, keys].concat()
    };
    let all = on_every_path(|| run(&inputs, 30, rows));
    let (queries, keys) = all.split_at(rows * inputs.heads * dim);
    for row in 0..rows {
        let alone = run(&inputs.row(row), 30 + row, 1);
        let (query, key) = alone.split_at(inputs.heads * dim);
        assert_eq!(
            bits(query),
            bits(&queries[row * query.len()..][..query.len()])
        );
        assert_eq!(bits(key), bits(&keys[row * key.len()..][..key.len()]));
    }
}

#[test]
fn nothing_live_writes_nothing() {
    let inputs = Inputs::new(2, 8, 8);
    let batch = crate::testing::tree_batch(&[&chain(2)]);
    let slots = paged_slots(&[0], 1);
    let mut keys = vec![7.0; 2 * inputs.width()].into();
    let mut values = vec![7.0; 2 * inputs.width()].into();
    let live = live(0);
    let rows = Rows::new(2, &live);
    let target = KvTarget::Block {
        batch: &batch,
        slots: &slots,
        keys: &mut keys,
        values: &mut values,
    };
    assert!(inputs.run(rows, target).iter().all(|&v| v == 7.0));
    assert!(keys.iter().chain(&values).all(|&v| v == 7.0));
}

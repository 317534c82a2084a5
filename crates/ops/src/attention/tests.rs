use super::*;
use crate::testing::{
    DTYPES, assert_close, bits, chain, floats, on_every_path, paged_slots, path_to, random_tree,
    rounded, take_rows, tree_batch,
};
use crate::{Dtype, PAGE_TOKENS, TreeTablesFrom};

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

impl Shape {
    fn width(self) -> usize {
        self.kv_heads * self.dim
    }
}

const SMALL: Shape = Shape {
    heads: 6,
    kv_heads: 2,
    dim: 20,
};

#[derive(Clone)]
struct Sequence {
    parents: Vec<i32>,
    /// `[context + rows, width]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[rows, heads, dim]`.
    query: Vec<f32>,
    /// `[rows, heads, 2 * dim]`.
    query_gate: Vec<f32>,
}

impl Sequence {
    fn new(seed: u64, shape: Shape, context: usize, parents: Vec<i32>) -> Self {
        let (rows, wide) = (parents.len(), shape.heads * shape.dim);
        let cached = (context + rows) * shape.width();
        let query = floats(10 * seed + 2, rows * wide);
        Sequence {
            parents,
            keys: floats(10 * seed, cached),
            values: floats(10 * seed + 1, cached),
            // Scores of several units, so that the softmax is far from a mean.
            query: query.iter().map(|q| 6.0 * q).collect(),
            query_gate: floats(10 * seed + 3, 2 * rows * wide),
        }
    }

    fn context(&self, shape: Shape) -> usize {
        self.keys.len() / shape.width() - self.parents.len()
    }

    /// The rows of `path` as a chain of which the first `committed` belong to the context.
    fn along(&self, shape: Shape, path: &[usize], committed: usize) -> Sequence {
        let context = self.context(shape);
        let cached: Vec<usize> = (0..context)
            .chain(path.iter().map(|i| context + i))
            .collect();
        let rows = &path[committed..];
        let wide = shape.heads * shape.dim;
        Sequence {
            parents: chain(rows.len()),
            keys: take_rows(&self.keys, shape.width(), &cached),
            values: take_rows(&self.values, shape.width(), &cached),
            query: take_rows(&self.query, wide, rows),
            query_gate: take_rows(&self.query_gate, 2 * wide, rows),
        }
    }

    /// `[heads, dim]` of one row, straight from the formula.
    fn exact(&self, shape: Shape, dtype: Dtype, row: usize) -> Vec<f64> {
        let Shape { heads, dim, .. } = shape;
        let context = self.context(shape);
        let seen = (0..context).chain(path_to(&self.parents, row).into_iter().map(|i| context + i));
        let seen: Vec<usize> = seen.collect();
        let mut out = Vec::new();
        for head in 0..heads {
            let kv = head / (heads / shape.kv_heads) * dim;
            let cell = |values: &[f32], t: usize, j: usize| {
                f64::from(rounded(dtype, values[t * shape.width() + kv + j]))
            };
            let query = &self.query[(row * heads + head) * dim..][..dim];
            let weights: Vec<f64> = seen
                .iter()
                .map(|&t| {
                    let score = (0..dim).map(|j| f64::from(query[j]) * cell(&self.keys, t, j));
                    (score.sum::<f64>() / (dim as f64).sqrt()).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            let gate = &self.query_gate[(row * heads + head) * 2 * dim + dim..][..dim];
            out.extend((0..dim).map(|j| {
                let terms = seen.iter().zip(&weights);
                let sum: f64 = terms.map(|(&t, w)| w * cell(&self.values, t, j)).sum();
                sum / total / (1.0 + (-f64::from(gate[j])).exp())
            }));
        }
        out
    }
}

type Op = fn(&Cpu, Attention<'_, Cpu>) -> Result<(), crate::OpsError>;
const TREE: Op = Cpu::tree_attention;
const PREFILL: Op = Cpu::prefill_attention;

/// `[rows, heads, dim]` of all sequences; what no row may read is NaN.
fn attend(op: Op, shape: Shape, dtype: Dtype, sequences: &[&Sequence]) -> Vec<f32> {
    let lengths: Vec<usize> = sequences.iter().map(|s| s.context(shape)).collect();
    let longest = sequences.iter().map(|s| s.keys.len() / shape.width()).max();
    let pages = longest.unwrap_or(0).div_ceil(PAGE_TOKENS);
    let slots = paged_slots(&lengths, pages);
    let pool = sequences.len() * pages;
    let (heads, dim) = (shape.kv_heads, shape.dim);
    let mut cache = KvLayer::new(&Cpu::default(), dtype, pool, heads, dim).unwrap();
    let hole = vec![f32::NAN; pool * PAGE_TOKENS * shape.width()];
    cache.keys.narrow_from(0, &hole);
    cache.values.narrow_from(0, &hole);
    for (slot, sequence) in sequences.iter().enumerate() {
        let rows = sequence.keys.chunks(shape.width());
        for (t, (k, v)) in rows.zip(sequence.values.chunks(shape.width())).enumerate() {
            let at = cache.offset(&slots, slot, t);
            cache.keys.narrow_from(at, k);
            cache.values.narrow_from(at, v);
        }
    }
    let trees: Vec<&[i32]> = sequences.iter().map(|s| &s.parents[..]).collect();
    let batch = tree_batch(&trees);
    let all = |part: fn(&Sequence) -> &[f32]| -> Box<[f32]> {
        sequences.iter().flat_map(|s| part(s)).copied().collect()
    };
    let query = all(|s| &s.query);
    // Rows of the gate are longer than the gate, as where keys and values stand behind it.
    let (width, gate_row_stride) = (2 * shape.heads * dim, 2 * shape.heads * dim + 3);
    let mut gate = Vec::new();
    for row in all(|s| &s.query_gate).chunks(width) {
        gate.extend_from_slice(row);
        gate.resize(gate.len() + gate_row_stride - width, f32::NAN);
    }
    let mut tree = TreeTables::new(&Cpu::default(), batch.rows_max).unwrap();
    let tables = TreeTablesFrom {
        batch: &batch,
        padding: None,
        tables: &mut tree,
    };
    Cpu::default().tree_tables(tables).unwrap();
    let mut out = vec![7.0; batch.rows_max * shape.heads * dim].into();
    let args = Attention {
        rows: batch.rows(batch.rows_max),
        batch: &batch,
        slots: &slots,
        cache: &cache,
        heads: shape.heads,
        query: &query,
        gate: &gate.into(),
        gate_row_stride,
        out: &mut out,
        tree: &tree,
    };
    op(&Cpu::default(), args).unwrap();
    assert!(out[query.len()..].iter().all(|&v| v == 7.0), "padding rows");
    out[..query.len()].into()
}

#[test]
fn trees_and_chunks_agree_with_f64() {
    let shapes = [
        SMALL,
        Shape {
            heads: 1,
            kv_heads: 1,
            dim: 1,
        },
        Shape {
            heads: 4,
            kv_heads: 4,
            dim: 17,
        },
        Shape {
            heads: 6,
            kv_heads: 1,
            dim: 256,
        },
    ];
    for (case, shape) in shapes.into_iter().enumerate() {
        for context in [0, 1, 63, 64, 65, 130] {
            for (op, parents) in [(TREE, random_tree(context as u64, 21)), (PREFILL, chain(9))] {
                let sequence = Sequence::new(case as u64, shape, context, parents);
                for dtype in DTYPES {
                    let exact: Vec<f64> = (0..sequence.parents.len())
                        .flat_map(|row| sequence.exact(shape, dtype, row))
                        .collect();
                    let out = attend(op, shape, dtype, &[&sequence]);
                    let what = format!("{dtype:?}, {context} cached, head of {}", shape.dim);
                    assert_close(&out, &exact, 1e-11, &what);
                }
            }
        }
    }
}

#[test]
fn a_node_gets_the_bits_of_plain_decoding() {
    let wide = SMALL.heads * SMALL.dim;
    for context in [0, 1, 40, 63, 64, 65] {
        let tree = Sequence::new(context as u64, SMALL, context, random_tree(7, 64));
        for dtype in DTYPES {
            let nodes = attend(TREE, SMALL, dtype, &[&tree]);
            for row in 0..64 {
                let path = path_to(&tree.parents, row);
                let node = bits(&nodes[row * wide..][..wide]);
                let last = (path.len() - 1) * wide;
                let whole = tree.along(SMALL, &path, 0);
                let plain = tree.along(SMALL, &path, path.len() - 1);
                for (op, name) in [(TREE, "tree"), (PREFILL, "prefill")] {
                    let chained = attend(op, SMALL, dtype, &[&whole]);
                    assert_eq!(node, bits(&chained[last..]), "chain by {name}, row {row}");
                    let decoded = attend(op, SMALL, dtype, &[&plain]);
                    assert_eq!(node, bits(&decoded), "decoded by {name}, row {row}");
                }
            }
        }
    }
}

#[test]
fn a_chunk_in_pieces_gives_the_bits_of_the_whole() {
    let whole = Sequence::new(1, SMALL, 30, chain(150));
    let rows: Vec<usize> = (0..150).collect();
    let wide = SMALL.heads * SMALL.dim;
    for dtype in DTYPES {
        let out = attend(PREFILL, SMALL, dtype, &[&whole]);
        for cuts in [vec![0, 64, 128, 150], vec![0, 1, 3, 20, 34, 35, 99, 150]] {
            for cut in cuts.windows(2) {
                let piece = whole.along(SMALL, &rows[..cut[1]], cut[0]);
                let piece = attend(PREFILL, SMALL, dtype, &[&piece]);
                assert_eq!(bits(&piece), bits(&out[cut[0] * wide..cut[1] * wide]));
            }
        }
    }
}

#[test]
fn a_sequence_does_not_depend_on_those_beside_it() {
    let sequences: Vec<Sequence> = [(0, 1), (63, 12), (64, 64), (200, 3)]
        .into_iter()
        .enumerate()
        .map(|(seed, (context, rows))| {
            Sequence::new(seed as u64, SMALL, context, random_tree(seed as u64, rows))
        })
        .collect();
    let all: Vec<&Sequence> = sequences.iter().collect();
    let together = on_every_path(|| attend(TREE, SMALL, Dtype::Bf16, &all));
    let alone: Vec<f32> = all
        .iter()
        .flat_map(|sequence| attend(TREE, SMALL, Dtype::Bf16, &[sequence]))
        .collect();
    assert_eq!(bits(&together), bits(&alone));
    let reversed: Vec<&Sequence> = all.iter().rev().copied().collect();
    let reversed = attend(TREE, SMALL, Dtype::Bf16, &reversed);
    let last = 3 * SMALL.heads * SMALL.dim;
    assert_eq!(bits(&reversed[..last]), bits(&alone[alone.len() - last..]));
}

#[test]
fn threads_and_vectors_do_not_enter_the_bits() {
    let shape = Shape {
        heads: 6,
        kv_heads: 2,
        dim: 64,
    };
    let tree = Sequence::new(1, shape, 300, random_tree(1, 64));
    let chunk = Sequence::new(2, shape, 70, chain(128));
    for dtype in DTYPES {
        on_every_path(|| attend(TREE, shape, dtype, &[&tree]));
        on_every_path(|| attend(PREFILL, shape, dtype, &[&chunk]));
    }
}

#[test]
fn not_a_number_reaches_those_only_who_see_it() {
    let wide = SMALL.heads * SMALL.dim;
    let parents = vec![-1, 0, 0, 1, 2];
    let clean = Sequence::new(1, SMALL, 5, parents.clone());
    let other = Sequence::new(2, SMALL, 5, parents);
    let before = attend(TREE, SMALL, Dtype::F32, &[&clean, &other]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut broken = clean.clone();
        // Row 1, which only rows 1 and 3 see.
        broken.keys[(5 + 1) * SMALL.width()..][..SMALL.width()].fill(bad);
        broken.values[(5 + 1) * SMALL.width()..][..SMALL.width()].fill(f32::NAN);
        let out = attend(TREE, SMALL, Dtype::F32, &[&broken, &other]);
        for row in 0..10 {
            let out = &out[row * wide..][..wide];
            if row == 1 || row == 3 {
                assert!(out.iter().all(|v| v.is_nan()));
            } else {
                assert_eq!(bits(out), bits(&before[row * wide..][..wide]), "row {row}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "row 1 has parent 1; parents come first")]
fn a_parent_behind_its_child_is_refused() {
    path(&[-1, 1], 1);
}

use super::*;
use crate::activation::{exp, sigmoid, softplus};
use crate::parallel::PARALLEL_WORK;
use crate::product::dot;
use crate::testing::{
    assert_close, bits, chain, floats, on_every_path, path_to, random_tree, take_rows, tree_batch,
};
use crate::{Cpu, TreeTablesFrom};

const SMALL: GdnShape = GdnShape {
    key_heads: 2,
    value_heads: 6,
    key_dim: 16,
    value_dim: 20,
};
const REAL: GdnShape = GdnShape {
    key_heads: 1,
    value_heads: 3,
    key_dim: 128,
    value_dim: 128,
};

fn shapes() -> [GdnShape; 4] {
    let of = |key_heads, value_heads, key_dim, value_dim| GdnShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    };
    [SMALL, REAL, of(1, 1, 1, 1), of(2, 2, 17, 33)]
}

/// Rows of one sequence.
#[derive(Clone)]
struct Tokens {
    parents: Vec<i32>,
    /// `[rows, channels]` behind the convolution.
    qkv: Vec<f32>,
    /// `[rows, 2 * value_heads]`.
    ba: Vec<f32>,
}

impl Tokens {
    fn new(seed: u64, shape: GdnShape, parents: Vec<i32>) -> Self {
        let rows = parents.len();
        let ba = floats(seed + 1000, rows * 2 * shape.value_heads);
        Tokens {
            parents,
            qkv: floats(seed, rows * shape.channels()),
            ba: ba.iter().map(|v| 4.0 * v).collect(),
        }
    }

    /// These rows as a chain.
    fn along(&self, shape: GdnShape, path: &[usize]) -> Tokens {
        Tokens {
            parents: chain(path.len()),
            qkv: take_rows(&self.qkv, shape.channels(), path),
            ba: take_rows(&self.ba, 2 * shape.value_heads, path),
        }
    }
}

struct Layer {
    shape: GdnShape,
    a_log: Box<[f32]>,
    dt_bias: Box<[f32]>,
    slots: Slots<Cpu>,
    state: GdnState<Cpu>,
}

impl Layer {
    /// Every slot starts from the same state.
    fn new(shape: GdnShape, slots: usize) -> Self {
        let backend = Cpu::default();
        let mut state = GdnState::new(&backend, shape, slots).unwrap();
        let start = floats(50, shape.state_len()).repeat(slots);
        state.state.copy_from_slice(&start);
        let history = floats(51, 3 * shape.channels()).repeat(slots);
        state.conv.copy_from_slice(&history);
        Layer {
            shape,
            a_log: floats(52, shape.value_heads).into(),
            dt_bias: floats(53, shape.value_heads).into(),
            slots: Slots::new(&backend, slots, 1, 8, 8).unwrap(),
            state,
        }
    }

    /// The journal that a convolution would leave: q, k and v as given, gates and lengths of them.
    fn journal(&self, rows: usize, qkv: &[f32], ba: &[f32]) -> GdnJournal<Cpu> {
        let shape = self.shape;
        let mut journal = GdnJournal::new(&Cpu::default(), shape, rows).unwrap();
        journal.qkv[..qkv.len()].copy_from_slice(qkv);
        let mixed = journal.mixed.chunks_mut(shape.mixed_stride());
        for (mixed, qkv) in mixed.zip(qkv.chunks(shape.channels())) {
            mixed[..shape.channels()].copy_from_slice(qkv);
        }
        let heads = shape.value_heads;
        let gates = journal.gate.chunks_mut(2 * heads);
        for (gate, ba) in gates.zip(ba.chunks(2 * heads)) {
            for h in 0..heads {
                let step = softplus(ba[heads + h] + self.dt_bias[h]);
                gate[2 * h] = -exp(self.a_log[h]) * step;
                gate[2 * h + 1] = sigmoid(ba[h]);
            }
        }
        let scales = journal.scale.chunks_mut(3 * shape.key_heads);
        for (scales, qkv) in scales.zip(qkv.chunks(shape.channels())) {
            for (h, scale) in scales.chunks_mut(3).enumerate() {
                let head = |first: usize| &qkv[first + h * shape.key_dim..][..shape.key_dim];
                let (q, k) = (head(0), head(shape.key_width()));
                let length = |x: &[f32]| (dot(x, x) + 1e-6).sqrt();
                scale[0] = 1.0 / (shape.key_dim as f32).sqrt() / length(q);
                scale[1] = 1.0 / length(k);
                scale[2] = f32::NAN;
            }
        }
        journal
    }

    /// Sequence i runs in slot i; `[rows, value_width]` of all.
    fn scan(&mut self, mode: GdnMode, padding: Option<&[u32]>, sequences: &[&Tokens]) -> Vec<f32> {
        let backend = Cpu::default();
        let trees: Vec<&[i32]> = sequences.iter().map(|s| &s.parents[..]).collect();
        let batch = tree_batch(&trees);
        let padding: Option<Box<[u32]>> = padding.map(Box::from);
        let mut tree = TreeTables::new(&backend, batch.rows_max).unwrap();
        let tables = TreeTablesFrom {
            batch: &batch,
            padding: padding.as_ref(),
            tables: &mut tree,
        };
        backend.tree_tables(tables).unwrap();
        let all = |part: fn(&Tokens) -> &[f32]| -> Box<[f32]> {
            sequences.iter().flat_map(|s| part(s)).copied().collect()
        };
        let qkv = all(|s| &s.qkv);
        let journal = self.journal(batch.rows_max, &qkv, &all(|s| &s.ba));
        let mut out = vec![7.0; batch.rows_max * self.shape.value_width()].into();
        let op = GdnScan {
            rows: batch.rows(batch.rows_max),
            batch: &batch,
            tree: &tree,
            slots: &self.slots,
            mode,
            state: &mut self.state,
            journal: &journal,
            out: &mut out,
        };
        backend.gdn_scan(op).unwrap();
        let live = qkv.len() / self.shape.channels() * self.shape.value_width();
        assert!(out[live..].iter().all(|&v| v == 7.0), "padding rows");
        out[..live].into()
    }
}

/// Outputs `[rows, value_width]` and the state after each row, from the formulas.
fn exact(layer: &Layer, tokens: &Tokens) -> (Vec<f64>, Vec<Vec<f64>>) {
    let shape = layer.shape;
    let (kd, vd, heads) = (shape.key_dim, shape.value_dim, shape.value_heads);
    let start: Vec<f64> = layer.state.state[..shape.state_len()]
        .iter()
        .map(|&s| s.into())
        .collect();
    let (mut out, mut states) = (Vec::new(), Vec::<Vec<f64>>::new());
    for (row, &parent) in tokens.parents.iter().enumerate() {
        let qkv = &tokens.qkv[row * shape.channels()..][..shape.channels()];
        let ba = &tokens.ba[row * 2 * heads..][..2 * heads];
        let unit = |first: usize| -> Vec<f64> {
            let x: Vec<f64> = qkv[first..first + kd].iter().map(|&x| x.into()).collect();
            let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x / norm).collect()
        };
        let parent = usize::try_from(parent).map_or(&start, |parent| &states[parent]);
        let mut state = parent.clone();
        for h in 0..heads {
            let key_head = h / (heads / shape.key_heads) * kd;
            let (q, k) = (unit(key_head), unit(shape.key_width() + key_head));
            let v = &qkv[2 * shape.key_width() + h * vd..][..vd];
            let step = (f64::from(ba[heads + h]) + f64::from(layer.dt_bias[h]))
                .exp()
                .ln_1p();
            let decay = (-f64::from(layer.a_log[h]).exp() * step).exp();
            let beta = 1.0 / (1.0 + (-f64::from(ba[h])).exp());
            let s = &mut state[h * kd * vd..][..kd * vd];
            s.iter_mut().for_each(|s| *s *= decay);
            for j in 0..vd {
                let seen: f64 = (0..kd).map(|i| s[i * vd + j] * k[i]).sum();
                let u = beta * (f64::from(v[j]) - seen);
                (0..kd).for_each(|i| s[i * vd + j] += k[i] * u);
                let read: f64 = (0..kd).map(|i| s[i * vd + j] * q[i]).sum();
                out.push(read / (kd as f64).sqrt());
            }
        }
        states.push(state);
    }
    (out, states)
}

#[test]
fn trees_and_chunks_agree_with_f64() {
    for shape in shapes() {
        for (mode, parents, stored) in [
            (GdnMode::Verify, random_tree(1, 40), 0),
            (GdnMode::Verify, vec![-1], 0),
            (GdnMode::Prefill, chain(70), 69),
            (GdnMode::Prefill, chain(1), 0),
        ] {
            let mut layer = Layer::new(shape, 1);
            let tokens = Tokens::new(1, shape, parents);
            let (exact, states) = exact(&layer, &tokens);
            let out = layer.scan(mode, None, &[&tokens]);
            let what = format!("{mode:?} {shape:?}");
            assert_close(&out, &exact, 1e-11, &what);
            assert_close(&layer.state.state, &states[stored], 1e-11, &what);
        }
    }
}

#[test]
fn a_node_gets_the_bits_of_plain_decoding() {
    for shape in shapes() {
        let (wide, rows) = (shape.value_width(), 64);
        let tree = Tokens::new(1, shape, random_tree(5, rows));
        let nodes = Layer::new(shape, 1).scan(GdnMode::Verify, None, &[&tree]);
        for row in (0..rows).step_by(3) {
            let path = path_to(&tree.parents, row);
            let node = bits(&nodes[row * wide..][..wide]);
            let last = (path.len() - 1) * wide;
            for mode in [GdnMode::Verify, GdnMode::Prefill] {
                let along = tree.along(shape, &path);
                let chained = Layer::new(shape, 1).scan(mode, None, &[&along]);
                assert_eq!(node, bits(&chained[last..]), "{mode:?}, row {row}");
            }
            let mut plain = Layer::new(shape, 1);
            let mut out = Vec::new();
            for &at in &path {
                let token = tree.along(shape, &[at]);
                out = plain.scan(GdnMode::Verify, None, &[&token]);
            }
            assert_eq!(node, bits(&out), "decoded, row {row}");
        }
    }
}

#[test]
fn a_chunk_in_pieces_gives_the_bits_of_the_whole() {
    for shape in shapes() {
        let tokens = Tokens::new(1, shape, chain(60));
        let mut whole = Layer::new(shape, 1);
        let out = whole.scan(GdnMode::Prefill, None, &[&tokens]);
        for cuts in [
            vec![0, 1, 3, 20, 60],
            vec![0, 2, 59, 60],
            (0..=60).collect(),
        ] {
            let mut pieces = Layer::new(shape, 1);
            let mut joined = Vec::new();
            for cut in cuts.windows(2) {
                let rows: Vec<usize> = (cut[0]..cut[1]).collect();
                let piece = tokens.along(shape, &rows);
                joined.extend(pieces.scan(GdnMode::Prefill, None, &[&piece]));
            }
            assert_eq!(bits(&joined), bits(&out));
            assert_eq!(bits(&pieces.state.state), bits(&whole.state.state));
            assert_eq!(bits(&pieces.state.conv), bits(&whole.state.conv));
        }
        let last = &tokens.qkv[57 * shape.channels()..];
        assert_eq!(bits(&whole.state.conv), bits(last), "history");
    }
}

#[test]
fn a_sequence_does_not_depend_on_those_beside_it() {
    for mode in [GdnMode::Verify, GdnMode::Prefill] {
        let sequences: Vec<Tokens> = [1, 30, 7, 64]
            .into_iter()
            .enumerate()
            .map(|(seed, rows)| match mode {
                GdnMode::Verify => random_tree(seed as u64, rows),
                GdnMode::Prefill => chain(rows),
            })
            .enumerate()
            .map(|(seed, parents)| Tokens::new(seed as u64, SMALL, parents))
            .collect();
        let all: Vec<&Tokens> = sequences.iter().collect();
        let mut layer = Layer::new(SMALL, 4);
        let together = layer.scan(mode, None, &all);
        let (mut out, mut state) = (Vec::new(), Vec::new());
        for tokens in all {
            let mut layer = Layer::new(SMALL, 1);
            out.extend(layer.scan(mode, None, &[tokens]));
            state.extend(layer.state.state);
        }
        assert_eq!(bits(&together), bits(&out));
        assert_eq!(bits(&layer.state.state), bits(&state));
    }
}

#[test]
fn threads_and_vectors_do_not_enter_the_bits() {
    let parents = random_tree(1, 48);
    assert!(parents.len() * 3 * REAL.state_len() > PARALLEL_WORK);
    for mode in [GdnMode::Verify, GdnMode::Prefill] {
        let parents = match mode {
            GdnMode::Verify => parents.clone(),
            GdnMode::Prefill => chain(48),
        };
        let tokens = Tokens::new(1, REAL, parents);
        on_every_path(|| {
            let mut layer = Layer::new(REAL, 1);
            let out = layer.scan(mode, None, &[&tokens]);
            [&out[..], &layer.state.state].concat()
        });
    }
}

#[test]
fn padding_rows_change_no_other_row() {
    let mut tokens = Tokens::new(1, SMALL, random_tree(4, 29));
    let clean = Layer::new(SMALL, 1).scan(GdnMode::Verify, None, &[&tokens]);
    tokens.parents.extend([0; 3]);
    tokens.qkv.extend(vec![f32::NAN; 3 * SMALL.channels()]);
    tokens.ba.extend(vec![f32::NAN; 3 * 2 * SMALL.value_heads]);
    // Flags of the batch's two rows behind the segment follow.
    let padding: Vec<u32> = (0..34).map(|row| u32::from(row >= 29)).collect();
    let mut layer = Layer::new(SMALL, 1);
    let out = layer.scan(GdnMode::Verify, Some(&padding), &[&tokens]);
    assert_eq!(bits(&out[..clean.len()]), bits(&clean));
    assert!(layer.state.state.iter().all(|s| s.is_finite()));
}

#[test]
fn not_a_number_reaches_descendants_only() {
    let parents = vec![-1, 0, 0, 1, 2, 3];
    let clean = Tokens::new(1, SMALL, parents);
    let other = Tokens::new(2, SMALL, chain(4));
    let before = Layer::new(SMALL, 2).scan(GdnMode::Verify, None, &[&clean, &other]);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut broken = clean.clone();
        broken.qkv[SMALL.channels()..2 * SMALL.channels()].fill(bad);
        let mut layer = Layer::new(SMALL, 2);
        let out = layer.scan(GdnMode::Verify, None, &[&broken, &other]);
        let wide = SMALL.value_width();
        for row in 0..10 {
            let (out, before) = (&out[row * wide..][..wide], &before[row * wide..][..wide]);
            match row {
                1 | 3 | 5 => assert!(out.iter().all(|v| v.is_nan()), "row {row}"),
                _ => assert_eq!(bits(out), bits(before), "row {row}"),
            }
        }
        assert!(layer.state.state.iter().all(|s| s.is_finite()));
    }
}

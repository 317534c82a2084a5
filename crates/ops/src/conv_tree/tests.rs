use super::*;
use crate::testing::{
    assert_close, bits, chain, floats, on_every_path, path_to, random_tree, take_rows, tree_batch,
};
use crate::{GdnShape, TreeTablesFrom};

/// Channels of this shape are two key widths and a value width: 2 * 1 + (channels - 2).
fn narrow(channels: usize) -> GdnShape {
    GdnShape {
        key_heads: 1,
        value_heads: 1,
        key_dim: 1,
        value_dim: channels - 2,
    }
}

/// One sequence: parents, rows of channels, history.
type Sequence<'a> = (&'a [i32], &'a [f32], &'a [f32]);

/// The journal behind the op; what is not a channel of `mixed` is `ba` `[rows, 2 * value_heads]`.
fn journal(
    shape: GdnShape,
    weight: &[f32],
    sequences: &[Sequence<'_>],
    ba: &[f32],
) -> GdnJournal<Cpu> {
    let backend = Cpu::default();
    let trees: Vec<_> = sequences.iter().map(|s| s.0).collect();
    let batch = tree_batch(&trees);
    let mut tree = TreeTables::new(&backend, batch.rows_max).unwrap();
    let tables = TreeTablesFrom {
        batch: &batch,
        padding: None,
        tables: &mut tree,
    };
    backend.tree_tables(tables).unwrap();
    let mut state = GdnState::new(&backend, shape, sequences.len()).unwrap();
    let histories: Vec<_> = sequences.iter().map(|s| s.2).collect();
    state.conv.copy_from_slice(&histories.concat());
    let mut journal = GdnJournal::new(&backend, shape, batch.rows_max).unwrap();
    let (channels, heads) = (shape.channels(), shape.value_heads);
    let x: Vec<f32> = sequences.iter().flat_map(|s| s.1).copied().collect();
    let rows = x.chunks(channels).zip(ba.chunks(2 * heads));
    for (mixed, (x, ba)) in journal.mixed.chunks_mut(shape.mixed_stride()).zip(rows) {
        mixed.fill(f32::NAN);
        mixed[..channels].copy_from_slice(x);
        mixed[channels + shape.value_width()..][..2 * heads].copy_from_slice(ba);
    }
    for written in [&mut journal.qkv, &mut journal.gate, &mut journal.scale] {
        written.fill(7.0);
    }
    let op = ConvTree {
        rows: batch.rows(batch.rows_max),
        batch: &batch,
        tree: &tree,
        state: &state,
        weight: &weight.into(),
        a_log: &floats(52, heads).into(),
        dt_bias: &floats(53, heads).into(),
        journal: &mut journal,
    };
    backend.conv_tree(op).unwrap();
    let rows = x.len() / channels;
    let behind = journal.qkv[x.len()..].iter();
    let behind = behind.chain(&journal.gate[rows * 2 * heads..]);
    let mut behind = behind.chain(&journal.scale[rows * 3 * shape.key_heads..]);
    assert!(behind.all(|&v| v == 7.0), "padding rows");
    journal
}

/// `[rows, channels]` behind the convolution.
fn convolved(channels: usize, weight: &[f32], sequences: &[Sequence<'_>]) -> Vec<f32> {
    let rows: usize = sequences.iter().map(|s| s.0.len()).sum();
    let journal = journal(narrow(channels), weight, sequences, &vec![0.0; 2 * rows]);
    journal.qkv[..rows * channels].into()
}

fn exact(channels: usize, weight: &[f32], (parents, x, history): Sequence<'_>) -> Vec<f64> {
    let mut out = Vec::new();
    for row in 0..parents.len() {
        let mut taps = history.to_vec();
        taps.extend(take_rows(x, channels, &path_to(parents, row)));
        let last = &taps[taps.len() - 4 * channels..];
        out.extend((0..channels).map(|c| {
            let tap = |t: usize| f64::from(weight[c * 4 + t]) * f64::from(last[t * channels + c]);
            let sum: f64 = (0..4).map(tap).sum();
            sum / (1.0 + (-sum).exp())
        }));
    }
    out
}

#[test]
fn trees_and_chunks_agree_with_f64() {
    for channels in [3, 17, 512] {
        let (weight, history) = (floats(1, 4 * channels), floats(2, 3 * channels));
        for parents in [
            vec![-1],
            chain(2),
            chain(100),
            random_tree(1, 64),
            random_tree(2, 9),
        ] {
            let x = floats(3, parents.len() * channels);
            let sequence = (&parents[..], &x[..], &history[..]);
            let out = convolved(channels, &weight, &[sequence]);
            let exact = exact(channels, &weight, sequence);
            assert_close(&out, &exact, 1e-12, &format!("{channels} channels"));
        }
    }
}

#[test]
fn a_node_gets_the_bits_of_its_path() {
    let channels = 21;
    let (weight, history) = (floats(1, 4 * channels), floats(2, 3 * channels));
    let parents = random_tree(3, 64);
    let x = floats(3, 64 * channels);
    let other = floats(4, 5 * channels);
    let five = chain(5);
    let beside = (&five[..], &other[..], &history[..]);
    let tree = (&parents[..], &x[..], &history[..]);
    let out = convolved(channels, &weight, &[beside, tree]);
    for row in 0..64 {
        let path = path_to(&parents, row);
        let along = take_rows(&x, channels, &path);
        let chained = convolved(channels, &weight, &[(&chain(path.len()), &along, &history)]);
        let node = &out[(5 + row) * channels..][..channels];
        assert_eq!(
            bits(node),
            bits(&chained[(path.len() - 1) * channels..]),
            "row {row}"
        );
        // Plain decoding: what came before is history.
        let before = [&history[..], &along[..]].concat();
        let last = path.len() - 1;
        let history = &before[last * channels..(last + 3) * channels];
        let plain = convolved(
            channels,
            &weight,
            &[(&[-1], &along[last * channels..], history)],
        );
        assert_eq!(bits(node), bits(&plain), "row {row} decoded");
    }
}

#[test]
fn threads_and_vectors_do_not_enter_the_bits() {
    let channels = 2048;
    let (weight, history) = (floats(1, 4 * channels), floats(2, 3 * channels));
    let (parents, x) = (random_tree(3, 64), floats(3, 64 * channels));
    assert!(20 * x.len() > parallel::PARALLEL_WORK);
    on_every_path(|| convolved(channels, &weight, &[(&parents, &x, &history)]));
}

#[test]
fn not_a_number_reaches_descendants_only() {
    let channels = 5;
    let (weight, history) = (floats(1, 4 * channels), floats(2, 3 * channels));
    // 1 - 3 - 4 - 5 - 6 hang on the root beside 2.
    let parents = [-1, 0, 0, 1, 3, 4, 5];
    let mut x = floats(3, 7 * channels);
    let clean = convolved(channels, &weight, &[(&parents, &x, &history)]);
    x[channels..2 * channels].fill(f32::NAN);
    let out = convolved(channels, &weight, &[(&parents, &x, &history)]);
    for row in 0..7 {
        let (out, clean) = (&out[row * channels..], &clean[row * channels..]);
        match row {
            1 | 3 | 4 | 5 => assert!(out[..channels].iter().all(|v| v.is_nan())),
            _ => assert_eq!(bits(&out[..channels]), bits(&clean[..channels])),
        }
    }
    // No rows, no sequences.
    assert!(convolved(channels, &weight, &[]).is_empty());
}

const SHAPE: GdnShape = GdnShape {
    key_heads: 2,
    value_heads: 6,
    key_dim: 17,
    value_dim: 5,
};

#[test]
fn gates_and_lengths_agree_with_f64() {
    let (channels, heads, rows) = (SHAPE.channels(), SHAPE.value_heads, 9);
    let (x, history) = (floats(1, rows * channels), floats(2, 3 * channels));
    let ba: Vec<f32> = floats(3, rows * 2 * heads)
        .iter()
        .map(|v| 4.0 * v)
        .collect();
    let weight = floats(4, 4 * channels);
    let journal = journal(SHAPE, &weight, &[(&chain(rows), &x, &history)], &ba);
    let (a_log, dt_bias) = (floats(52, heads), floats(53, heads));
    let (mut gates, mut scales) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let ba = &ba[row * 2 * heads..][..2 * heads];
        for h in 0..heads {
            let step = (f64::from(ba[heads + h]) + f64::from(dt_bias[h]))
                .exp()
                .ln_1p();
            gates.push(-f64::from(a_log[h]).exp() * step);
            gates.push(1.0 / (1.0 + (-f64::from(ba[h])).exp()));
        }
        let qkv = &journal.qkv[row * channels..][..channels];
        for h in 0..SHAPE.key_heads {
            let head = |first: usize| -> Vec<f64> {
                let head = &qkv[first + h * SHAPE.key_dim..][..SHAPE.key_dim];
                head.iter().map(|&x| x.into()).collect()
            };
            let (q, k) = (head(0), head(SHAPE.key_width()));
            let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
            let length = |x: &[f64]| (dot(x, x) + 1e-6).sqrt();
            scales.push(1.0 / (length(&q) * (SHAPE.key_dim as f64).sqrt()));
            scales.push(1.0 / length(&k));
            scales.push(dot(&q, &k));
        }
    }
    assert_close(&journal.gate[..gates.len()], &gates, 1e-12, "gates");
    assert_close(&journal.scale[..scales.len()], &scales, 1e-12, "scales");
}

#[test]
fn threads_and_vectors_do_not_enter_the_bits_of_lengths() {
    let shape = GdnShape {
        key_heads: 16,
        value_heads: 16,
        key_dim: 128,
        value_dim: 1,
    };
    let (channels, rows) = (shape.channels(), 256);
    assert!(rows * 3 * shape.key_width() > parallel::PARALLEL_WORK);
    let (x, history) = (floats(1, rows * channels), floats(2, 3 * channels));
    let (weight, ba) = (floats(4, 4 * channels), floats(5, rows * 32));
    on_every_path(|| {
        let journal = journal(shape, &weight, &[(&chain(rows), &x, &history)], &ba);
        [&journal.scale[..], &journal.gate].concat()
    });
}

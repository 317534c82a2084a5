use super::*;
use crate::testing::{
    assert_close, bits, chain, floats, on_every_path, path_to, random_tree, take_rows, tree_batch,
};
use crate::{GdnShape, TreeTablesFrom};

/// Channels of a shape are two key widths and a value width: 2 * 1 + (channels - 2).
fn state(channels: usize, histories: &[&[f32]]) -> GdnState<Cpu> {
    let shape = GdnShape {
        key_heads: 1,
        value_heads: 1,
        key_dim: 1,
        value_dim: channels - 2,
    };
    let mut state = GdnState::new(&Cpu::default(), shape, histories.len()).unwrap();
    state.conv.copy_from_slice(&histories.concat());
    state
}

/// One sequence: parents, rows, history.
type Sequence<'a> = (&'a [i32], &'a [f32], &'a [f32]);

fn convolved(channels: usize, weight: &[f32], sequences: &[Sequence<'_>]) -> Vec<f32> {
    let trees: Vec<_> = sequences.iter().map(|s| s.0).collect();
    let batch = tree_batch(&trees);
    let mut tree = TreeTables::new(&Cpu::default(), batch.rows_max).unwrap();
    let tables = TreeTablesFrom {
        batch: &batch,
        padding: None,
        tables: &mut tree,
    };
    Cpu::default().tree_tables(tables).unwrap();
    let histories: Vec<_> = sequences.iter().map(|s| s.2).collect();
    let x: Box<[f32]> = sequences.iter().flat_map(|s| s.1).copied().collect();
    let mut out = vec![7.0; batch.rows_max * channels].into();
    let op = ConvTree {
        rows: batch.rows(batch.rows_max),
        batch: &batch,
        tree: &tree,
        state: &state(channels, &histories),
        channels,
        x: &x,
        weight: &weight.into(),
        out: &mut out,
    };
    Cpu::default().conv_tree(op).unwrap();
    assert!(out[x.len()..].iter().all(|&v| v == 7.0), "padding rows");
    out[..x.len()].into()
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

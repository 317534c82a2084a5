//! The convolution, gates and lengths against the CPU's.

use super::{Layer, SHAPES, Side, TINY, cases, get, put, round_floats, scales, scanning_gpu};
use crate::testing::{assert_close, bits, chain, floats, path_to, random_tree, take_rows};
use crate::{Cpu, GdnShape};

/// Random rows of a projection.
fn projected(shape: GdnShape, rows: usize) -> Vec<f32> {
    let mut mixed = round_floats(61, rows * shape.mixed_stride());
    // Sums up to 128, so that silu is met where it is linear, curved and next to nothing.
    for (row, mixed) in mixed.chunks_mut(shape.mixed_stride()).enumerate() {
        mixed.iter_mut().for_each(|v| *v *= (1 << (row % 6)) as f32);
    }
    mixed
}

/// The layer after its convolution.
fn convolved<B: Side + Clone>(
    backend: &B,
    shape: GdnShape,
    trees: &[&[i32]],
    mut mixed: Vec<f32>,
) -> Layer<B> {
    let mut layer = Layer::new(backend, shape, trees, 0);
    mixed.resize(layer.batch.rows_max * shape.mixed_stride(), f32::NAN);
    layer.journal.mixed = put(backend, &B::narrow(&mixed));
    let weight = floats(62, 4 * shape.channels());
    layer.convolve(
        &weight,
        &floats(63, shape.value_heads),
        &floats(64, shape.value_heads),
    );
    layer
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| v.into()).collect()
}

fn agrees_with_the_cpu<B: Side + Clone>(backend: &B, shapes: &[GdnShape]) {
    let trees = [random_tree(3, 40), vec![-1], chain(2), chain(90)];
    let borrowed: Vec<&[i32]> = trees.iter().map(|tree| &tree[..]).collect();
    let rows: usize = trees.iter().map(Vec::len).sum();
    for &shape in shapes {
        let mixed = projected(shape, rows);
        let layer = convolved(backend, shape, &borrowed, mixed.clone());
        let reference = convolved(&Cpu::default(), shape, &borrowed, mixed);
        let qkv = B::wide(&get(backend, &layer.journal.qkv));
        let gate = get(backend, &layer.journal.gate);
        let scale = get(backend, &layer.journal.scale);
        let (qkv_live, gate_live) = (rows * shape.channels(), rows * 2 * shape.value_heads);
        let what = format!("{shape:?}");
        let rows_of = qkv[..qkv_live].chunks(shape.channels());
        for (row, found) in rows_of.enumerate() {
            let at = row * shape.channels();
            let expected = exact(&reference.journal.qkv[at..at + shape.channels()]);
            assert_close(found, &expected, 5e-6, &format!("row {row}, {what}"));
        }
        let expected = exact(&reference.journal.gate[..gate_live]);
        assert_close(&gate[..gate_live], &expected, 1e-10, &what);
        // Of the q and k that are stored: rounding them moves their lengths by more.
        let mut expected = Vec::new();
        for qkv in qkv[..qkv_live].chunks(shape.channels()) {
            for head in 0..shape.key_heads {
                let part = |first: usize| &qkv[first + head * shape.key_dim..][..shape.key_dim];
                expected.extend(scales(part(0), part(shape.key_width())));
            }
        }
        for number in 0..3 {
            let every = |values: &[f32]| -> Vec<f32> {
                values.iter().skip(number).step_by(3).copied().collect()
            };
            let expected: Vec<f64> = expected.iter().skip(number).step_by(3).copied().collect();
            let scale = every(&scale[..rows * 3 * shape.key_heads]);
            assert_close(
                &scale,
                &expected,
                1e-10,
                &format!("factor {number}, {what}"),
            );
        }
        let behind = qkv[qkv_live..].iter().chain(&gate[gate_live..]);
        let mut behind = behind.chain(&scale[rows * 3 * shape.key_heads..]);
        assert!(behind.all(|v| v.is_nan()), "padding rows");
    }
}

#[test]
fn convolution_gates_and_lengths_agree_with_the_cpu() {
    agrees_with_the_cpu(&Cpu::default(), &[TINY]);
    let Some(cuda) = scanning_gpu() else { return };
    agrees_with_the_cpu(&cuda, cases(&SHAPES, 2));
}

/// What the convolution leaves of a row.
fn row_bits<B: Side>(layer: &Layer<B>, row: usize) -> [Vec<u32>; 3] {
    let (backend, shape, journal) = (&layer.backend, layer.shape, &layer.journal);
    let part = |values: Vec<f32>, width: usize| bits(&values[row * width..][..width]);
    [
        part(B::wide(&get(backend, &journal.qkv)), shape.channels()),
        part(get(backend, &journal.gate), 2 * shape.value_heads),
        part(get(backend, &journal.scale), 3 * shape.key_heads),
    ]
}

/// Rows of trees in a batch against the ends of their paths as chains.
fn has_the_bits_of_its_path<B: Side + Clone>(backend: &B, shapes: &[GdnShape]) {
    let trees = [random_tree(8, 33), random_tree(9, 20)];
    for &shape in shapes {
        let mixed = projected(shape, 53);
        let together = convolved(backend, shape, &[&trees[0], &trees[1]], mixed.clone());
        for (first, tree) in [(0, &trees[0]), (33, &trees[1])] {
            for row in (0..tree.len()).step_by(6) {
                let path = path_to(tree, row);
                let rows: Vec<usize> = path.iter().map(|row| first + row).collect();
                let along = take_rows(&mixed, shape.mixed_stride(), &rows);
                let chained = convolved(backend, shape, &[&chain(path.len())], along);
                let expected = row_bits(&chained, path.len() - 1);
                assert_eq!(row_bits(&together, first + row), expected, "row {row}");
            }
        }
    }
}

#[test]
fn a_row_has_the_bits_of_its_path_in_a_chain() {
    has_the_bits_of_its_path(&Cpu::default(), &[TINY]);
    let Some(cuda) = scanning_gpu() else { return };
    has_the_bits_of_its_path(&cuda, cases(&SHAPES, 2));
}

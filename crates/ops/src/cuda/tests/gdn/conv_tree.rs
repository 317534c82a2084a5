//! The convolution, gates and lengths against the CPU's.

use super::{Layer, SHAPES, Side, TINY, cases, get, put, round_floats, scales, scanning_gpu};
use crate::testing::{assert_close, chain, floats, random_tree};
use crate::{Cpu, GdnShape};

/// The layer after its convolution over random rows.
fn convolved<B: Side + Clone>(backend: &B, shape: GdnShape, trees: &[&[i32]]) -> Layer<B> {
    let mut layer = Layer::new(backend, shape, trees, 0);
    let rows: usize = trees.iter().map(|tree| tree.len()).sum();
    let mut mixed = round_floats(61, rows * shape.mixed_stride());
    // Sums up to 128, so that silu is met where it is linear, curved and next to nothing.
    for (row, mixed) in mixed.chunks_mut(shape.mixed_stride()).enumerate() {
        mixed.iter_mut().for_each(|v| *v *= (1 << (row % 6)) as f32);
    }
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
        let layer = convolved(backend, shape, &borrowed);
        let reference = convolved(&Cpu::default(), shape, &borrowed);
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

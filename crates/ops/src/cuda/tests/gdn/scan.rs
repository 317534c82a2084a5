//! The scan against the CPU's, and its bits against those of one row at a time.

use super::{Kept, LARGE, Layer, SHAPES, Side, TINY, cases, only_small, row_by_row, scanning_gpu};
use crate::testing::{assert_close, bits, chain, path_to, random_tree};
use crate::{Cpu, GdnMode, GdnShape};

/// Outputs `[rows, value_width]` and the layer after a scan of one sequence.
fn scanned<B: Side + Clone>(
    backend: &B,
    shape: GdnShape,
    mode: GdnMode,
    parents: &[i32],
    pending: usize,
    kept: &Kept,
) -> (Vec<f32>, Layer<B>) {
    let mut layer = Layer::new(backend, shape, &[parents], pending);
    let rows: Vec<usize> = (0..parents.len()).collect();
    let spare = layer.batch.rows_max - parents.len();
    layer.set_journal(&kept.take(shape, &rows, spare));
    let mut out = layer.scan(mode);
    let padding = out.split_off(parents.len() * shape.value_width());
    assert!(padding.iter().all(|v| v.is_nan()), "padding rows");
    (out, layer)
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| v.into()).collect()
}

fn agrees_with_the_cpu<B: Side + Clone>(backend: &B, shapes: &[GdnShape]) {
    for &shape in shapes {
        for (mode, parents, pending) in [
            (GdnMode::Verify, random_tree(1, 64), 7),
            (GdnMode::Verify, random_tree(2, 17), 15),
            (GdnMode::Verify, chain(16), 1),
            (GdnMode::Verify, vec![-1], 0),
            (GdnMode::Prefill, chain(50), 0),
            (GdnMode::Prefill, chain(2), 3),
        ] {
            let kept = Kept::new(shape, parents.len(), 9);
            let (out, layer) = scanned(backend, shape, mode, &parents, pending, &kept);
            let cpu = Cpu::default();
            let (expected, reference) = scanned(&cpu, shape, mode, &parents, pending, &kept);
            let what = format!(
                "{mode:?} of {} rows, {pending} pending, {shape:?}",
                parents.len()
            );
            assert_close(&out, &exact(&expected), 5e-6, &what);
            assert_close(&layer.state(), &exact(&reference.state()), 1e-10, &what);
        }
    }
}

#[test]
fn trees_and_chunks_agree_with_the_cpu() {
    agrees_with_the_cpu(&Cpu::default(), &[TINY]);
    let Some(cuda) = scanning_gpu() else { return };
    agrees_with_the_cpu(&cuda, cases(&SHAPES, 2));
}

/// Pending rows and a tree against the rows of each path, one scan each. Prompts go in chunks, whose
/// bits differ (`gdn_chunk.rs`).
fn has_the_bits_of_single_rows<B: Side + Clone>(backend: &B, rows: usize, every: usize) {
    let (shape, wide) = (TINY, TINY.value_width());
    let mut star = vec![0; rows];
    star[0] = -1;
    let halves: Vec<i32> = (0..rows as i32).map(|row| (row - 1) >> 1).collect();
    for (parents, pending) in [(random_tree(5, rows), 4), (star, 0), (halves, 15)] {
        let kept = Kept::new(shape, rows, 19);
        let (nodes, _) = scanned(backend, shape, GdnMode::Verify, &parents, pending, &kept);
        for row in (0..rows).step_by(every) {
            let path = path_to(&parents, row);
            let along = kept.take(shape, &path, 0);
            let node = bits(&nodes[row * wide..][..wide]);
            let (out, _) = row_by_row(backend, shape, pending, &along);
            assert_eq!(node, bits(&out), "row {row}");
        }
    }
}

#[test]
fn a_node_has_the_bits_of_its_path_one_row_at_a_time() {
    has_the_bits_of_single_rows(&Cpu::default(), 20, 7);
    let Some(cuda) = scanning_gpu() else { return };
    has_the_bits_of_single_rows(&cuda, 64, if only_small() { 21 } else { 3 });
}

/// One batch of several sequences against each alone.
fn stands_alone<B: Side + Clone>(backend: &B, shape: GdnShape, mode: GdnMode) {
    let trees: Vec<Vec<i32>> = [1, 30, 7, 64, 16, 3]
        .into_iter()
        .map(|rows| match mode {
            GdnMode::Verify => random_tree(rows as u64, rows),
            GdnMode::Prefill => chain(rows),
        })
        .collect();
    let borrowed: Vec<&[i32]> = trees.iter().map(|tree| &tree[..]).collect();
    let rows: usize = trees.iter().map(Vec::len).sum();
    let kept = Kept::new(shape, rows, 29);
    let mut layer = Layer::new(backend, shape, &borrowed, 3);
    let spare = layer.batch.rows_max - rows;
    layer.set_journal(&kept.take(shape, &(0..rows).collect::<Vec<_>>(), spare));
    let together = layer.scan(mode);
    let (mut alone, mut states, mut start) = (Vec::new(), Vec::new(), 0);
    for tree in &trees {
        let of: Vec<usize> = (start..start + tree.len()).collect();
        let (out, layer) = scanned(backend, shape, mode, tree, 3, &kept.take(shape, &of, 0));
        alone.extend(out);
        states.extend(layer.state());
        start += tree.len();
    }
    assert_eq!(bits(&together[..alone.len()]), bits(&alone), "{mode:?}");
    assert_eq!(bits(&layer.state()), bits(&states), "{mode:?}");
}

#[test]
fn a_sequence_does_not_depend_on_those_beside_it() {
    for mode in [GdnMode::Verify, GdnMode::Prefill] {
        stands_alone(&Cpu::default(), TINY, mode);
    }
    let Some(cuda) = scanning_gpu() else { return };
    for mode in [GdnMode::Verify, GdnMode::Prefill] {
        stands_alone(&cuda, *cases(&[TINY, LARGE], 1).last().unwrap(), mode);
    }
}

fn contains_not_a_number<B: Side + Clone>(backend: &B) {
    let (shape, wide) = (TINY, TINY.value_width());
    let parents = [-1, 0, 0, 1, 2, 3, 0, 6];
    let kept = Kept::new(shape, parents.len(), 49);
    let (clean, before) = scanned(backend, shape, GdnMode::Verify, &parents, 2, &kept);
    let mut broken = kept.clone();
    broken.qkv[shape.channels()..2 * shape.channels()].fill(f32::NAN);
    let (out, after) = scanned(backend, shape, GdnMode::Verify, &parents, 2, &broken);
    for row in 0..parents.len() {
        let (out, clean) = (&out[row * wide..][..wide], &clean[row * wide..][..wide]);
        match row {
            1 | 3 | 5 => assert!(out.iter().all(|v| v.is_nan()), "row {row}"),
            _ => assert_eq!(bits(out), bits(clean), "row {row}"),
        }
    }
    assert_eq!(bits(&after.state()), bits(&before.state()));
}

#[test]
fn not_a_number_reaches_descendants_only() {
    contains_not_a_number(&Cpu::default());
    let Some(cuda) = scanning_gpu() else { return };
    contains_not_a_number(&cuda);
}

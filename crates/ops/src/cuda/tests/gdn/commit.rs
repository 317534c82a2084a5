//! What a commit keeps, and that a step on top of it continues the accepted path.

use super::{
    Kept, Layer, SHAPES, Side, TINY, cases, get, put, round_floats, row_by_row, scanning_gpu,
};
use crate::limits::EMIT_MAX;
use crate::testing::{bits, chain, path_to, random_tree};
use crate::{Backend, Cpu, GdnCommit, GdnMode, GdnShape, Walk};

fn walk_of<B: Backend>(backend: &B, paths: &[Vec<usize>]) -> Walk<B> {
    let mut walk = Walk::new(backend, paths.len()).unwrap();
    let counts: Vec<u32> = paths.iter().map(|path| path.len() as u32).collect();
    // What lies behind a path means nothing.
    let mut rows = vec![99; paths.len() * EMIT_MAX];
    for (to, path) in rows.chunks_mut(EMIT_MAX).zip(paths) {
        to.iter_mut()
            .zip(path)
            .for_each(|(to, &row)| *to = row as u32);
    }
    walk.path_rows = put(backend, &counts);
    walk.path = put(backend, &rows);
    walk
}

/// Layers with random journals after a commit of the paths, one per tree.
fn committed<B: Side + Clone>(
    backend: &B,
    shape: GdnShape,
    trees: &[&[i32]],
    paths: &[Vec<usize>],
    layers: usize,
) -> Vec<Layer<B>> {
    let (mut states, mut journals, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..layers {
        let mut layer = Layer::new(backend, shape, trees, 0);
        let rows = layer.batch.rows_max;
        layer.set_journal(&Kept::new(shape, rows, 80 + number as u64));
        let mixed = round_floats(90 + number as u64, rows * shape.mixed_stride());
        layer.journal.mixed = put(backend, &B::narrow(&mixed));
        kept.push(layer);
    }
    for layer in &mut kept {
        let other = Layer::new(backend, shape, &[&[-1]], 0);
        states.push(std::mem::replace(&mut layer.state, other.state));
        journals.push(std::mem::replace(&mut layer.journal, other.journal));
    }
    let op = GdnCommit {
        batch: &kept[0].batch,
        walk: &walk_of(backend, paths),
        journals: &journals,
        states: &mut states,
    };
    backend.gdn_commit(op).unwrap();
    for (layer, (state, journal)) in kept.iter_mut().zip(states.into_iter().zip(journals)) {
        (layer.state, layer.journal) = (state, journal);
    }
    kept
}

/// Everything that a commit may touch.
fn buffers<B: Side>(layer: &Layer<B>) -> [Vec<u32>; 4] {
    let backend = &layer.backend;
    [
        bits(&layer.conv()),
        bits(&B::wide(&get(backend, &layer.state.pending_kv))),
        bits(&get(backend, &layer.state.pending_gate)),
        bits(&get(backend, &layer.state.pending_scale)),
    ]
}

fn keeps_what_the_cpu_keeps<B: Side + Clone>(backend: &B, shapes: &[GdnShape]) {
    let trees = [
        random_tree(1, 20),
        chain(16),
        random_tree(2, 9),
        vec![-1],
        chain(4),
    ];
    let borrowed: Vec<&[i32]> = trees.iter().map(|tree| &tree[..]).collect();
    let paths: Vec<Vec<usize>> = [(0, 19), (1, 15), (2, 0), (3, 0), (4, 1)]
        .map(|(tree, row)| path_to(&trees[tree], row))
        .into();
    for &shape in shapes {
        let layers = committed(backend, shape, &borrowed, &paths, 3);
        let reference = committed(&Cpu::default(), shape, &borrowed, &paths, 3);
        for (layer, reference) in layers.iter().zip(&reference) {
            assert_eq!(buffers(layer), buffers(reference), "{shape:?}");
        }
    }
}

#[test]
fn commits_keep_what_the_cpu_keeps() {
    keeps_what_the_cpu_keeps(&Cpu::default(), &[TINY]);
    let Some(cuda) = scanning_gpu() else { return };
    keeps_what_the_cpu_keeps(&cuda, cases(&SHAPES, 2));
}

/// A tree, a commit of one of its paths and a row on top, against that path and row one by one.
fn continues_the_path<B: Side + Clone>(backend: &B) {
    let (shape, wide) = (TINY, TINY.value_width());
    let parents = random_tree(7, 30);
    for row in [0, 11, 29] {
        let path = path_to(&parents, row);
        let mut kept = committed(backend, shape, &[&parents], std::slice::from_ref(&path), 1);
        let mut layer = kept.remove(0);
        let used = Kept::new(shape, layer.batch.rows_max, 80);
        // The commit does not touch the state: the scan in front of it stored the one behind row 0.
        layer.scan(GdnMode::Verify);
        let next = Kept::new(shape, 1, 99);
        let mut step = Layer::new(backend, shape, &[&[-1]], path.len() - 1);
        step.set_journal(&next.take(shape, &[0], step.batch.rows_max - 1));
        step.state = layer.state;
        let out = step.scan(GdnMode::Verify);
        let mut along = used.take(shape, &path, 0);
        along.qkv.extend(&next.qkv);
        along.gate.extend(&next.gate);
        along.scale.extend(&next.scale);
        let (last, whole) = row_by_row(backend, shape, 0, &along);
        assert_eq!(bits(&out[..wide]), bits(&last), "path to row {row}");
        assert_eq!(
            bits(&step.state()),
            bits(&whole.state()),
            "path to row {row}"
        );
    }
}

#[test]
fn a_step_continues_the_accepted_path() {
    continues_the_path(&Cpu::default());
    let Some(cuda) = scanning_gpu() else { return };
    continues_the_path(&cuda);
}

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::testing::{Segment, batch};

fn tables(trees: &[&[i32]], padding: &[u32]) -> TreeTables<Cpu> {
    let tokens = vec![0; trees.iter().map(|tree| tree.len()).max().unwrap_or(0)];
    let segments: Vec<_> = (trees.iter().enumerate())
        .map(|(slot, parent)| Segment {
            slot: slot as u32,
            token: &tokens[..parent.len()],
            parent,
        })
        .collect();
    let batch = batch(&segments);
    let mut flags: Box<[u32]> = vec![0; batch.rows_max].into();
    flags[..padding.len()].copy_from_slice(padding);
    let mut tables = TreeTables::new(&Cpu::default(), batch.rows_max).unwrap();
    Cpu::default()
        .tree_tables(TreeTablesFrom {
            batch: &batch,
            padding: (!padding.is_empty()).then_some(&flags),
            tables: &mut tables,
        })
        .unwrap();
    tables
}

const BY_SCORE: [i32; 7] = [-1, 0, 1, 0, 2, 3, 2];
const DEPTH_FIRST: [i32; 7] = [-1, 0, 1, 2, 2, 0, 5];

#[test]
fn worked_example() {
    let by_score = tables(&[&BY_SCORE], &[]);
    assert_eq!(
        by_score.ancestors[..7],
        [0x01, 0x03, 0x07, 0x09, 0x17, 0x29, 0x47]
    );
    assert_eq!(by_score.first_child[..7], [1, 2, 4, 5, -1, -1, -1]);
    assert_eq!(by_score.next_sibling[..7], [-1, 3, -1, -1, 6, -1, -1]);
    assert_eq!(by_score.scan_order[..7], [0, 3, 5, 1, 2, 4, 6]);
    assert_eq!(by_score.scan_save[..7], [0, -1, 0, -1, -1, -1, -1]);
    assert_eq!(by_score.scan_restore[..7], [-1, 0, -1, -1, -1, -1, 0]);

    let depth_first = tables(&[&DEPTH_FIRST], &[]);
    assert_eq!(
        depth_first.ancestors[..7],
        [0x01, 0x03, 0x07, 0x0F, 0x17, 0x21, 0x61]
    );
    assert_eq!(depth_first.first_child[..7], [1, 2, 3, -1, -1, 6, -1]);
    assert_eq!(depth_first.next_sibling[..7], [-1, 5, -1, 4, -1, -1, -1]);
    // Row 3: itself, 2, 1, 0. Row 5: itself, 0, then the history from its newest column.
    assert_eq!(depth_first.conv_source[12..16], [6, 5, 4, 3]);
    assert_eq!(depth_first.conv_source[20..24], [8, 3, 2, 1]);
    assert_eq!(depth_first.conv_source[..4], [3, 2, 1, 0]);
}

#[test]
fn segments_are_numbered_on_their_own() {
    let both = tables(&[&BY_SCORE, &DEPTH_FIRST], &[]);
    let second = tables(&[&DEPTH_FIRST], &[]);
    assert_eq!(both.ancestors[7..14], second.ancestors[..7]);
    assert_eq!(both.first_child[7..14], second.first_child[..7]);
    assert_eq!(both.conv_source[28..56], second.conv_source[..28]);
    assert_eq!(both.scan_order[7..14], second.scan_order[..7]);
    assert_eq!(both.scan_restore[7..14], second.scan_restore[..7]);
}

/// A tree of `rows` rows, the last `padding` of them padding, and its padding flags.
fn random_tree(rng: &mut Pcg64, rows: usize, padding: usize) -> (Vec<i32>, Vec<u32>) {
    let real = rows - padding;
    let shape = rng.random_range(0..5);
    let parents = (0..rows).map(|row| match (row, shape) {
        (0, _) => -1,
        _ if row >= real => 0,
        // Binary, a random tree, a bush of chains, a caterpillar, late branches.
        (_, 0) => (row as i32 - 1) / 2,
        (_, 1) => rng.random_range(0..row as i32),
        (_, 2) => (row as i32 - 1 - rng.random_range(0..3)).max(0),
        (_, 3) => (row as i32 - 1) / 2 * 2,
        _ => rng.random_range(row as i32 / 2..row as i32),
    });
    let parents = parents.collect();
    (
        parents,
        (0..rows).map(|row| u32::from(row >= real)).collect(),
    )
}

/// Rows from the root to `row`.
fn path(parents: &[i32], row: usize) -> Vec<usize> {
    let mut path = vec![row];
    while parents[path[0]] >= 0 {
        path.insert(0, parents[path[0]] as usize);
    }
    path
}

/// Runs the plan on states that record the rows they went through.
fn scan(tables: &TreeTables<Cpu>, rows: usize) -> (Vec<Vec<usize>>, usize) {
    let mut slots = [const { None }; crate::limits::SCAN_SLOTS_MAX];
    let mut used = 0;
    let mut states = vec![Vec::new(); rows];
    let mut state: Vec<usize> = Vec::new();
    for &row in &tables.scan_order[..rows] {
        let row = row as usize;
        if let Ok(slot) = usize::try_from(tables.scan_restore[row]) {
            state = Option::clone(&slots[slot]).expect("the slot was saved before");
        }
        state.push(row);
        if let Ok(slot) = usize::try_from(tables.scan_save[row]) {
            slots[slot] = Some(state.clone());
            used = used.max(slot + 1);
        }
        assert!(states[row].is_empty(), "row {row} is visited twice");
        states[row] = state.clone();
    }
    (states, used)
}

#[test]
fn scan_starts_every_row_from_its_own_parent_within_few_slots() {
    let mut rng = Pcg64::seed_from_u64(1);
    for _ in 0..6000 {
        let rows = rng.random_range(1..=64);
        let padding = match rng.random_range(0..3) {
            0 => rng.random_range(0..rows),
            1 => 1.min(rows - 1),
            _ => 0,
        };
        let (parents, flags) = random_tree(&mut rng, rows, padding);
        let tables = tables(&[&parents], &flags);
        let (states, used) = scan(&tables, rows);
        for (row, state) in states.iter().enumerate() {
            assert_eq!(*state, path(&parents, row), "{parents:?}");
        }
        assert!(used as u32 <= rows.ilog2(), "{used} slots for {parents:?}");
        let last: Vec<usize> = (tables.scan_order[rows - padding..rows].iter())
            .map(|&row| row as usize)
            .collect();
        assert_eq!(last, (rows - padding..rows).collect::<Vec<_>>());
    }
}

#[test]
fn tables_agree_with_the_paths() {
    let mut rng = Pcg64::seed_from_u64(2);
    for _ in 0..500 {
        let rows = rng.random_range(1..=64);
        let padding = rng.random_range(0..rows);
        let (parents, flags) = random_tree(&mut rng, rows, padding);
        let tables = tables(&[&parents], &flags);
        for row in 0..rows {
            let mut above = path(&parents, row);
            let bits: Vec<usize> = (0..64)
                .filter(|&bit| tables.ancestors[row] >> bit & 1 == 1)
                .collect();
            assert_eq!(bits, above, "a path ascends");
            above = [
                &[0, 1, 2][..],
                &above.iter().map(|r| r + 3).collect::<Vec<_>>(),
            ]
            .concat();
            let newest: Vec<u32> = above.iter().rev().take(4).map(|&r| r as u32).collect();
            assert_eq!(tables.conv_source[row * 4..row * 4 + 4], newest);

            let mut listed = Vec::new();
            let mut child = tables.first_child[row];
            while child >= 0 {
                listed.push(child as usize);
                child = tables.next_sibling[child as usize];
            }
            let expected: Vec<usize> = (1..rows)
                .filter(|&r| parents[r] == row as i32 && flags[r] == 0)
                .collect();
            assert_eq!(listed, expected);
        }
    }
}

/// The perfect binary tree of 63 rows is the one that needs most.
#[test]
fn worst_case_fits_the_slots() {
    let parents: Vec<i32> = (0..63)
        .map(|row| (row - 1) / 2 - i32::from(row == 0))
        .collect();
    let (states, used) = scan(&tables(&[&parents], &[]), 63);
    assert_eq!(used, 5);
    assert_eq!(states[62], [0, 2, 6, 14, 30, 62]);
}

#[test]
fn long_chains_get_convolution_sources_only() {
    let chain: Vec<i32> = (-1..199).collect();
    let tables = tables(&[&chain, &BY_SCORE], &[]);
    for row in 0..200 {
        let expected: Vec<u32> = (0..4).map(|tap| row + 3 - tap).collect();
        assert_eq!(tables.conv_source[row as usize * 4..][..4], expected);
    }
    assert!(tables.ancestors[..200].iter().all(|&bits| bits == 0));
    assert!(tables.first_child[..200].iter().all(|&child| child == 0));
    assert!(tables.scan_order[..200].iter().all(|&row| row == 0));
    assert_eq!(tables.scan_order[200..207], [0, 3, 5, 1, 2, 4, 6]);
}

#[test]
#[should_panic(expected = "row 2 of a segment has parent 2")]
fn parents_come_first() {
    tables(&[&[-1, 0, 2]], &[]);
}

//! Tables of random trees, bushes and chains.

use rand_pcg::Pcg64;

use super::{cases, get, gpu, poisoned, put, put_batch};
use crate::testing::{below, chain, rng, tree_batch};
use crate::{Backend, Batch, Cpu, Cuda, TreeTables, TreeTablesFrom};

/// All tables with the bytes of poison where nothing was written.
#[derive(Debug, PartialEq)]
struct Tables {
    ancestors: Vec<u64>,
    first_child: Vec<i32>,
    next_sibling: Vec<i32>,
    conv_source: Vec<u32>,
    scan_order: Vec<u32>,
    scan_restore: Vec<i32>,
    scan_save: Vec<i32>,
}

const POISON: u32 = 0xABAB_ABAB;

fn cpu(batch: &Batch<Cpu>, padding: Option<&[u32]>) -> Tables {
    let rows = batch.rows_max;
    let poison = || vec![POISON; rows].into();
    let signed = || vec![POISON as i32; rows].into();
    let mut tables = TreeTables {
        rows_max: rows,
        ancestors: vec![0xABAB_ABAB_ABAB_ABAB; rows].into(),
        first_child: signed(),
        next_sibling: signed(),
        conv_source: vec![POISON; rows * 4].into(),
        scan_order: poison(),
        scan_restore: signed(),
        scan_save: signed(),
    };
    let padding: Option<Box<[u32]>> = padding.map(Into::into);
    Cpu::default()
        .tree_tables(TreeTablesFrom {
            batch,
            padding: padding.as_ref(),
            tables: &mut tables,
        })
        .unwrap();
    Tables {
        ancestors: tables.ancestors.into(),
        first_child: tables.first_child.into(),
        next_sibling: tables.next_sibling.into(),
        conv_source: tables.conv_source.into(),
        scan_order: tables.scan_order.into(),
        scan_restore: tables.scan_restore.into(),
        scan_save: tables.scan_save.into(),
    }
}

fn cuda_tables(cuda: &Cuda, batch: &Batch<Cpu>, padding: Option<&[u32]>) -> Tables {
    let rows = batch.rows_max;
    let mut tables = TreeTables {
        rows_max: rows,
        ancestors: poisoned(cuda, rows),
        first_child: poisoned(cuda, rows),
        next_sibling: poisoned(cuda, rows),
        conv_source: poisoned(cuda, rows * 4),
        scan_order: poisoned(cuda, rows),
        scan_restore: poisoned(cuda, rows),
        scan_save: poisoned(cuda, rows),
    };
    let padding = padding.map(|padding| put(cuda, padding));
    cuda.tree_tables(TreeTablesFrom {
        batch: &put_batch(cuda, batch),
        padding: padding.as_ref(),
        tables: &mut tables,
    })
    .unwrap();
    Tables {
        ancestors: get(cuda, &tables.ancestors),
        first_child: get(cuda, &tables.first_child),
        next_sibling: get(cuda, &tables.next_sibling),
        conv_source: get(cuda, &tables.conv_source),
        scan_order: get(cuda, &tables.scan_order),
        scan_restore: get(cuda, &tables.scan_restore),
        scan_save: get(cuda, &tables.scan_save),
    }
}

/// A tree of `rows` rows, the last `padding` of them children of row 0.
fn tree(rng: &mut Pcg64, rows: usize, padding: usize) -> Vec<i32> {
    let shape = below(rng, 7);
    let mut parents = vec![-1];
    for row in 1..rows {
        parents.push(match shape {
            _ if row >= rows - padding => 0,
            0 => (row as i32 - 1) / 2,
            1 => below(rng, row) as i32,
            2 => (row as i32 - 1 - below(rng, 3) as i32).max(0),
            3 => (row as i32 - 1) / 2 * 2,
            4 => (row / 2 + below(rng, row - row / 2)) as i32,
            5 => 0,
            _ => row as i32 - 1,
        });
    }
    parents
}

fn compare(cuda: &Cuda, batch: &Batch<Cpu>, padding: Option<&[u32]>, what: &str) {
    let (expected, found) = (cpu(batch, padding), cuda_tables(cuda, batch, padding));
    for sequence in 0..batch.live[1] as usize {
        let start = batch.sequence_start[sequence] as usize;
        let rows = start..start + batch.sequence_rows[sequence] as usize;
        let parents = &batch.parent[rows.clone()];
        let at = rows.clone();
        assert_eq!(
            found.ancestors[at.clone()],
            expected.ancestors[at.clone()],
            "{parents:?}"
        );
        assert_eq!(
            found.scan_order[at.clone()],
            expected.scan_order[at.clone()],
            "{parents:?}"
        );
        assert_eq!(
            found.scan_save[at.clone()],
            expected.scan_save[at],
            "{parents:?}"
        );
    }
    assert_eq!(found, expected, "{what}");
}

#[test]
fn tables_are_those_of_the_reference() {
    let Some(cuda) = gpu() else { return };
    let mut rng = rng(1);
    for &batch_number in cases(&(0..120).collect::<Vec<usize>>(), 40) {
        let sequences = 1 + batch_number % 40;
        let with_padding = batch_number % 3 > 0;
        let mut flags = Vec::new();
        let mut trees = Vec::new();
        for _ in 0..sequences {
            let rows = [1 + below(&mut rng, 64), 64, 16, 2][below(&mut rng, 4)];
            let padding = match below(&mut rng, 3) {
                0 if with_padding => below(&mut rng, rows),
                1 if with_padding => 1.min(rows - 1),
                _ => 0,
            };
            flags.extend((0..rows).map(|row| u32::from(row >= rows - padding)));
            trees.push(tree(&mut rng, rows, padding));
        }
        let batch = tree_batch(&trees.iter().map(|tree| &tree[..]).collect::<Vec<_>>());
        flags.resize(batch.rows_max, 7);
        let padding = with_padding.then_some(&flags[..]);
        compare(&cuda, &batch, padding, &format!("batch {batch_number}"));
    }
}

#[test]
fn chunks_get_convolution_sources_only() {
    let Some(cuda) = gpu() else { return };
    for rows in [[65, 3, 2048], [64, 66, 1], [1000, 64, 65]] {
        let chains = rows.map(chain);
        let batch = tree_batch(&chains.each_ref().map(|chain| &chain[..]));
        compare(&cuda, &batch, None, &format!("chunks of {rows:?} rows"));
    }
}

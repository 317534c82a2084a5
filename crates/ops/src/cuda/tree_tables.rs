//! Tables of a tree.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, TreeTable};
use crate::{OpsError, TreeTablesFrom};

const TREE_TABLES: Entry = Entry {
    module: "tree_tables",
    name: "tree_tables",
};

/// `TreeTablesParams` of kernels/tree_tables.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct TreeTablesParams {
    batch: BatchTable,
    padding: DevicePtr,
    tree: TreeTable,
}

pub(super) fn tree_tables(cuda: &Cuda, op: TreeTablesFrom<'_, Cuda>) -> Result<(), OpsError> {
    let rows = op.batch.rows_max;
    assert!(
        rows <= op.tables.rows_max,
        "tables of {} rows for {rows}",
        op.tables.rows_max
    );
    let params = TreeTablesParams {
        batch: BatchTable::of(op.batch),
        padding: op
            .padding
            .map_or(DevicePtr::NULL, |padding| padding.range(0, rows)),
        tree: TreeTable::of(op.tables),
    };
    let grid = Grid {
        blocks: [op.batch.sequences_max as u32, 1, 1],
        threads: 256,
        shared: 0,
    };
    // SAFETY: the struct mirrors the kernel's; the tables hold every row of the batch.
    unsafe { cuda.run(&TREE_TABLES, grid, params) }
}

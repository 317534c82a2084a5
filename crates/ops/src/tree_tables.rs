//! What the layers need to know of a tree, computed once per step from its parents.

use crate::limits::SCAN_SLOTS_MAX;
use crate::{Backend, Batch, Cpu, OpsError};

/// Tables of every row of a batch.
pub struct TreeTables<B: Backend> {
    /// Rows the tables can hold.
    pub rows_max: usize,
    /// `[rows_max]` set bit j: row j of the segment is the row itself or an ancestor.
    pub ancestors: B::Buf<u64>,
    /// `[rows_max]` first child in the segment in rank order, -1 = none.
    pub first_child: B::Buf<i32>,
    /// `[rows_max]` next sibling, -1 = none.
    pub next_sibling: B::Buf<i32>,
    /// `[rows_max, 4]` sources of the convolution, newest first: 0..3 = history column (0 oldest,
    /// 2 newest), `3 + i` = row i of the segment.
    pub conv_source: B::Buf<u32>,
    /// `[rows_max]` at `start + n`: the n-th row of the segment that the scan visits.
    pub scan_order: B::Buf<u32>,
    /// `[rows_max]` slot whose state the row starts from, -1 = the state at hand.
    pub scan_restore: B::Buf<i32>,
    /// `[rows_max]` slot that keeps the row's state, -1 = none.
    pub scan_save: B::Buf<i32>,
}

impl<B: Backend> TreeTables<B> {
    /// Slots a scan needs at most.
    pub const SCAN_SLOTS: usize = SCAN_SLOTS_MAX;

    /// Empty tables.
    pub fn new(backend: &B, rows_max: usize) -> Result<Self, OpsError> {
        Ok(TreeTables {
            rows_max,
            ancestors: backend.alloc(rows_max)?,
            first_child: backend.alloc(rows_max)?,
            next_sibling: backend.alloc(rows_max)?,
            conv_source: backend.alloc(rows_max * 4)?,
            scan_order: backend.alloc(rows_max)?,
            scan_restore: backend.alloc(rows_max)?,
            scan_save: backend.alloc(rows_max)?,
        })
    }
}

/// Derives every table from `batch.parent`.
///
/// Scan: depth first, children by growing subtree (ties: lower row first), padding rows last. A
/// node with several children keeps its state in the slot of its level; all children but the last
/// are explored one level up, and each child but the first starts by restoring, so at most
/// `floor(log2 rows)` slots are used.
///
/// A chunk of a prompt is a chain longer than a bitset: segments of more than
/// [`crate::TREE_ROWS_MAX`] rows get `conv_source` only.
pub struct TreeTablesFrom<'a, B: Backend> {
    /// Segments and parents.
    pub batch: &'a Batch<B>,
    /// `[rows]` 1 = padding: not a child of anything. Absent for chunks.
    pub padding: Option<&'a B::Buf<u32>>,
    /// The tables to fill.
    pub tables: &'a mut TreeTables<B>,
}

pub(crate) fn cpu(_op: TreeTablesFrom<'_, Cpu>) {
    todo!()
}

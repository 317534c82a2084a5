//! What the layers need to know of a tree, computed once per step from its parents.

mod scan_plan;

use self::scan_plan::ScanPlan;
use crate::limits::TREE_ROWS_MAX;
use crate::{Backend, Batch, Cpu, OpsError};

/// Tables of every row of a batch.
pub struct TreeTables<B: Backend> {
    /// Rows the tables can hold.
    pub rows_max: usize,
    /// `[rows_max]` set bit j: row j of the segment is the row itself or an ancestor. The mask of
    /// attention kernels; the CPU follows `parent` instead.
    pub ancestors: B::Buf<u64>,
    /// `[rows_max]` first child in the segment in rank order, -1 = none.
    pub first_child: B::Buf<i32>,
    /// `[rows_max]` next sibling, -1 = none.
    pub next_sibling: B::Buf<i32>,
    /// `[rows_max, 4]` sources of the convolution, newest first: 0..3 = history column (0 oldest,
    /// 2 newest), `3 + i` = row i of the segment.
    pub conv_source: B::Buf<u32>,
    /// `[rows_max]` at `start + n`: the row, numbered within the segment, that the scan visits as
    /// the n-th. (Every other table is read at the row itself, `start + i`.)
    pub scan_order: B::Buf<u32>,
    /// `[rows_max]` at `start + i`: slot whose state row i starts from, -1 = the state at hand.
    pub scan_restore: B::Buf<i32>,
    /// `[rows_max]` at `start + i`: slot that keeps the state of row i, -1 = none.
    pub scan_save: B::Buf<i32>,
}

impl<B: Backend> TreeTables<B> {
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
/// `floor(log2 rows)` slots are used. For the scan, and only there, padding rows are the last
/// children of row 0: they start from its state, and nothing comes after them.
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

pub(crate) fn cpu(op: TreeTablesFrom<'_, Cpu>) {
    let (batch, tables) = (op.batch, op.tables);
    for sequence in 0..batch.live[1] as usize {
        let start = batch.sequence_start[sequence] as usize;
        let segment = start..start + batch.sequence_rows[sequence] as usize;
        let parents = &batch.parent[segment.clone()];
        check(parents);
        conv_sources(
            parents,
            &mut tables.conv_source[segment.start * 4..segment.end * 4],
        );
        if segment.len() > TREE_ROWS_MAX {
            continue;
        }
        let is_padding: Vec<bool> = match op.padding {
            Some(padding) => padding[segment.clone()].iter().map(|&p| p != 0).collect(),
            None => vec![false; segment.len()],
        };
        ancestors(parents, &mut tables.ancestors[segment.clone()]);
        children(
            parents,
            &is_padding,
            &mut tables.first_child[segment.clone()],
            &mut tables.next_sibling[segment.clone()],
        );
        let plan = ScanPlan::new(parents, &is_padding);
        tables.scan_order[segment.clone()].copy_from_slice(&plan.order);
        tables.scan_restore[segment.clone()].copy_from_slice(&plan.restore);
        tables.scan_save[segment].copy_from_slice(&plan.save);
    }
}

fn check(parents: &[i32]) {
    for (row, &parent) in parents.iter().enumerate() {
        let right = match row {
            0 => parent == -1,
            _ => (0..row as i32).contains(&parent),
        };
        assert!(
            right,
            "row {row} of a segment has parent {parent}; row 0 has -1, others an earlier row"
        );
    }
}

fn ancestors(parents: &[i32], ancestors: &mut [u64]) {
    for (row, &parent) in parents.iter().enumerate() {
        let above = if row == 0 {
            0
        } else {
            ancestors[parent as usize]
        };
        ancestors[row] = above | 1 << row;
    }
}

/// Siblings are numbered in rank order, so each row goes before those already linked when rows
/// are taken from the last to the first.
fn children(
    parents: &[i32],
    is_padding: &[bool],
    first_child: &mut [i32],
    next_sibling: &mut [i32],
) {
    first_child.fill(-1);
    next_sibling.fill(-1);
    for row in (1..parents.len()).rev().filter(|&row| !is_padding[row]) {
        let first = &mut first_child[parents[row] as usize];
        next_sibling[row] = *first;
        *first = row as i32;
    }
}

/// Row i reads itself and its three nearest ancestors; above row 0 the history continues with its
/// newest column.
fn conv_sources(parents: &[i32], sources: &mut [u32]) {
    for (row, out) in sources.chunks_mut(4).enumerate() {
        let mut source = 3 + row as i32;
        for tap in out {
            *tap = source as u32;
            source = match source {
                4.. => 3 + parents[source as usize - 3],
                _ => (source - 1).max(0),
            };
        }
    }
}

#[cfg(test)]
mod tests;

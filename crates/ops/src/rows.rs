//! Moving rows: tapped hidden states, last rows of a prompt, accepted rows of a tree.

use crate::{Backend, Cpu, OpsError, Rows};

/// A list of rows to be taken out of a larger set, with the place they go to. `rows` counts live
/// entries as a [`crate::Batch`] does.
pub struct ContextRows<B: Backend> {
    /// Entries the tables can hold.
    pub rows_max: usize,
    /// `[2]`: live entries, unused.
    pub live: B::Buf<u32>,
    /// `[rows_max]` row to read.
    pub source: B::Buf<u32>,
    /// `[rows_max]` slot of the row's sequence.
    pub slot: B::Buf<u32>,
    /// `[rows_max]` absolute position of the row, which is also its cache index.
    pub position: B::Buf<u32>,
}

impl<B: Backend> ContextRows<B> {
    /// Empty tables.
    pub fn new(backend: &B, rows_max: usize) -> Result<Self, OpsError> {
        Ok(ContextRows {
            rows_max,
            live: backend.alloc(2)?,
            source: backend.alloc(rows_max)?,
            slot: backend.alloc(rows_max)?,
            position: backend.alloc(rows_max)?,
        })
    }

    /// The entry count for an op over `capacity` entries.
    pub fn rows(&self, capacity: usize) -> Rows<'_, B> {
        assert!(
            capacity <= self.rows_max,
            "{capacity} rows in tables for {}",
            self.rows_max
        );
        Rows {
            capacity,
            live: &self.live,
        }
    }
}

/// `out[j, :] = x[source[j], :]` for every live entry `j`.
pub struct GatherRows<'a, B: Backend> {
    /// Entries to gather.
    pub rows: Rows<'a, B>,
    /// `[rows]` row to read.
    pub source: &'a B::Buf<u32>,
    /// Values per row.
    pub dim: usize,
    /// `[any, dim]`.
    pub x: &'a B::Buf<f32>,
    /// `[rows, dim]`.
    pub out: &'a mut B::Buf<f32>,
}

/// `out[r, offset .. offset + dim] = x[r, :]`: one tap into the concatenated features.
pub struct CopyColumns<'a, B: Backend> {
    /// Rows to copy.
    pub rows: Rows<'a, B>,
    /// Values per row of `x`.
    pub dim: usize,
    /// `[rows, dim]`.
    pub x: &'a B::Buf<f32>,
    /// First column written.
    pub offset: usize,
    /// Values per row of `out`.
    pub out_dim: usize,
    /// `[rows, out_dim]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn gather_cpu(op: GatherRows<'_, Cpu>) {
    for row in 0..op.rows.count() {
        let source = op.source[row] as usize;
        let x = &op.x[source * op.dim..][..op.dim];
        op.out[row * op.dim..][..op.dim].copy_from_slice(x);
    }
}

pub(crate) fn copy_columns_cpu(op: CopyColumns<'_, Cpu>) {
    assert!(
        op.offset + op.dim <= op.out_dim,
        "columns {}..{} of rows of {}",
        op.offset,
        op.offset + op.dim,
        op.out_dim
    );
    for row in 0..op.rows.count() {
        let x = &op.x[row * op.dim..][..op.dim];
        op.out[row * op.out_dim + op.offset..][..op.dim].copy_from_slice(x);
    }
}

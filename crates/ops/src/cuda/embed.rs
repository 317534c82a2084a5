//! Token rows of the embedding table.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::Entry;
use super::rows::{Vectors, copy_grid};
use super::tables::{BatchTable, bf16_values};
use crate::{Embed, OpsError};

const EMBED: Entry = Entry {
    module: "rows",
    name: "embed",
};

/// `EmbedParams` of kernels/rows.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct EmbedParams {
    batch: BatchTable,
    table: DevicePtr,
    out: DevicePtr,
    table_rows: u32,
    vectors: u32,
}

/// # Panics
/// If the table is not bf16 or its rows are no multiple of 8 values.
pub(super) fn embed(cuda: &Cuda, op: Embed<'_, Cuda>) -> Result<(), OpsError> {
    let (rows, table) = (op.rows.capacity, op.table);
    let vectors = Vectors::of_eight(table.columns);
    let params = EmbedParams {
        batch: BatchTable::of(op.batch),
        table: bf16_values(&table.storage, "embeddings").range(0, table.rows * table.columns),
        out: op.out.range(0, rows * table.columns),
        table_rows: table.rows as u32,
        vectors: vectors.count(),
    };
    assert!(
        rows <= op.batch.rows_max,
        "{rows} rows of {}",
        op.batch.rows_max
    );
    // SAFETY: the struct mirrors the kernel's; the table has `table_rows` and the output `rows`
    // rows of `vectors` vectors, and the kernel looks up no token beyond the table.
    unsafe { cuda.run(&EMBED, copy_grid(rows, vectors), params) }
}

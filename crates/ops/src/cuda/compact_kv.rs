//! Keys and values of accepted rows.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::rows::Vectors;
use super::tables::{BatchTable, SlotTable, WalkTable, bf16_values};
use crate::{CompactKv, OpsError};

const COMPACT_KV: Entry = Entry {
    module: "compact_kv",
    name: "compact_kv",
};
/// Layers whose pools fit the kernel's parameters.
pub(super) const LAYERS_MAX: usize = 64;
/// Their key and value pools.
const POOLS_MAX: usize = 2 * LAYERS_MAX;

/// `CompactKvParams` of kernels/compact_kv.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct CompactKvParams {
    batch: BatchTable,
    slots: SlotTable,
    walk: WalkTable,
    pool: [DevicePtr; POOLS_MAX],
    row_vectors: u32,
}

/// # Panics
/// If a pool is not bf16, layers differ in width, there are more than 64, or a cache row is no
/// multiple of 8 values.
pub(super) fn compact_kv(cuda: &Cuda, op: CompactKv<'_, Cuda>) -> Result<(), OpsError> {
    let Some(first) = op.layers.first() else {
        return Ok(());
    };
    let width = first.heads * first.head_dim;
    assert!(
        op.layers.len() <= LAYERS_MAX,
        "{} attention layers; CUDA takes {LAYERS_MAX}",
        op.layers.len()
    );
    let mut pool = [DevicePtr::NULL; POOLS_MAX];
    for (pools, layer) in pool.chunks_mut(2).zip(op.layers.iter()) {
        assert_eq!(layer.heads * layer.head_dim, width, "values of a cache row");
        pools[0] = bf16_values(&layer.keys, "keys").ptr();
        pools[1] = bf16_values(&layer.values, "values").ptr();
    }
    let params = CompactKvParams {
        batch: BatchTable::of(op.batch),
        slots: SlotTable::of(op.slots),
        walk: WalkTable::of(op.walk),
        pool,
        row_vectors: Vectors::of_eight(width).count(),
    };
    let sequences = op.batch.sequences_max.min(op.walk.sequences_max);
    let grid = Grid {
        blocks: [2 * op.layers.len() as u32, sequences as u32, 1],
        threads: 128,
        shared: 0,
    };
    // SAFETY: the struct mirrors the kernel's; sequences own a page for every row of their
    // segments, and no two sequences share one that is written.
    unsafe { cuda.run(&COMPACT_KV, grid, params) }
}

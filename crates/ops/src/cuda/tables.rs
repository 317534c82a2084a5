//! Tables of a batch, a tree, the slots, a walk and a KV layer as kernels see them; mirrored by
//! `kernels/tables.cuh`.

use super::buf::DevicePtr;
use super::device::Cuda;
use crate::{Batch, KvLayer, Slots, Storage, TreeTables, Walk};

/// `struct Batch`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct BatchTable {
    live: DevicePtr,
    row_sequence: DevicePtr,
    token: DevicePtr,
    parent: DevicePtr,
    depth: DevicePtr,
    sequence_slot: DevicePtr,
    sequence_start: DevicePtr,
    sequence_rows: DevicePtr,
    rows_max: u32,
    sequences_max: u32,
}

impl BatchTable {
    /// For kernels that look at no batch.
    pub(super) const NONE: BatchTable = BatchTable {
        live: DevicePtr::NULL,
        row_sequence: DevicePtr::NULL,
        token: DevicePtr::NULL,
        parent: DevicePtr::NULL,
        depth: DevicePtr::NULL,
        sequence_slot: DevicePtr::NULL,
        sequence_start: DevicePtr::NULL,
        sequence_rows: DevicePtr::NULL,
        rows_max: 0,
        sequences_max: 0,
    };

    pub(super) fn of(batch: &Batch<Cuda>) -> Self {
        BatchTable {
            live: batch.live.ptr(),
            row_sequence: batch.row_sequence.ptr(),
            token: batch.token.ptr(),
            parent: batch.parent.ptr(),
            depth: batch.depth.ptr(),
            sequence_slot: batch.sequence_slot.ptr(),
            sequence_start: batch.sequence_start.ptr(),
            sequence_rows: batch.sequence_rows.ptr(),
            rows_max: batch.rows_max as u32,
            sequences_max: batch.sequences_max as u32,
        }
    }
}

/// `struct Tree`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct TreeTable {
    ancestors: DevicePtr,
    first_child: DevicePtr,
    next_sibling: DevicePtr,
    conv_source: DevicePtr,
    scan_order: DevicePtr,
    scan_restore: DevicePtr,
    scan_save: DevicePtr,
}

impl TreeTable {
    pub(super) fn of(tree: &TreeTables<Cuda>) -> Self {
        TreeTable {
            ancestors: tree.ancestors.ptr(),
            first_child: tree.first_child.ptr(),
            next_sibling: tree.next_sibling.ptr(),
            conv_source: tree.conv_source.ptr(),
            scan_order: tree.scan_order.ptr(),
            scan_restore: tree.scan_restore.ptr(),
            scan_save: tree.scan_save.ptr(),
        }
    }
}

/// `struct Slots`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SlotTable {
    count: u32,
    pages_max: u32,
    vocab_rows: u32,
    vocab_used: u32,
    length: DevicePtr,
    root: DevicePtr,
    emitted: DevicePtr,
    pending: DevicePtr,
    block_table: DevicePtr,
    sampling: DevicePtr,
    stop_ids: DevicePtr,
    bias_ids: DevicePtr,
    bias_values: DevicePtr,
    prompt_seen: DevicePtr,
    generated: DevicePtr,
}

impl SlotTable {
    pub(super) fn of(slots: &Slots<Cuda>) -> Self {
        SlotTable {
            count: slots.count as u32,
            pages_max: slots.pages_max as u32,
            vocab_rows: slots.vocab_rows as u32,
            vocab_used: slots.vocab_used as u32,
            length: slots.length.ptr(),
            root: slots.root.ptr(),
            emitted: slots.emitted.ptr(),
            pending: slots.pending.ptr(),
            block_table: slots.block_table.ptr(),
            sampling: slots.sampling.ptr(),
            stop_ids: slots.stop_ids.ptr(),
            bias_ids: slots.bias_ids.ptr(),
            bias_values: slots.bias_values.ptr(),
            prompt_seen: slots.prompt_seen.ptr(),
            generated: slots.generated.ptr(),
        }
    }
}

/// `struct Walk`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct WalkTable {
    path_rows: DevicePtr,
    path: DevicePtr,
    emitted: DevicePtr,
    tokens: DevicePtr,
    reason: DevicePtr,
}

impl WalkTable {
    pub(super) fn of(walk: &Walk<Cuda>) -> Self {
        WalkTable {
            path_rows: walk.path_rows.ptr(),
            path: walk.path.ptr(),
            emitted: walk.emitted.ptr(),
            tokens: walk.tokens.ptr(),
            reason: walk.reason.ptr(),
        }
    }
}

/// `struct Kv`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct KvTable {
    keys: DevicePtr,
    values: DevicePtr,
    heads: u32,
    head_dim: u32,
}

impl KvTable {
    /// For kernels that write to no pool.
    pub(super) const NONE: KvTable = KvTable {
        keys: DevicePtr::NULL,
        values: DevicePtr::NULL,
        heads: 0,
        head_dim: 0,
    };

    /// # Panics
    /// If the pool is not bf16.
    pub(super) fn of(layer: &KvLayer<Cuda>) -> Self {
        KvTable {
            keys: bf16_values(&layer.keys, "keys").ptr(),
            values: bf16_values(&layer.values, "values").ptr(),
            heads: layer.heads as u32,
            head_dim: layer.head_dim as u32,
        }
    }
}

/// The values of a bf16 matrix or pool.
///
/// # Panics
/// If they are of another type: CUDA takes bf16 only, which is checked when a model is loaded.
pub(super) fn bf16_values<'a>(
    storage: &'a Storage<Cuda>,
    what: &str,
) -> &'a super::CudaBuf<half::bf16> {
    match storage {
        Storage::Bf16(values) => values,
        other => panic!("{what} are {:?}; CUDA takes bf16 only", other.dtype()),
    }
}

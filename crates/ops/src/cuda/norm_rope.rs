//! Norm, rotation and cache write of q, k and v.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, KvTable, SlotTable};
use crate::{KvTarget, NormRope, OpsError};

const WARPS: usize = 4;

/// `NormRopeParams` of kernels/norm_rope.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct NormRopeParams {
    batch: BatchTable,
    slots: SlotTable,
    cache: KvTable,
    live: DevicePtr,
    listed_slot: DevicePtr,
    listed_position: DevicePtr,
    block_keys: DevicePtr,
    block_values: DevicePtr,
    x: DevicePtr,
    frequency: DevicePtr,
    query_weight: DevicePtr,
    key_weight: DevicePtr,
    query: DevicePtr,
    row_stride: u32,
    heads: u32,
    head_stride: u32,
    kv_heads: u32,
    kv_offset: u32,
    rotary: u32,
    eps: f32,
    target: u32,
}

/// Part of the parameters that depends on where keys and values go.
struct Target {
    batch: BatchTable,
    slots: SlotTable,
    cache: KvTable,
    listed: (DevicePtr, DevicePtr),
    block: (DevicePtr, DevicePtr),
    code: u32,
}

impl Target {
    /// `width`: values of the keys of a row.
    fn of(target: &KvTarget<'_, Cuda>, rows: usize, width: usize) -> Self {
        let nothing = (DevicePtr::NULL, DevicePtr::NULL);
        match target {
            KvTarget::Pages {
                batch,
                slots,
                cache,
            } => Target {
                batch: BatchTable::of(batch),
                slots: SlotTable::of(slots),
                cache: KvTable::of(cache),
                listed: nothing,
                block: nothing,
                code: 0,
            },
            KvTarget::Listed {
                context,
                slots,
                cache,
            } => Target {
                batch: BatchTable::NONE,
                slots: SlotTable::of(slots),
                cache: KvTable::of(cache),
                listed: (context.slot.range(0, rows), context.position.range(0, rows)),
                block: nothing,
                code: 1,
            },
            KvTarget::Block {
                batch,
                slots,
                keys,
                values,
            } => Target {
                batch: BatchTable::of(batch),
                slots: SlotTable::of(slots),
                cache: KvTable::NONE,
                listed: nothing,
                block: (keys.range(0, rows * width), values.range(0, rows * width)),
                code: 2,
            },
        }
    }
}

/// # Panics
/// If heads are not of 256 or 128 values, or the rotated part does not fall on whole lanes.
pub(super) fn norm_rope(cuda: &Cuda, op: NormRope<'_, Cuda>) -> Result<(), OpsError> {
    let (rows, dim) = (op.rows.capacity, op.head_dim);
    let name = match dim {
        256 => "norm_rope_256",
        128 => "norm_rope_128",
        _ => panic!("heads of {dim} values; CUDA takes 256 and 128"),
    };
    let lanes = op.rotary / 2 / (dim / 32);
    assert!(
        op.rotary.is_multiple_of(dim / 16) && lanes.is_power_of_two() && op.rotary <= dim,
        "{} rotated of {dim} values: no power of two of lanes",
        op.rotary
    );
    assert!(
        op.row_stride.is_multiple_of(8) && op.kv_offset.is_multiple_of(8),
        "rows of {} values with keys from {} on: vectors of 8 need multiples of 8",
        op.row_stride,
        op.kv_offset
    );
    let target = Target::of(&op.target, rows, op.kv_heads * dim);
    let heads = op.query.as_ref().map_or(0, |query| query.heads);
    let (weight, out, stride) = match &op.query {
        Some(query) => (
            query.weight.range(0, dim),
            query.out.range(0, rows * heads * dim),
            query.head_stride,
        ),
        None => (DevicePtr::NULL, DevicePtr::NULL, 0),
    };
    let params = NormRopeParams {
        batch: target.batch,
        slots: target.slots,
        cache: target.cache,
        live: op.rows.live.ptr(),
        listed_slot: target.listed.0,
        listed_position: target.listed.1,
        block_keys: target.block.0,
        block_values: target.block.1,
        x: op.x.range(0, rows * op.row_stride),
        frequency: op.frequency.range(0, op.rotary / 2),
        query_weight: weight,
        key_weight: op.key_weight.range(0, dim),
        query: out,
        row_stride: op.row_stride as u32,
        heads: heads as u32,
        head_stride: stride as u32,
        kv_heads: op.kv_heads as u32,
        kv_offset: op.kv_offset as u32,
        rotary: op.rotary as u32,
        eps: op.eps,
        target: target.code,
    };
    let units = heads + 2 * op.kv_heads;
    let grid = Grid {
        blocks: [units.div_ceil(WARPS) as u32, rows as u32, 1],
        threads: 32 * WARPS as u32,
        shared: 0,
    };
    let entry = Entry {
        module: "norm_rope",
        name,
    };
    // SAFETY: the struct mirrors the kernel's; lengths were checked above, tables are whole.
    unsafe { cuda.run(&entry, grid, params) }
}

//! Launches of `kernels/gdn_chunk.cu`.

use super::Cuda;
use super::buf::DevicePtr;
use super::gdn_sizes::GdnSizes;
use super::kernel::{Entry, Grid};
use super::scratch::Layout;
use super::tables::BatchTable;
use crate::{GdnScan, OpsError, ScratchNeeds};

const TRANSFORM: Entry = Entry {
    module: "gdn_chunk",
    name: "gdn_chunk_transform",
};
const SCAN: Entry = Entry {
    module: "gdn_chunk",
    name: "gdn_chunk_scan",
};

/// Rows of a chunk.
const CHUNK: usize = 64;
/// Columns of v that a block of the scan takes, of 128.
const COLUMNS: usize = 64;
/// Value heads that a block of the transform takes.
const HEADS: usize = 3;
const THREADS: u32 = 128;
/// `sizeof(TransformShared)` and `sizeof(ScanShared)`.
const TRANSFORM_SHARED_BYTES: u32 = 55_072;
const SCAN_SHARED_BYTES: u32 = 79_872;
/// More than half of what a multiprocessor of sm_90 and sm_100 has: keeps two blocks of the scan from
/// sharing one.
const ALONE_SHARED_BYTES: u32 = 116 << 10;
/// 16-byte pieces of T and P of a head of a chunk: 10 blocks of 16 x 16 each, as two bf16.
const CHUNK_PIECES: usize = 2 * 10 * 2 * 32;
/// Values of `struct Factors`.
const FACTORS: usize = 4 * CHUNK;

#[derive(Clone, Copy)]
#[repr(C)]
struct GdnChunkParams {
    batch: BatchTable,
    length: DevicePtr,
    pending: DevicePtr,
    sizes: GdnSizes,
    state: DevicePtr,
    conv: DevicePtr,
    pending_kv: DevicePtr,
    pending_gate: DevicePtr,
    pending_scale: DevicePtr,
    mixed: DevicePtr,
    qkv: DevicePtr,
    gate: DevicePtr,
    scale: DevicePtr,
    out: DevicePtr,
    matrices: DevicePtr,
    factors: DevicePtr,
}

/// Where T and P, and the factors of rows, lie in the scratch.
struct Arrays {
    matrices: usize,
    factors: usize,
    bytes: usize,
}

impl Arrays {
    fn of(chunks: usize, value_heads: usize) -> Self {
        let mut layout = Layout::default();
        let matrices = layout.take::<[u32; 4]>(chunks * value_heads * CHUNK_PIECES);
        let factors = layout.take::<f32>(chunks * value_heads * FACTORS);
        Arrays {
            matrices,
            factors,
            bytes: layout.bytes,
        }
    }
}

/// Chunks of a call at most: they start at multiples of 64 positions, so the rows of a sequence may
/// begin and end inside of one.
fn chunks_max(rows: usize, sequences: usize) -> usize {
    rows / CHUNK + 2 * sequences.min(rows)
}

/// Shared memory of a block of the scan of so many heads. Blocks are placed while the transform ends,
/// two on a multiprocessor that is free early; they would stay there with others idle.
fn scan_shared_bytes(cuda: &Cuda, heads: usize) -> u32 {
    let blocks = heads * (128 / COLUMNS);
    let large = (9..=10).contains(&cuda.compute().0);
    match large && blocks <= cuda.multiprocessors() as usize {
        true => ALONE_SHARED_BYTES,
        false => SCAN_SHARED_BYTES,
    }
}

pub(super) fn scratch_bytes(_cuda: &Cuda, needs: &ScratchNeeds) -> usize {
    let chunks = chunks_max(needs.prefill_rows, needs.sequences);
    Arrays::of(chunks, needs.value_heads).bytes
}

/// The prefill of [`GdnScan`]. Segments lie in the order of their sequences.
pub(super) fn gdn_chunk(cuda: &Cuda, op: GdnScan<'_, Cuda>) -> Result<(), OpsError> {
    let shape = op.state.shape;
    let rows = op.rows.capacity;
    assert!(
        op.out.len() >= rows * shape.value_width()
            && op.journal.qkv.len() >= rows * shape.channels(),
        "{rows} rows into {} values",
        op.out.len()
    );
    assert!(
        u32::try_from(rows * shape.channels()).is_ok(),
        "values of {rows} rows are numbered in 32 bits"
    );
    let (state, journal) = (op.state, op.journal);
    let sequences = op.batch.sequences_max.min(rows);
    let chunks = chunks_max(rows, sequences);
    let arrays = Arrays::of(chunks, shape.value_heads);
    let scratch = cuda.scratch(arrays.bytes);
    let params = GdnChunkParams {
        batch: BatchTable::of(op.batch),
        length: op.slots.length.ptr(),
        pending: op.slots.pending.ptr(),
        sizes: GdnSizes::of(shape),
        state: state.state.ptr(),
        conv: state.conv.ptr(),
        pending_kv: state.pending_kv.ptr(),
        pending_gate: state.pending_gate.ptr(),
        pending_scale: state.pending_scale.ptr(),
        mixed: journal.mixed.ptr(),
        qkv: journal.qkv.ptr(),
        gate: journal.gate.ptr(),
        scale: journal.scale.ptr(),
        out: op.out.ptr(),
        matrices: scratch.add(arrays.matrices),
        factors: scratch.add(arrays.factors),
    };
    let parts = (shape.value_heads / shape.key_heads).div_ceil(HEADS);
    let transform = Grid {
        blocks: [(shape.key_heads * parts) as u32, chunks as u32, 1],
        threads: THREADS,
        shared: TRANSFORM_SHARED_BYTES,
    };
    let scan = Grid {
        blocks: [
            (shape.value_dim / COLUMNS) as u32,
            shape.value_heads as u32,
            sequences as u32,
        ],
        threads: THREADS,
        shared: scan_shared_bytes(cuda, sequences * shape.value_heads),
    };
    // SAFETY: mirrors the struct in kernels/gdn_chunk.cu; slots and rows of the batch lie within the
    // buffers, a slot belongs to one sequence of a batch, and the scratch holds all chunks.
    unsafe {
        cuda.run(&TRANSFORM, transform, params)?;
        cuda.run(&SCAN, scan, params)
    }
}

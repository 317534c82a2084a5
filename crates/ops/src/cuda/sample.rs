//! Processed logits and the choice of a token: `kernels/sample.cu`.

use super::buf::DevicePtr;
use super::device::Cuda;
use super::kernel::{Entry, Grid};
use super::parts::{SEGMENT_THREADS, segments};
use super::scratch::Layout;
use super::tables::{BatchTable, SlotTable};
use crate::{OpsError, Sample, ScratchNeeds};

/// `struct SampleParams`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SampleParams {
    batch: BatchTable,
    slots: SlotTable,
    live: DevicePtr,
    logits: DevicePtr,
    choice: DevicePtr,
    finite: DevicePtr,
    plans: DevicePtr,
    found: DevicePtr,
    ranked: DevicePtr,
    masses: DevicePtr,
    tile_sums: DevicePtr,
    segments: u32,
    chunks: u32,
    tiles: u32,
}

const SEGMENTS: Entry = Entry {
    module: "sample",
    name: "sample_segments",
};
const TILES: Entry = Entry {
    module: "sample",
    name: "sample_tiles",
};
const PICK: Entry = Entry {
    module: "sample",
    name: "sample_pick",
};

/// Ids of a block of `sample_tiles`.
const CHUNK_IDS: usize = 8192;
/// Ids of a tile of the law.
const TILE_IDS: usize = 64;
/// Candidates of a segment.
const RANKED: usize = 32;

/// Where the tables between the kernels stand in the arena.
struct SampleLayout {
    plans: usize,
    found: usize,
    ranked: usize,
    masses: usize,
    tile_sums: usize,
    bytes: usize,
}

impl SampleLayout {
    fn new(rows: usize, vocab: usize) -> Self {
        let mut layout = Layout::default();
        let segments = rows * segments(vocab);
        SampleLayout {
            plans: layout.take::<[u32; 4]>(rows),
            found: layout.take::<[u64; 2]>(segments),
            ranked: layout.take::<[u64; RANKED]>(segments),
            masses: layout.take::<u64>(rows * vocab.div_ceil(CHUNK_IDS)),
            tile_sums: layout.take::<f32>(rows * vocab.div_ceil(TILE_IDS)),
            bytes: layout.bytes,
        }
    }
}

/// `rows * (16 + 272 segments + 8 chunks + 4 tiles)`: 25 kB for a row of 248,320 ids.
pub(super) fn scratch_bytes(_cuda: &Cuda, needs: &ScratchNeeds) -> usize {
    SampleLayout::new(needs.rows, needs.vocab_rows).bytes
}

pub(super) fn sample(cuda: &Cuda, op: Sample<'_, Cuda>) -> Result<(), OpsError> {
    let rows = op.rows.capacity;
    let (vocab_rows, vocab) = (op.slots.vocab_rows, op.slots.vocab_used);
    assert!(
        rows <= op.batch.rows_max,
        "{rows} rows in tables for {}",
        op.batch.rows_max
    );
    let layout = SampleLayout::new(rows, vocab);
    let arena = cuda.scratch(layout.bytes);
    let params = SampleParams {
        batch: BatchTable::of(op.batch),
        slots: SlotTable::of(op.slots),
        live: op.rows.live.ptr(),
        logits: op.logits.range(0, rows * vocab_rows),
        choice: op.choice.range(0, rows),
        finite: op.finite.range(0, rows),
        plans: arena.add(layout.plans),
        found: arena.add(layout.found),
        ranked: arena.add(layout.ranked),
        masses: arena.add(layout.masses),
        tile_sums: arena.add(layout.tile_sums),
        segments: segments(vocab) as u32,
        chunks: vocab.div_ceil(CHUNK_IDS) as u32,
        tiles: vocab.div_ceil(TILE_IDS) as u32,
    };
    let grid = |x: u32, y: u32, threads: u32| Grid {
        blocks: [x, y, 1],
        threads,
        shared: 0,
    };
    let height = rows as u32;
    // SAFETY: mirrors the struct in kernels/sample_params.cuh; buffers hold `rows` rows, the arena
    // what passes between the kernels.
    unsafe {
        cuda.run(
            &SEGMENTS,
            grid(params.segments, height, SEGMENT_THREADS),
            params,
        )?;
        cuda.run(&TILES, grid(params.chunks, height, 256), params)?;
        cuda.run(&PICK, grid(height, 1, 512), params)
    }
}

//! Processed logits and the choice of a token: `kernels/sample.cu`.

use super::buf::DevicePtr;
use super::device::Cuda;
use super::kernel::{Entry, Grid};
use super::parts::{SEGMENT_THREADS, segments};
use super::scratch::Layout;
use super::tables::{BatchTable, SlotTable};
use crate::{OpsError, Sample, ScratchNeeds, TokenMasks};

/// `struct TokenMasks`.
#[derive(Clone, Copy)]
#[repr(C)]
struct MaskTable {
    masked: DevicePtr,
    words: DevicePtr,
    words_per_row: u32,
}

impl MaskTable {
    fn of(masks: Option<&TokenMasks<Cuda>>, rows: usize, vocab_rows: usize) -> Self {
        let Some(masks) = masks else {
            return MaskTable {
                masked: DevicePtr::NULL,
                words: DevicePtr::NULL,
                words_per_row: 0,
            };
        };
        masks.assert_fits(rows, vocab_rows);
        MaskTable {
            masked: masks.masked.range(0, rows),
            words: masks.words.range(0, rows * masks.words_per_row),
            words_per_row: masks.words_per_row as u32,
        }
    }
}

/// `struct SampleParams`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SampleParams {
    batch: BatchTable,
    slots: SlotTable,
    live: DevicePtr,
    masks: MaskTable,
    logits: DevicePtr,
    choice: DevicePtr,
    finite: DevicePtr,
    plans: DevicePtr,
    groups: DevicePtr,
    searches: DevicePtr,
    found: DevicePtr,
    ranked: DevicePtr,
    tile_sums: DevicePtr,
    segments: u32,
    tiles: u32,
}

const SEGMENTS: Entry = Entry {
    module: "sample",
    name: "sample_segments",
};
const PICK: Entry = Entry {
    module: "sample",
    name: "sample_pick",
};

/// Ids of a tile of the law.
const TILE_IDS: usize = 64;
/// Candidates of a segment.
const RANKED: usize = 32;
/// Three sets of 1024 bins and 2048 keys.
type SearchSpace = [u64; 3 * 1024 + 3 * 512 + 2048];
/// Threads of a block that chooses.
const PICK_THREADS: u32 = 512;
/// Blocks that may work on one row.
const GROUP_MAX: u32 = 32;

/// Where the tables between the kernels stand in the arena.
struct SampleLayout {
    plans: usize,
    groups: usize,
    searches: usize,
    found: usize,
    ranked: usize,
    tile_sums: usize,
    bytes: usize,
}

impl SampleLayout {
    fn new(rows: usize, vocab: usize) -> Self {
        let mut layout = Layout::default();
        let segments = rows * segments(vocab);
        SampleLayout {
            plans: layout.take::<[u32; 4]>(rows),
            groups: layout.take::<[u64; 3]>(rows),
            searches: layout.take::<SearchSpace>(rows),
            found: layout.take::<[u64; 2]>(segments),
            ranked: layout.take::<[u64; RANKED]>(segments),
            tile_sums: layout.take::<f32>(rows * vocab.div_ceil(TILE_IDS)),
            bytes: layout.bytes,
        }
    }
}

/// `rows * (53,288 + 272 segments + 4 tiles)`: 78 kB for a row of 248,320 ids.
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
        masks: MaskTable::of(op.masks, rows, vocab_rows),
        logits: op.logits.range(0, rows * vocab_rows),
        choice: op.choice.range(0, rows),
        finite: op.finite.range(0, rows),
        plans: arena.add(layout.plans),
        groups: arena.add(layout.groups),
        searches: arena.add(layout.searches),
        found: arena.add(layout.found),
        ranked: arena.add(layout.ranked),
        tile_sums: arena.add(layout.tile_sums),
        segments: segments(vocab) as u32,
        tiles: vocab.div_ceil(TILE_IDS) as u32,
    };
    let grid = |x: u32, y: u32, threads: u32| Grid {
        blocks: [x, y, 1],
        threads,
        shared: 0,
    };
    let height = rows as u32;
    // Blocks of a group wait for each other, so all of them must run at once.
    let group = (cuda.multiprocessors() / height.max(1)).clamp(1, GROUP_MAX);
    // SAFETY: mirrors the struct in kernels/sample_params.cuh; buffers hold `rows` rows, the arena
    // what passes between the kernels.
    unsafe {
        cuda.run(
            &SEGMENTS,
            grid(params.segments, height, SEGMENT_THREADS),
            params,
        )?;
        cuda.run(&PICK, grid(group, height, PICK_THREADS), params)
    }
}

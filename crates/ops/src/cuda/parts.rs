//! What segments of a row's logits leave to the kernel that merges them; `kernels/parts.cuh`.

use super::buf::DevicePtr;
use super::scratch::Layout;

/// Ids of a segment: a 32nd of 248,320, so that shards of that vocabulary over up to eight ranks
/// are whole segments.
pub(super) const SEGMENT_IDS: usize = 7760;
/// Threads of the block of a segment.
pub(super) const SEGMENT_THREADS: u32 = 512;
/// Parts that one row may have.
const PARTS_MAX: usize = 256;

/// Ids of a row at most.
pub(super) const VOCAB_MAX: usize = PARTS_MAX * SEGMENT_IDS;

/// Segments of a row.
pub(super) fn segments(vocab: usize) -> usize {
    vocab.div_ceil(SEGMENT_IDS)
}

/// `struct Parts`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Parts {
    largest: DevicePtr,
    sum: DevicePtr,
    keys: DevicePtr,
    ranks: u32,
    rows: u32,
    pub(super) segments: u32,
    k: u32,
}

/// Where the parts of `rows` rows stand in the arena.
pub(super) struct PartsLayout {
    rows: usize,
    segments: usize,
    k: usize,
    largest: usize,
    sum: usize,
    keys: usize,
    /// Of all of it.
    pub(super) bytes: usize,
}

impl PartsLayout {
    /// Of the `k` best of rows of `vocab` ids.
    ///
    /// # Panics
    /// If a row has more parts than the merge takes.
    pub(super) fn new(rows: usize, vocab: usize, k: usize) -> Self {
        let segments = segments(vocab);
        assert!(
            vocab <= VOCAB_MAX,
            "{vocab} ids; CUDA takes at most {VOCAB_MAX}"
        );
        let parts = rows * segments;
        let mut layout = Layout::default();
        let keys = layout.take::<u64>(parts * k);
        let largest = layout.take::<f32>(parts);
        let sum = layout.take::<f32>(parts);
        PartsLayout {
            rows,
            segments,
            k,
            largest,
            sum,
            keys,
            bytes: layout.bytes,
        }
    }

    /// The parts of a single rank at `arena`.
    pub(super) fn at(&self, arena: DevicePtr) -> Parts {
        Parts {
            largest: arena.add(self.largest),
            sum: arena.add(self.sum),
            keys: arena.add(self.keys),
            ranks: 1,
            rows: self.rows as u32,
            segments: self.segments as u32,
            k: self.k as u32,
        }
    }
}

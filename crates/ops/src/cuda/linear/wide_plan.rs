//! How `kernels/sm90_linear.cu` divides a product. Nothing decided here enters a result's bits.

use super::plan::Limits;
use super::slice_end;
use crate::cuda::kernel::{Entry, Grid};

/// `struct WideParams` from `tiles` to `cuts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Division {
    tiles: u32,
    row_tiles: u32,
    shares: u32,
    split: u32,
    chunks: u32,
    slices: u32,
    cuts: [u32; 5],
}

impl Division {
    /// Whether blocks hand accumulators over.
    pub(super) fn is_split(&self) -> bool {
        self.split != 0
    }
}

/// A kernel that takes `WideParams`, and how it is launched.
#[derive(Clone, Copy, Debug)]
pub(super) struct WideKernel {
    pub(super) entry: Entry,
    pub(super) grid: Grid,
    pub(super) division: Division,
    /// Rows of the weight that one copy fetches.
    pub(super) weight_rows: usize,
    /// Rows of x that one copy fetches.
    pub(super) x_rows: usize,
    /// Rows of f32 and of bf16 results that one copy stores, where the copy engine does.
    pub(super) part_rows: Option<[usize; 2]>,
}

/// One instance of the template in `kernels/wide_params.cuh`.
struct Tile {
    rows: usize,
    /// Warpgroups that multiply, 64 outputs each.
    consumers: usize,
    /// Blocks of a cluster.
    cluster: usize,
    name: &'static str,
}

const fn tile(rows: usize, consumers: usize, cluster: usize, name: &'static str) -> Tile {
    Tile {
        rows,
        consumers,
        cluster,
        name,
    }
}

const TILES: [Tile; 12] = [
    tile(32, 2, 1, "wide_linear_32x128"),
    tile(48, 2, 1, "wide_linear_48x128"),
    tile(64, 2, 1, "wide_linear_64x128"),
    tile(96, 2, 2, "wide_linear_96x128"),
    tile(128, 2, 2, "wide_linear_128x128"),
    tile(192, 2, 2, "wide_linear_192x128"),
    tile(256, 2, 2, "wide_linear_256x128"),
    tile(32, 1, 1, "wide_linear_32x64"),
    tile(48, 1, 1, "wide_linear_48x64"),
    tile(64, 1, 1, "wide_linear_64x64"),
    tile(96, 1, 1, "wide_linear_96x64"),
    tile(128, 1, 1, "wide_linear_128x64"),
];

/// Columns of a stage.
const CHUNK_COLUMNS: usize = 64;
/// Shared memory of a block at most, as in `kernels/wide_params.cuh`.
const SHARED_BYTES_MAX: usize = 227 << 10;
/// The pair of barriers of a stage.
const BARRIER_BYTES: usize = 16;
/// Blocks that `kernels/wide_carry.cuh` has flags for.
const BLOCKS_MAX: usize = 256;
/// Rows from which on the copy engine stores results.
const BULK_ROWS: usize = 192;
/// Rows of the largest tile.
const TILE_ROWS_MAX: usize = 256;

// What a block's work costs in clocks, measured on an H200.
/// Bytes that a block receives a clock while all receive.
const BYTES_A_CLOCK: usize = 40;
/// Start of the kernel and filling of the ring.
const START: usize = 5000;
/// Per row of a tile: storing a unit.
const STORE_A_ROW: usize = 24;
/// Per row of a tile: handing over one unit and taking over another.
const CARRY_A_ROW: usize = 64;
/// Bytes of weights that the memory delivers a clock.
const WEIGHT_BYTES_A_CLOCK: usize = 2400;

/// Blocks that work at the same time.
fn blocks_max(multiprocessors: u32) -> usize {
    (multiprocessors as usize).min(BLOCKS_MAX)
}

/// Bytes for accumulators that blocks hand over: f32, 128 outputs by a tile's rows a block.
pub(super) fn carry_bytes(multiprocessors: u32) -> usize {
    blocks_max(multiprocessors) * 128 * TILE_ROWS_MAX * size_of::<f32>()
}

/// The division with the least cost.
pub(super) fn wide_plan(
    rows: usize,
    outputs: usize,
    columns: usize,
    slices: usize,
    limits: &Limits,
) -> WideKernel {
    let stream = 2 * outputs * columns / WEIGHT_BYTES_A_CLOCK;
    let mut best: Option<(usize, usize, WideKernel)> = None;
    for tile in &TILES {
        for split in [false, true] {
            let Some((kernel, work)) = tile.divide(rows, outputs, columns, slices, split, limits)
            else {
                continue;
            };
            // Where the memory is the limit, the least work leaves it the most room.
            let better = match &best {
                Some((cost, least, _)) => (work.max(stream), work) < (*cost, *least),
                None => true,
            };
            if better {
                best = Some((work.max(stream), work, kernel));
            }
        }
    }
    best.expect("whole units can always be dealt").2
}

impl Tile {
    /// Rows of f32 and of bf16 results that the copy engine stores together, where it does.
    fn part_rows(&self) -> Option<[usize; 2]> {
        let rows = if self.rows == TILE_ROWS_MAX { 32 } else { 16 };
        (self.rows >= BULK_ROWS).then_some([rows, 2 * rows])
    }

    /// Shared memory of a block: as many stages as fit, what results are staged in, up to 1,024
    /// bytes of alignment, as in `WideTile` of `kernels/wide_params.cuh`. Not a byte more: in what is
    /// left, blocks of the small kernels around the product find room while it runs.
    fn shared_bytes(&self) -> usize {
        let stage = (64 * self.consumers + self.rows) * 2 * CHUNK_COLUMNS + BARRIER_BYTES;
        let staged_rows = match (self.part_rows(), self.rows) {
            (Some([_, bf16_rows]), _) => 2 * bf16_rows,
            (None, rows) if rows.is_multiple_of(64) => 64,
            (None, rows) if rows.is_multiple_of(48) => 48,
            (None, _) => 32,
        };
        let rest = 1024 + self.consumers * staged_rows * 2 * CHUNK_COLUMNS;
        rest + (SHARED_BYTES_MAX - rest) / stage * stage
    }

    /// The division and the clocks of the busiest block; `None` where shares cannot be cut evenly.
    fn divide(
        &self,
        rows: usize,
        outputs: usize,
        columns: usize,
        slices: usize,
        split: bool,
        limits: &Limits,
    ) -> Option<(WideKernel, usize)> {
        let block_outputs = 64 * self.consumers;
        let tiles = outputs.div_ceil(block_outputs * self.cluster);
        let row_tiles = rows.div_ceil(self.rows);
        let chunks = columns.div_ceil(CHUNK_COLUMNS);
        let mut cuts = [0; 5];
        for (slice, cut) in cuts[..=slices].iter_mut().enumerate() {
            *cut = slice_end(columns, slice, slices).div_ceil(CHUNK_COLUMNS) as u32;
        }
        let lengths = cuts[..=slices].windows(2).map(|cut| cut[1] - cut[0]);
        let longest = lengths.clone().max()? as usize;
        let clusters = blocks_max(limits.multiprocessors) / self.cluster;
        let units = tiles * slices;
        let (shares, share_chunks, share_units) = if split {
            let shares = clusters / row_tiles;
            // A unit must not have three parts, and one without columns has no place.
            if shares == 0 || tiles * chunks / shares < longest || lengths.min() == Some(0) {
                return None;
            }
            let most = (tiles * chunks).div_ceil(shares);
            (shares, most, most / longest + 1)
        } else {
            let shares = clusters.min(units * row_tiles);
            let most = (units * row_tiles).div_ceil(shares);
            (shares, most * longest, most)
        };
        // A warpgroup's instruction of 64 outputs by 16 columns takes half a clock a row.
        let multiply = 2 * self.consumers * self.rows;
        let receive = 2 * CHUNK_COLUMNS * (block_outputs + self.rows) / BYTES_A_CLOCK;
        let carry = if split { CARRY_A_ROW * self.rows } else { 0 };
        let work = START
            + share_chunks * multiply.max(receive)
            + share_units * STORE_A_ROW * self.rows
            + carry;
        let clusters = if split { shares * row_tiles } else { shares };
        let spare = if self.rows >= BULK_ROWS { 64 } else { 32 };
        let kernel = WideKernel {
            entry: Entry {
                module: "sm90_linear",
                name: self.name,
            },
            grid: Grid {
                blocks: [(clusters * self.cluster) as u32, 1, 1],
                threads: 128 * self.consumers as u32 + spare,
                shared: self.shared_bytes() as u32,
            },
            division: Division {
                tiles: tiles as u32,
                row_tiles: row_tiles as u32,
                shares: shares as u32,
                split: split.into(),
                chunks: chunks as u32,
                slices: slices as u32,
                cuts,
            },
            weight_rows: block_outputs,
            x_rows: self.rows / self.cluster,
            part_rows: self.part_rows(),
        };
        Some((kernel, work))
    }
}

#[cfg(test)]
#[path = "wide_plan/tests.rs"]
mod tests;

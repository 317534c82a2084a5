//! Which kernel multiplies how many rows by which weight, and how its blocks share the work.
//!
//! Nothing that is decided here enters a result's bits: those depend on K and on the number of its
//! slices, and that belongs to the op.

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::OpsError;
use crate::cuda::Cuda;
use crate::cuda::device::device_error;
use crate::cuda::kernel::{Entry, Grid};

/// What becomes of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Store {
    /// `[rows, outputs]` as bf16.
    Bf16,
    /// `[slices, rows, outputs]` as f32.
    F32,
    /// `[rows, outputs / 2]` as bf16: gate and up, interleaved by eights, become one value.
    Swiglu,
    /// Added to `[rows, outputs]` f32 values. [`Route::Blocks`](super::Route) does not have it.
    Add,
}

/// A product without its rows.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Shape {
    /// Rows of the weight.
    pub(in crate::cuda) outputs: usize,
    /// Parts of K that are summed by themselves; more than one only for [`Store::F32`].
    pub(in crate::cuda) slices: usize,
    /// What becomes of the sums.
    pub(in crate::cuda) store: Store,
}

/// What of a GPU a plan depends on.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Limits {
    /// Multiprocessors.
    pub(in crate::cuda) multiprocessors: u32,
    /// Shared memory of one of them in bytes.
    pub(in crate::cuda) shared_bytes: u32,
    /// Whether warpgroups multiply (sm_90a).
    pub(in crate::cuda) warpgroups: bool,
}

impl Limits {
    pub(in crate::cuda) fn warpgroups(cuda: &Cuda) -> bool {
        cuda.compute() == (9, 0)
    }

    pub(in crate::cuda) fn of(cuda: &Cuda) -> Result<Self, OpsError> {
        let shared = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        let shared_bytes = cuda.device.context.attribute(shared);
        Ok(Limits {
            multiprocessors: cuda.multiprocessors(),
            shared_bytes: shared_bytes.map_err(|error| device_error(&error))? as u32,
            warpgroups: Self::warpgroups(cuda),
        })
    }

    /// Blocks that share a multiprocessor. Two hide each other's barriers where both have room for
    /// a deep ring.
    fn blocks(&self) -> u32 {
        match self.shared_bytes >= 160 << 10 {
            true => 2,
            false => 1,
        }
    }

    /// Shared memory that a block may use.
    fn block_bytes(&self) -> u32 {
        let share = self.shared_bytes / self.blocks() - SYSTEM_BYTES;
        share.min(BLOCK_BYTES_MAX)
    }
}

/// `struct LinearDivision`: outputs in tiles of groups of 16, and the ring of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(in crate::cuda) struct Division {
    tiles: u32,
    tile_groups: u32,
    larger_tiles: u32,
    ring_groups: u32,
    stages: u32,
}

/// A kernel that takes `LinearParams`, and how it is launched.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Kernel {
    pub(in crate::cuda) entry: Entry,
    /// Row tiles, workers, slices of K.
    pub(in crate::cuda) grid: Grid,
    pub(in crate::cuda) division: Division,
}

/// One instance of the template in `kernels/linear_tile.cuh`.
struct Tile {
    /// Rows of x a block takes.
    rows: usize,
    /// Columns of K a stage holds.
    columns: usize,
    /// Groups of 16 outputs that its warps can hold sums for.
    groups_max: usize,
    threads: u32,
    bf16: &'static str,
    f32: &'static str,
    swiglu: &'static str,
}

const TILES: [Tile; 4] = [
    Tile {
        rows: 8,
        columns: 128,
        groups_max: 8,
        threads: 256,
        bf16: "linear_bf16_8",
        f32: "linear_f32_8",
        swiglu: "linear_swiglu_8",
    },
    Tile {
        rows: 16,
        columns: 128,
        groups_max: 8,
        threads: 256,
        bf16: "linear_bf16_16",
        f32: "linear_f32_16",
        swiglu: "linear_swiglu_16",
    },
    Tile {
        rows: 32,
        columns: 128,
        groups_max: 8,
        threads: 256,
        bf16: "linear_bf16_32",
        f32: "linear_f32_32",
        swiglu: "linear_swiglu_32",
    },
    Tile {
        rows: 64,
        columns: 64,
        groups_max: 8,
        threads: 256,
        bf16: "linear_bf16_64",
        f32: "linear_f32_64",
        swiglu: "linear_swiglu_64",
    },
];

/// Outputs of a group: the height of the matrix instruction.
const GROUP_OUTPUTS: usize = 16;
/// Shared memory of a block on every GPU that is served (sm_120: 99 KiB).
const BLOCK_BYTES_MAX: u32 = 99 << 10;
/// Shared memory that the driver keeps for itself per block.
const SYSTEM_BYTES: u32 = 1 << 10;
/// Fewer stages than this do not keep the memory busy.
const STAGES_MIN: usize = 3;
/// What `wait_for_stage` in `kernels/linear_ring.cuh` knows.
const STAGES_MAX: usize = 6;

/// The kernel for `rows` rows, at least 1. A variant that serves some rows, shapes or GPUs better
/// is chosen here.
pub(in crate::cuda) fn plan(rows: usize, shape: &Shape, limits: &Limits) -> Kernel {
    let fits = TILES.iter().find(|tile| rows <= tile.rows);
    fits.unwrap_or(&TILES[TILES.len() - 1])
        .plan(rows, shape, limits)
}

impl Tile {
    fn plan(&self, rows: usize, shape: &Shape, limits: &Limits) -> Kernel {
        let row_tiles = rows.div_ceil(self.rows);
        let groups = shape.outputs.div_ceil(GROUP_OUTPUTS);
        let slots = (limits.multiprocessors * limits.blocks()) as usize;
        let workers = (slots / shape.slices / row_tiles).clamp(1, groups);
        let groups_max = (1..=self.groups_max)
            .rev()
            .find(|&groups| self.stages(groups, limits) >= STAGES_MIN)
            .expect("three stages of one group fit any GPU");
        // Every worker gets the same number of tiles, all of them as even as groups allow.
        let tiles = (workers * groups.div_ceil(workers * groups_max)).min(groups);
        let ring_groups = groups.div_ceil(tiles);
        let stages = self.stages(ring_groups, limits);
        Kernel {
            entry: Entry {
                module: "linear",
                name: match shape.store {
                    Store::Bf16 => self.bf16,
                    Store::F32 => self.f32,
                    Store::Swiglu => self.swiglu,
                    Store::Add => unreachable!("sums are added by other routes only"),
                },
            },
            grid: Grid {
                blocks: [row_tiles as u32, workers as u32, shape.slices as u32],
                threads: self.threads,
                shared: (stages * self.stage_bytes(ring_groups)) as u32,
            },
            division: Division {
                tiles: tiles as u32,
                tile_groups: (groups / tiles) as u32,
                larger_tiles: (groups % tiles) as u32,
                ring_groups: ring_groups as u32,
                stages: stages as u32,
            },
        }
    }

    /// Bytes of weight and x in a stage.
    fn stage_bytes(&self, groups: usize) -> usize {
        2 * self.columns * (groups * GROUP_OUTPUTS + self.rows)
    }

    /// As many as fit: a ring that leaves room for a third block on a multiprocessor would let
    /// blocks of the next kernel in unevenly, which costs a fifth of the bandwidth.
    fn stages(&self, groups: usize, limits: &Limits) -> usize {
        (limits.block_bytes() as usize / self.stage_bytes(groups)).min(STAGES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPUS: [Limits; 4] = [
        Limits {
            multiprocessors: 132,
            shared_bytes: 228 << 10,
            warpgroups: false,
        },
        Limits {
            multiprocessors: 188,
            shared_bytes: 100 << 10,
            warpgroups: false,
        },
        Limits {
            multiprocessors: 108,
            shared_bytes: 164 << 10,
            warpgroups: false,
        },
        Limits {
            multiprocessors: 24,
            shared_bytes: 100 << 10,
            warpgroups: false,
        },
    ];

    fn shapes() -> Vec<Shape> {
        let mut shapes = Vec::new();
        for outputs in [1, 15, 16, 17, 1030, 5120, 16480, 34816, 248_320] {
            for (slices, store) in [(1, Store::Bf16), (1, Store::F32), (4, Store::F32)] {
                shapes.push(Shape {
                    outputs,
                    slices,
                    store,
                });
            }
        }
        shapes
    }

    #[test]
    fn every_output_belongs_to_one_tile_that_fits() {
        for limits in &GPUS {
            for shape in shapes() {
                for rows in [1, 8, 9, 16, 17, 32, 33, 64, 65, 130, 512, 2048] {
                    let Kernel { grid, division, .. } = plan(rows, &shape, limits);
                    let what = format!("{rows} rows, {shape:?}, {limits:?}: {division:?}");
                    let groups = shape.outputs.div_ceil(GROUP_OUTPUTS) as u32;
                    let held = division.tiles * division.tile_groups + division.larger_tiles;
                    assert_eq!(held, groups, "{what}");
                    assert!(division.larger_tiles < division.tiles, "{what}");
                    assert!(
                        division.ring_groups
                            >= division.tile_groups + u32::from(division.larger_tiles > 0)
                            && division.ring_groups <= 8,
                        "{what}"
                    );
                    assert!((1..=division.tiles).contains(&grid.blocks[1]), "{what}");
                    assert_eq!(grid.blocks[2] as usize, shape.slices, "{what}");
                    assert!((3..=6).contains(&division.stages), "{what}");
                    assert!(grid.shared <= limits.block_bytes(), "{what}");
                }
            }
        }
    }

    #[test]
    fn blocks_fill_the_gpu_once() {
        for limits in &GPUS {
            for shape in shapes() {
                for rows in [1, 16, 32, 64] {
                    let blocks: u32 = plan(rows, &shape, limits).grid.blocks.iter().product();
                    let slots = limits.multiprocessors * limits.blocks();
                    assert!(blocks <= slots, "{blocks} blocks, {shape:?}, {limits:?}");
                    let groups = shape.outputs.div_ceil(GROUP_OUTPUTS) * shape.slices;
                    if groups >= slots as usize {
                        assert!(
                            blocks + 3 >= slots,
                            "{blocks} blocks, {shape:?}, {limits:?}"
                        );
                    }
                }
            }
        }
    }
}

//! Where a context is cut, as `kernels/attention_splits.cuh` has it, and what the cuts cost.

use super::Cuda;
use super::buf::DevicePtr;
use super::kernel::{Entry, Grid};
use crate::{EMIT_MAX, OpsError, PAGE_TOKENS, ScratchNeeds, TREE_ROWS_MAX};

/// Positions from which cuts are `tokens` apart, and the pieces in front of them.
struct Stretch {
    begin: usize,
    tokens: usize,
    pieces: usize,
}

/// Short pieces in front, so that a short context keeps many multiprocessors busy; long ones
/// behind, so that partial results stay few.
const STRETCHES: [Stretch; 5] = [
    Stretch {
        begin: 0,
        tokens: 128,
        pieces: 0,
    },
    Stretch {
        begin: 2048,
        tokens: 256,
        pieces: 16,
    },
    Stretch {
        begin: 8192,
        tokens: 512,
        pieces: 40,
    },
    Stretch {
        begin: 32_768,
        tokens: 1024,
        pieces: 88,
    },
    Stretch {
        begin: 65_536,
        tokens: 2048,
        pieces: 120,
    },
];

/// `MERGE_THREADS` of kernels/attention_partial.cuh.
const MERGE_THREADS: u32 = 128;

/// `SPLITS_MAX` of kernels/attention_partial.cuh.
const SPLITS_MAX: usize = 608;

/// Tokens of the longest context that is served.
pub(super) const CONTEXT_MAX: usize = 1 << 20;

/// Pieces of `tokens` positions.
///
/// # Panics
/// If the kernels cannot merge so many.
pub(super) fn splits(tokens: usize) -> usize {
    let stretch = STRETCHES
        .iter()
        .rev()
        .find(|stretch| stretch.begin < tokens.max(1))
        .expect("the first stretch begins at 0");
    let splits = stretch.pieces + (tokens - stretch.begin).div_ceil(stretch.tokens);
    assert!(
        splits <= SPLITS_MAX,
        "{tokens} tokens of context are cut into {splits} pieces, the kernels merge {SPLITS_MAX}"
    );
    splits
}

/// `struct Partials` of kernels/attention_partial.cuh.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Partials {
    /// `[splits, rows, heads, head_dim]`.
    out: DevicePtr,
    /// `[splits, rows, heads, 2]` maxima and sums.
    sums: DevicePtr,
    rows: u32,
    heads: u32,
}

/// Size of the partial results of one op.
pub(super) struct PartialSize {
    pub(super) rows: usize,
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    /// Pages of the longest context.
    pub(super) pages: usize,
}

impl PartialSize {
    fn cells(&self) -> usize {
        // The drafter's block stands behind the pages.
        splits(self.pages * PAGE_TOKENS + EMIT_MAX) * self.rows * self.heads
    }

    fn out_bytes(&self) -> usize {
        self.cells() * self.head_dim * size_of::<f32>()
    }

    /// Bytes of scratch.
    pub(super) fn bytes(&self) -> usize {
        self.out_bytes() + self.cells() * 4 * size_of::<f32>()
    }
}

impl Partials {
    pub(super) fn new(cuda: &Cuda, size: &PartialSize) -> Self {
        let out = cuda.scratch(size.bytes());
        Partials {
            out,
            sums: DevicePtr(out.0 + size.out_bytes() as u64),
            rows: size.rows as u32,
            heads: size.heads as u32,
        }
    }
}

/// How the pieces of a context are gathered and merged.
pub(super) struct Pieces {
    pub(super) kernel: Entry,
    pub(super) threads: u32,
    /// Dynamic shared memory of a block.
    pub(super) shared_bytes: usize,
    pub(super) merge: Entry,
}

impl Pieces {
    /// Enqueues both kernels: as many blocks as the GPU runs at once, which take pieces in turns;
    /// then a block for each row and head.
    ///
    /// # Safety
    /// As for [`Cuda::run`], for either kernel.
    pub(super) unsafe fn run<P: Copy>(
        &self,
        cuda: &Cuda,
        size: &PartialSize,
        params: P,
    ) -> Result<(), OpsError> {
        let mut grid = Grid {
            blocks: [1, 1, 1],
            threads: self.threads,
            shared: self.shared_bytes as u32,
        };
        grid.blocks[0] = cuda.resident_blocks(&self.kernel, grid)? * cuda.multiprocessors();
        let merge = Grid {
            blocks: [size.heads as u32, size.rows as u32, 1],
            threads: MERGE_THREADS,
            shared: 0,
        };
        // SAFETY: the caller's.
        unsafe {
            cuda.run(&self.kernel, grid, params)?;
            cuda.run(&self.merge, merge, params)
        }
    }
}

/// Bytes of scratch of trees and blocks.
pub(super) fn scratch_bytes(_: &Cuda, needs: &ScratchNeeds) -> usize {
    let pages = (needs.context_max + TREE_ROWS_MAX).div_ceil(PAGE_TOKENS);
    let of = |heads, head_dim| PartialSize {
        rows: needs.rows,
        heads,
        head_dim,
        pages,
    };
    let target = of(needs.heads, needs.head_dim).bytes();
    target.max(of(needs.draft_heads, needs.draft_head_dim).bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other_without_gaps() {
        for pair in STRETCHES.windows(2) {
            let pieces = (pair[1].begin - pair[0].begin) / pair[0].tokens;
            assert_eq!(pair[1].begin, pair[0].begin + pieces * pair[0].tokens);
            assert_eq!(pair[1].pieces, pair[0].pieces + pieces);
        }
        for (tokens, pieces) in [
            (0, 0),
            (1, 1),
            (128, 1),
            (129, 2),
            (2048, 16),
            (2049, 17),
            (8193, 41),
            (65_537, 121),
            (262_144 + 64, 217),
            (CONTEXT_MAX + 2 * TREE_ROWS_MAX + EMIT_MAX, 601),
        ] {
            assert_eq!(splits(tokens), pieces, "{tokens} tokens");
        }
    }
}

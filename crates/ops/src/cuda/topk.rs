//! The k most likely tokens of a row: `kernels/topk.cu`.

use super::buf::DevicePtr;
use super::device::Cuda;
use super::kernel::{Entry, Grid};
use super::parts::{Parts, PartsLayout, SEGMENT_THREADS};
use crate::limits::TOPK_MAX;
use crate::{OpsError, ScratchNeeds, TopK};

/// `struct TopKParams`.
#[derive(Clone, Copy)]
#[repr(C)]
struct TopKParams {
    live: DevicePtr,
    logits: DevicePtr,
    parts: Parts,
    ids: DevicePtr,
    logprobs: DevicePtr,
    vocab_rows: u32,
    vocab_used: u32,
    first_id: u32,
}

const SEGMENTS: Entry = Entry {
    module: "topk",
    name: "topk_segments",
};
const MERGE: Entry = Entry {
    module: "topk",
    name: "topk_merge",
};

/// `rows * segments * (8 k + 8)`.
pub(super) fn scratch_bytes(_cuda: &Cuda, needs: &ScratchNeeds) -> usize {
    PartsLayout::new(needs.rows, needs.vocab_rows, TOPK_MAX).bytes
}

pub(super) fn topk_logprobs(cuda: &Cuda, op: TopK<'_, Cuda>) -> Result<(), OpsError> {
    let (k, rows) = (op.k, op.rows.capacity);
    assert!(
        k <= TOPK_MAX && k <= op.vocab_used && op.vocab_used <= op.vocab_rows,
        "{k} candidates of {} ids in rows of {}; at most {TOPK_MAX}",
        op.vocab_used,
        op.vocab_rows
    );
    if k == 0 {
        return Ok(());
    }
    let layout = PartsLayout::new(rows, op.vocab_used, k);
    let params = TopKParams {
        live: op.rows.live.ptr(),
        logits: op.logits.range(0, rows * op.vocab_rows),
        parts: layout.at(cuda.scratch(layout.bytes)),
        ids: op.ids.range(0, rows * k),
        logprobs: op.logprobs.range(0, rows * k),
        vocab_rows: op.vocab_rows as u32,
        vocab_used: op.vocab_used as u32,
        first_id: 0,
    };
    let segments = Grid {
        blocks: [params.parts.segments, rows as u32, 1],
        threads: SEGMENT_THREADS,
        shared: 0,
    };
    let merge = Grid {
        blocks: [rows as u32, 1, 1],
        threads: 256,
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/topk.cu; buffers hold `rows` rows, the arena the parts.
    unsafe {
        cuda.run(&SEGMENTS, segments, params)?;
        cuda.run(&MERGE, merge, params)
    }
}

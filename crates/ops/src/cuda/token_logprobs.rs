//! Log-probabilities of emitted tokens: `kernels/token_logprobs.cu`.

use super::buf::DevicePtr;
use super::device::Cuda;
use super::kernel::{Entry, Grid};
use super::parts::{Parts, PartsLayout, SEGMENT_THREADS};
use super::tables::{BatchTable, SlotTable, WalkTable};
use crate::limits::{EMIT_MAX, TOP_LOGPROBS_MAX};
use crate::{OpsError, ScratchNeeds, TokenLogprobs};

/// `struct TokenLogprobsParams`.
#[derive(Clone, Copy)]
#[repr(C)]
struct TokenLogprobsParams {
    batch: BatchTable,
    slots: SlotTable,
    walk: WalkTable,
    logits: DevicePtr,
    parts: Parts,
    logprob: DevicePtr,
    top_ids: DevicePtr,
    top_logprobs: DevicePtr,
}

const SEGMENTS: Entry = Entry {
    module: "token_logprobs",
    name: "token_logprobs_segments",
};
const MERGE: Entry = Entry {
    module: "token_logprobs",
    name: "token_logprobs_merge",
};

/// `sequences * EMIT_MAX * segments * (8 TOP_LOGPROBS_MAX + 8)`.
pub(super) fn scratch_bytes(_cuda: &Cuda, needs: &ScratchNeeds) -> usize {
    layout(needs.sequences, needs.vocab_rows).bytes
}

fn layout(sequences: usize, vocab: usize) -> PartsLayout {
    PartsLayout::new(sequences * EMIT_MAX, vocab, TOP_LOGPROBS_MAX)
}

pub(super) fn token_logprobs(cuda: &Cuda, op: TokenLogprobs<'_, Cuda>) -> Result<(), OpsError> {
    let sequences = op.batch.sequences_max.min(op.walk.sequences_max);
    let entries = sequences * EMIT_MAX;
    let layout = layout(sequences, op.slots.vocab_used);
    let params = TokenLogprobsParams {
        batch: BatchTable::of(op.batch),
        slots: SlotTable::of(op.slots),
        walk: WalkTable::of(op.walk),
        logits: op.logits.ptr(),
        parts: layout.at(cuda.scratch(layout.bytes)),
        logprob: op.logprob.range(0, entries),
        top_ids: op.top_ids.range(0, entries * TOP_LOGPROBS_MAX),
        top_logprobs: op.top_logprobs.range(0, entries * TOP_LOGPROBS_MAX),
    };
    // Few sequences leave room for more tokens at once.
    let together = EMIT_MAX.div_ceil(sequences.max(1)).min(8);
    let segments = Grid {
        blocks: [params.parts.segments, sequences as u32, together as u32],
        threads: SEGMENT_THREADS,
        shared: 0,
    };
    let merge = Grid {
        blocks: [EMIT_MAX as u32, sequences as u32, 1],
        threads: 256,
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/token_logprobs.cu; rows of paths are rows of the
    // logits, outputs hold `entries` entries, the arena their parts.
    unsafe {
        cuda.run(&SEGMENTS, segments, params)?;
        cuda.run(&MERGE, merge, params)
    }
}

//! Attention of the drafter over blocks.

use ops::{Backend, BlockMask, DraftAttention, OpsError};

use crate::bench::{Bench, Case};
use crate::memory::{caches, normal, turns};
use crate::sequences::{Sequences, Setting, chain, pages};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
/// Rows of a block.
const BLOCK: usize = 16;

/// Sequences, tokens in the cache, mask.
const CASES: [(usize, usize, BlockMask); 8] = [
    (1, 512, BlockMask::Full),
    (1, 4096, BlockMask::Full),
    (1, 32_768, BlockMask::Full),
    (1, 4096, BlockMask::CausalWindow(2048)),
    (1, 32_768, BlockMask::CausalWindow(2048)),
    (16, 512, BlockMask::Full),
    (16, 4096, BlockMask::Full),
    (16, 4096, BlockMask::CausalWindow(2048)),
];

pub fn run(bench: &Bench) -> Result<(), OpsError> {
    bench.head();
    for (count, context, mask) in CASES {
        let name = format!("block, {count} x {BLOCK} rows, context {context}, {mask:?}");
        if bench.wants(&name) {
            measure(bench, name, count, context, mask)?;
        }
    }
    Ok(())
}

fn measure(
    bench: &Bench,
    name: String,
    count: usize,
    context: usize,
    mask: BlockMask,
) -> Result<(), OpsError> {
    let cuda = &bench.cuda;
    let sequences = Sequences::new(cuda, count, &Setting::new(chain(BLOCK), context))?;
    let (rows, token_bytes) = (sequences.all_rows(), 2 * 2 * KV_HEADS * HEAD_DIM);
    let seen = match mask {
        BlockMask::CausalWindow(window) | BlockMask::Window(window) => context.min(window),
        BlockMask::Full | BlockMask::Causal => context,
    };
    let cached = count * seen * token_bytes;
    let turns = turns(cached);
    let caches = caches(
        cuda,
        turns,
        count * pages(context, BLOCK),
        KV_HEADS,
        HEAD_DIM,
    )?;
    let query = normal(cuda, rows * HEADS * HEAD_DIM)?;
    let keys = normal(cuda, rows * KV_HEADS * HEAD_DIM)?;
    let values = normal(cuda, rows * KV_HEADS * HEAD_DIM)?;
    let mut out = cuda.alloc(rows * HEADS * HEAD_DIM)?;
    let bytes = cached + rows * (token_bytes + 2 * 2 * HEADS * HEAD_DIM);
    bench.case(Case::new(name, bytes, turns), &mut |turn| {
        cuda.draft_attention(DraftAttention {
            rows: sequences.batch.rows(rows),
            batch: &sequences.batch,
            slots: &sequences.slots,
            cache: &caches[turn],
            mask,
            heads: HEADS,
            query: &query,
            block_keys: &keys,
            block_values: &values,
            out: &mut out,
        })
    })
}

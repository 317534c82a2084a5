//! Attention of the target over trees.

use ops::{Attention, Backend, Cuda, OpsError};

use crate::bench::{Bench, Case};
use crate::memory::{caches, normal, turns};
use crate::sequences::{Sequences, Setting, pages, tree};

pub const HEADS: usize = 24;
pub const KV_HEADS: usize = 4;
pub const HEAD_DIM: usize = 256;
/// Values of a row of the in-projection: query and gate of each head, keys, values.
pub const WIDTH: usize = 2 * (HEADS + KV_HEADS) * HEAD_DIM;

/// Sequences, rows of each, tokens in the cache.
const CASES: [(usize, usize, usize); 13] = [
    (1, 1, 512),
    (1, 8, 512),
    (1, 16, 512),
    (1, 32, 512),
    (1, 64, 512),
    (1, 1, 4096),
    (1, 16, 4096),
    (1, 64, 4096),
    (1, 1, 32_768),
    (1, 16, 32_768),
    (1, 64, 32_768),
    (16, 16, 512),
    (16, 16, 4096),
];

pub fn run(bench: &Bench) -> Result<(), OpsError> {
    bench.head();
    for (count, rows, context) in CASES {
        let name = format!("tree, {count} x {rows} rows, context {context}");
        if bench.wants(&name) {
            measure(bench, name, count, &Setting::new(tree(rows), context))?;
        }
    }
    Ok(())
}

/// Bytes of the keys and values of one token.
pub const TOKEN_BYTES: usize = 2 * 2 * KV_HEADS * HEAD_DIM;

fn measure(bench: &Bench, name: String, count: usize, setting: &Setting) -> Result<(), OpsError> {
    let cuda: &Cuda = &bench.cuda;
    let sequences = Sequences::new(cuda, count, setting)?;
    let rows = sequences.all_rows();
    let cached = count * (setting.context + sequences.rows) * TOKEN_BYTES;
    let turns = turns(cached);
    let pages = count * pages(setting.context, sequences.rows);
    let caches = caches(cuda, turns, pages, KV_HEADS, HEAD_DIM)?;
    let query = normal(cuda, rows * HEADS * HEAD_DIM)?;
    let gate = normal(cuda, rows * WIDTH)?;
    let mut out = cuda.alloc(rows * HEADS * HEAD_DIM)?;
    // Query, gate and output of a row.
    let bytes = cached + rows * 3 * 2 * HEADS * HEAD_DIM;
    bench.case(Case::new(name, bytes, turns), &mut |turn| {
        cuda.tree_attention(Attention {
            rows: sequences.batch.rows(rows),
            batch: &sequences.batch,
            slots: &sequences.slots,
            cache: &caches[turn],
            heads: HEADS,
            query: &query,
            gate: &gate,
            gate_row_stride: WIDTH,
            out: &mut out,
            tree: &sequences.tree,
        })
    })
}

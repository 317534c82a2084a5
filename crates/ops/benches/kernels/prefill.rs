//! A chunk of a prompt: all products of the layers, and attention.

use ops::{Attention, Backend, OpsError, TreeTables};

use crate::attention::{HEAD_DIM, HEADS, KV_HEADS, TOKEN_BYTES, WIDTH};
use crate::bench::{Bench, CHUNK_ROWS, Case};
use crate::chain::{Chain, head, measure};
use crate::memory::{caches, normal, turns};
use crate::product::Products;
use crate::sequences::{Sequences, Setting, chain, pages};

/// Layers whose products run in a row; more would run as long each.
const LAYERS: usize = 8;
/// Tokens in front of the chunk.
const CONTEXTS: [usize; 3] = [0, 6144, 30_720];

pub fn run(bench: &Bench) -> Result<(), OpsError> {
    let chain = Chain::new(&bench.cuda, LAYERS.min(bench.layers), false)?;
    let mut products = Products::new(&bench.cuda, CHUNK_ROWS, 1)?;
    if let Some(rate) = bench.matrix_rate() {
        println!("TFLOP/s beside {:.0} of cuBLASLt\n", rate / 1e12);
    }
    head();
    measure(bench, &chain, &mut products, CHUNK_ROWS)?;
    println!();
    bench.head();
    CONTEXTS
        .into_iter()
        .try_for_each(|context| attention(bench, context))
}

fn attention(bench: &Bench, context: usize) -> Result<(), OpsError> {
    let name = format!("attention, {CHUNK_ROWS} rows, context {context}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let cuda = &bench.cuda;
    let sequences = Sequences::new(cuda, 1, &Setting::new(chain(CHUNK_ROWS), context))?;
    let cached = (context + CHUNK_ROWS) * TOKEN_BYTES;
    let turns = turns(cached).min(4);
    let caches = caches(cuda, turns, pages(context, CHUNK_ROWS), KV_HEADS, HEAD_DIM)?;
    let query = normal(cuda, CHUNK_ROWS * HEADS * HEAD_DIM)?;
    let gate = normal(cuda, CHUNK_ROWS * WIDTH)?;
    let mut out = cuda.alloc(CHUNK_ROWS * HEADS * HEAD_DIM)?;
    let tree = TreeTables::new(cuda, 1)?;
    // Row i sees context + i + 1 tokens, each with two products of a head's values.
    let seen = CHUNK_ROWS * context + CHUNK_ROWS * (CHUNK_ROWS + 1) / 2;
    let case = Case {
        operations: 4 * HEADS * HEAD_DIM * seen,
        launches: turns,
        ..Case::new(name, cached + CHUNK_ROWS * 3 * 2 * HEADS * HEAD_DIM, turns)
    };
    bench.case(case, &mut |turn| {
        cuda.prefill_attention(Attention {
            rows: sequences.batch.rows(CHUNK_ROWS),
            batch: &sequences.batch,
            slots: &sequences.slots,
            cache: &caches[turn],
            heads: HEADS,
            query: &query,
            gate: &gate,
            gate_row_stride: WIDTH,
            out: &mut out,
            tree: &tree,
        })
    })
}

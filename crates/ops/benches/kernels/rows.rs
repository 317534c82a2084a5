//! Ops that take each row by itself: embedding, norms, rotation, copies; and filling memory.

use ops::{
    Backend, CopyColumns, Cuda, Dtype, Embed, FillTarget, GatherRows, KvTarget, NormRope, OpsError,
    QuerySource, RmsNorm, Storage, Tensor,
};

use crate::attention::{HEAD_DIM, HEADS, KV_HEADS, WIDTH};
use crate::bench::{Bench, CHUNK_ROWS, Case, HIDDEN};
use crate::memory::{caches, fill, normal, normal_f32, put};
use crate::sequences::{Sequences, Setting, chain, pages};

const ROWS: [usize; 5] = [1, 16, 64, 256, CHUNK_ROWS];
/// Hidden states that make up a feature row.
const FEATURES: usize = 5;
const ROTARY: usize = 64;

pub fn run(bench: &Bench) -> Result<(), OpsError> {
    bench.head();
    for rows in ROWS {
        stream(bench, rows)?;
        gather(bench, rows)?;
        rope(bench, rows)?;
    }
    filling(bench)
}

/// Between embedding and first product, and the drafter's features.
fn stream(bench: &Bench, rows: usize) -> Result<(), OpsError> {
    let cuda = &bench.cuda;
    let sequences = Sequences::new(cuda, 1, &Setting::new(chain(rows), 512))?;
    let table = Tensor {
        storage: Storage::zeros(cuda, Dtype::Bf16, CHUNK_ROWS * HIDDEN)?,
        rows: CHUNK_ROWS,
        columns: HIDDEN,
    };
    let mut wide = normal_f32(cuda, rows * HIDDEN)?;
    let mut features = cuda.alloc(rows * HIDDEN * FEATURES)?;
    let weight = normal_f32(cuda, HIDDEN)?;
    let live = || sequences.batch.rows(rows);
    let case = |op: &str| Case::new(format!("{op}, {rows} rows"), 6 * rows * HIDDEN, 1);
    bench.case(case("embed"), &mut |_| {
        cuda.embed(Embed {
            rows: live(),
            batch: &sequences.batch,
            table: &table,
            out: &mut wide,
        })
    })?;
    bench.case(case("rms norm"), &mut |_| {
        cuda.rms_norm(RmsNorm {
            rows: live(),
            dim: HIDDEN,
            eps: 1e-6,
            x: &wide,
            weight: &weight,
            out: &mut features,
        })
    })?;
    bench.case(case("copy columns"), &mut |_| {
        cuda.copy_columns(CopyColumns {
            rows: live(),
            dim: HIDDEN,
            x: &wide,
            offset: HIDDEN,
            out_dim: FEATURES * HIDDEN,
            out: &mut features,
        })
    })
}

fn gather(bench: &Bench, rows: usize) -> Result<(), OpsError> {
    let (cuda, dim) = (&bench.cuda, FEATURES * HIDDEN);
    let sequences = Sequences::new(cuda, 1, &Setting::new(chain(rows), 512))?;
    let x = normal(cuda, 64 * dim)?;
    let source: Vec<u32> = (0..rows as u32).map(|row| row % 64).collect();
    let source = put(cuda, &source)?;
    let mut out = cuda.alloc(rows * dim)?;
    let case = Case::new(format!("gather, {rows} rows of {dim}"), 4 * rows * dim, 1);
    bench.case(case, &mut |_| {
        cuda.gather_rows(GatherRows {
            rows: sequences.batch.rows(rows),
            source: &source,
            dim,
            x: &x,
            out: &mut out,
        })
    })
}

/// Queries and keys of the target.
fn rope(bench: &Bench, rows: usize) -> Result<(), OpsError> {
    let cuda: &Cuda = &bench.cuda;
    let sequences = Sequences::new(cuda, 1, &Setting::new(chain(rows), 512))?;
    let mut cache = caches(cuda, 1, pages(512, rows), KV_HEADS, HEAD_DIM)?.remove(0);
    let x = normal(cuda, rows * WIDTH)?;
    let weight = normal_f32(cuda, HEAD_DIM)?;
    let frequency = normal_f32(cuda, ROTARY / 2)?;
    let mut query = cuda.alloc(rows * HEADS * HEAD_DIM)?;
    let bytes = rows * 2 * 2 * (HEADS + 2 * KV_HEADS) * HEAD_DIM;
    let case = Case::new(format!("norm and rotate, {rows} rows"), bytes, 1);
    bench.case(case, &mut |_| {
        cuda.norm_rope(NormRope {
            rows: sequences.batch.rows(rows),
            head_dim: HEAD_DIM,
            rotary: ROTARY,
            frequency: &frequency,
            eps: 1e-6,
            x: &x,
            row_stride: WIDTH,
            query: Some(QuerySource {
                heads: HEADS,
                head_stride: 2 * HEAD_DIM,
                weight: &weight,
                out: &mut query,
            }),
            kv_heads: KV_HEADS,
            kv_offset: 2 * HEADS * HEAD_DIM,
            key_weight: &weight,
            target: KvTarget::Pages {
                batch: &sequences.batch,
                slots: &sequences.slots,
                cache: &mut cache,
            },
        })
    })
}

/// Random weights.
fn filling(bench: &Bench) -> Result<(), OpsError> {
    let cuda = &bench.cuda;
    let len = 1 << 28;
    let mut values = cuda.alloc(len)?;
    let mut case = Case::new(format!("fill, {len} values"), 2 * len, 1);
    case.launches = 4;
    bench.case(case, &mut |_| {
        fill(cuda, FillTarget::Bf16(&mut values), 0.014)
    })
}

//! Times of the small ops, one behind the other in a graph. Run by hand on a quiet GPU:
//! `cargo test --release -p ops --features cuda table_times -- --ignored --nocapture`.

use std::time::Instant;

use half::bf16;

use super::{gpu, narrow, put, put_batch, put_slots};
use crate::testing::{
    Segment, batch, chain, floats, live, paged_slots, random_tree, slots, tree_batch,
};
use crate::*;

/// Ops in a graph.
const REPEATS: u32 = 50;

/// Microseconds per op.
fn time(cuda: &Cuda, what: &str, op: &mut dyn FnMut() -> Result<(), OpsError>) {
    op().unwrap();
    let graph = cuda
        .record(&mut || (0..REPEATS).try_for_each(|_| op()))
        .unwrap()
        .expect("CUDA has graphs");
    let mut best = f64::MAX;
    for _ in 0..10 {
        cuda.wait().unwrap();
        let start = Instant::now();
        for _ in 0..4 {
            cuda.launch(&graph).unwrap();
        }
        cuda.wait().unwrap();
        best = best.min(start.elapsed().as_secs_f64() / f64::from(4 * REPEATS));
    }
    println!("{what}: {:.2} us", best * 1e6);
}

fn peaked(depths: usize, k: usize, seed: u64) -> Vec<f32> {
    let mut values = floats(seed, depths * k);
    for row in values.chunks_mut(k) {
        row.iter_mut().for_each(|value| *value = -4.0 * value.abs());
        row.sort_by(|a, b| b.total_cmp(a));
    }
    values
}

#[test]
#[ignore = "a measurement"]
fn build() {
    let Some(cuda) = gpu() else { return };
    for (sequences, capacity) in [(1, 1), (1, 16), (16, 16)] {
        for (rows, chain) in [(64, 0), (16, 0), (16, 1)] {
            let parents = vec![-1; rows];
            let shape = tree_batch(&vec![&parents[..]; capacity]);
            let mut tables = put_batch(&cuda, &shape);
            cuda.upload(
                &[(rows * sequences) as u32, sequences as u32],
                &mut tables.live,
                0,
            )
            .unwrap();
            let slots = put_slots(&cuda, &slots(capacity + 1, 10));
            let logprobs = put(&cuda, &peaked(16 * capacity, 15, 1));
            let ids = put(&cuda, &vec![3u32; 16 * 15 * capacity]);
            let plan = DraftPlan {
                block: put(&cuda, &(0..=capacity as u32).collect::<Vec<_>>()),
                chain: put(&cuda, &vec![chain; capacity + 1]),
            };
            let mut padding = cuda.alloc(shape.rows_max).unwrap();
            let mut prediction = cuda.alloc((capacity + 1) * Prediction::LEN).unwrap();
            let what = format!(
                "build_tree, {sequences} of {capacity} sequences, {rows} rows, chain {chain}"
            );
            time(&cuda, &what, &mut || {
                cuda.build_tree(BuildTree {
                    block_size: 16,
                    k: 15,
                    ids: &ids,
                    logprobs: &logprobs,
                    plan: &plan,
                    slots: &slots,
                    batch: &mut tables,
                    padding: &mut padding,
                    prediction: &mut prediction,
                })
            });
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn tables_and_walks() {
    let Some(cuda) = gpu() else { return };
    for (sequences, rows) in [(1, 64), (16, 32), (1, 16), (1, 2048)] {
        let tree = match rows {
            2048 | 16 => chain(rows),
            _ => random_tree(1, rows),
        };
        let token: Vec<u32> = (0..rows as u32).collect();
        let segments: Vec<_> = (0..sequences)
            .map(|slot| Segment {
                slot,
                token: &token,
                parent: &tree,
            })
            .collect();
        let shape = batch(&segments);
        let tables = put_batch(&cuda, &shape);
        let mut tree = TreeTables::new(&cuda, shape.rows_max).unwrap();
        let padding = cuda.alloc(shape.rows_max).unwrap();
        let what = format!("{sequences} sequences of {rows} rows");
        time(&cuda, &format!("tree_tables, {what}"), &mut || {
            cuda.tree_tables(TreeTablesFrom {
                batch: &tables,
                padding: Some(&padding),
                tables: &mut tree,
            })
        });
        if rows <= 64 {
            walks(&cuda, &shape, &tables, &tree, &what);
        }
    }
}

/// Every row chooses the token of the next one: the chain is accepted as a whole.
fn walks(
    cuda: &Cuda,
    shape: &Batch<Cpu>,
    tables: &Batch<Cuda>,
    tree: &TreeTables<Cuda>,
    what: &str,
) {
    let (sequences, rows) = (shape.live[1] as usize, shape.sequence_rows[0]);
    let padding = cuda.alloc(shape.rows_max).unwrap();
    let choice: Vec<u32> = (0..shape.rows_max as u32)
        .map(|row| row % rows + 1)
        .collect();
    let choice = put(cuda, &choice);
    let mut slots = put_slots(cuda, &paged_slots(&vec![10; sequences], 3));
    slots.vocab_rows = 128;
    slots.generated = cuda.alloc(128 * sequences).unwrap();
    let mut walk = Walk::new(cuda, shape.sequences_max).unwrap();
    time(cuda, &format!("accept_walk, {what}"), &mut || {
        cuda.accept_walk(AcceptWalk {
            batch: tables,
            tree,
            slots: &slots,
            first: false,
            choice: &choice,
            walk: &mut walk,
        })
    });
    let mut context = ContextRows::new(cuda, shape.rows_max).unwrap();
    time(cuda, &format!("advance, {what}"), &mut || {
        cuda.advance(Advance {
            batch: tables,
            walk: &walk,
            first: false,
            slots: &mut slots,
            context: &mut context,
        })
    });
    let prediction = cuda.alloc(shape.sequences_max * Prediction::LEN).unwrap();
    let mut out = cuda.alloc(shape.sequences_max * RESULT_WORDS).unwrap();
    time(cuda, &format!("step_result, {what}"), &mut || {
        cuda.step_result(StepResult {
            batch: tables,
            walk: &walk,
            padding: &padding,
            prediction: &prediction,
            finite: &padding,
            out: &mut out,
        })
    });
}

#[test]
#[ignore = "a measurement"]
fn compaction() {
    let Some(cuda) = gpu() else { return };
    for sequences in [1, 16] {
        let tree = chain(64);
        let shape = tree_batch(&vec![&tree[..]; sequences]);
        let tables = put_batch(&cuda, &shape);
        let slots = put_slots(&cuda, &paged_slots(&vec![60; sequences], 3));
        let mut layers: Vec<_> = (0..16)
            .map(|_| KvLayer::new(&cuda, Dtype::Bf16, 3 * sequences, 4, 256).unwrap())
            .collect();
        for (what, stride) in [("in place", 1), ("15 rows move", 3)] {
            let mut walk = Walk::new(&cuda, shape.sequences_max).unwrap();
            let path: Vec<u32> = (0..shape.sequences_max * EMIT_MAX)
                .map(|i| (i % EMIT_MAX * stride) as u32)
                .collect();
            cuda.upload(&path, &mut walk.path, 0).unwrap();
            cuda.upload(&vec![16; shape.sequences_max], &mut walk.path_rows, 0)
                .unwrap();
            time(
                &cuda,
                &format!("compact_kv, {sequences} sequences, {what}"),
                &mut || {
                    cuda.compact_kv(CompactKv {
                        batch: &tables,
                        slots: &slots,
                        walk: &walk,
                        layers: &mut layers,
                    })
                },
            );
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn rows() {
    let Some(cuda) = gpu() else { return };
    let dim = 5120;
    for capacity in [1, 16, 64, 2048] {
        let token = vec![5; capacity];
        let shape = batch(&[Segment {
            slot: 0,
            token: &token,
            parent: &chain(capacity),
        }]);
        let tables = put_batch(&cuda, &shape);
        let live = put(&cuda, &live(capacity));
        let rows = Rows::new(capacity, &live);
        let table = Tensor::from_f32(&cuda, Dtype::Bf16, 16, dim, &floats(1, 16 * dim)).unwrap();
        let mut wide = cuda.alloc::<f32>(capacity * dim).unwrap();
        let mut features = cuda.alloc::<bf16>(capacity * dim * 5).unwrap();
        let weight = put(&cuda, &floats(2, dim));
        time(&cuda, &format!("embed, {capacity} rows"), &mut || {
            cuda.embed(Embed {
                rows,
                batch: &tables,
                table: &table,
                out: &mut wide,
            })
        });
        time(&cuda, &format!("rms_norm, {capacity} rows"), &mut || {
            cuda.rms_norm(RmsNorm {
                rows,
                dim,
                eps: 1e-6,
                x: &wide,
                weight: &weight,
                out: &mut features,
            })
        });
        time(
            &cuda,
            &format!("copy_columns, {capacity} rows"),
            &mut || {
                cuda.copy_columns(CopyColumns {
                    rows,
                    dim,
                    x: &wide,
                    offset: dim,
                    out_dim: 5 * dim,
                    out: &mut features,
                })
            },
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn gathering() {
    let Some(cuda) = gpu() else { return };
    let dim = 5120;
    for capacity in [1, 16, 64, 2048] {
        let live = put(&cuda, &live(capacity));
        let rows = Rows::new(capacity, &live);
        let mut features = cuda.alloc::<bf16>(capacity * dim * 5).unwrap();
        let x = put(&cuda, &narrow(&floats(3, 64 * 5 * dim)));
        let source = put(
            &cuda,
            &(0..capacity as u32).map(|i| i % 64).collect::<Vec<_>>(),
        );
        time(
            &cuda,
            &format!("gather_rows of {}, {capacity} rows", 5 * dim),
            &mut || {
                cuda.gather_rows(GatherRows {
                    rows,
                    source: &source,
                    dim: 5 * dim,
                    x: &x,
                    out: &mut features,
                })
            },
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn filling() {
    let Some(cuda) = gpu() else { return };
    let len = 1 << 30;
    let mut values = cuda.alloc::<bf16>(len).unwrap();
    let law = FillLaw::Normal {
        mean: 0.0,
        deviation: 0.014,
    };
    for _ in 0..3 {
        cuda.wait().unwrap();
        let start = Instant::now();
        cuda.fill(Fill {
            values: FillTarget::Bf16(&mut values),
            law,
            seed: 1,
            name: "w",
        })
        .unwrap();
        cuda.wait().unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let gb = (2 * len) as f64 / 1e9;
        println!(
            "fill: {:.0} GB/s, {:.3} s for 54 GB",
            gb / seconds,
            seconds * 54.0 / gb
        );
    }
}

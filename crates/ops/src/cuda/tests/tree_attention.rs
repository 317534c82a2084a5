//! Attention of trees and of chunks: values as the CPU has them, bits as plain decoding has them.

use half::bf16;

use super::attention_inputs::{Inputs, Sequence, Shape, reserve};
use super::{get, gpu, poisoned, put_tree, wide};
use crate::testing::{assert_close, chain, path_to, random_tree};
use crate::{Attention, Backend, Cpu, Cuda, OpsError, TreeTables, TreeTablesFrom};

const TARGET: Shape = Shape {
    heads: 24,
    kv_heads: 4,
    dim: 256,
};
const TINY: Shape = Shape {
    heads: 2,
    kv_heads: 1,
    dim: 256,
};

const fn shape(heads: usize, kv_heads: usize) -> Shape {
    Shape {
        heads,
        kv_heads,
        dim: 256,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Op {
    Tree,
    Prefill,
}

fn tree_of(inputs: &Inputs) -> TreeTables<Cpu> {
    let mut tables = TreeTables::new(&Cpu::default(), inputs.batch.rows_max).unwrap();
    let op = TreeTablesFrom {
        batch: &inputs.batch,
        padding: None,
        tables: &mut tables,
    };
    Cpu::default().tree_tables(op).unwrap();
    tables
}

/// `[rows, heads, dim]` by the CPU.
fn reference(op: Op, shape: Shape, sequences: &[Sequence]) -> Vec<f64> {
    let inputs = Inputs::new(shape, sequences, true);
    let mut out = vec![0.0; inputs.query.len()].into();
    let args = Attention {
        rows: inputs.batch.rows(inputs.batch.rows_max),
        batch: &inputs.batch,
        slots: &inputs.slots,
        cache: &inputs.cache,
        heads: shape.heads,
        query: &inputs.query.clone().into(),
        gate: &inputs.gate.clone().into(),
        gate_row_stride: inputs.gate_stride,
        out: &mut out,
        tree: &tree_of(&inputs),
    };
    let cpu = Cpu::default();
    match op {
        Op::Tree => cpu.tree_attention(args).unwrap(),
        Op::Prefill => cpu.prefill_attention(args).unwrap(),
    }
    let live: usize = sequences.iter().map(|s| s.query.len()).sum();
    out[..live].iter().map(|&v| f64::from(v)).collect()
}

/// The same by the kernels; padding must stay untouched.
fn attend(cuda: &Cuda, op: Op, shape: Shape, sequences: &[Sequence]) -> Vec<bf16> {
    let inputs = Inputs::new(shape, sequences, true);
    let rows = inputs.batch.rows_max;
    let device = inputs.on(cuda);
    let tree = put_tree(cuda, &tree_of(&inputs));
    let mut out = poisoned::<bf16>(cuda, inputs.query.len());
    let longest = sequences.iter().map(|s| s.context + s.parents.len()).max();
    reserve(cuda, shape, rows, longest.unwrap_or(0));
    let args = Attention {
        rows: device.batch.rows(rows),
        batch: &device.batch,
        slots: &device.slots,
        cache: &device.cache,
        heads: shape.heads,
        query: &device.query,
        gate: &device.gate,
        gate_row_stride: inputs.gate_stride,
        out: &mut out,
        tree: &tree,
    };
    let result: Result<(), OpsError> = match op {
        Op::Tree => cuda.tree_attention(args),
        Op::Prefill => cuda.prefill_attention(args),
    };
    result.unwrap();
    let live: usize = sequences.iter().map(|s| s.query.len()).sum();
    let mut out = get(cuda, &out);
    assert!(
        out[live..].iter().all(|v| v.to_bits() == 0xABAB),
        "padding rows"
    );
    out.truncate(live);
    out
}

fn check(cuda: &Cuda, op: Op, shape: Shape, sequences: &[Sequence], what: &str) -> Vec<bf16> {
    let out = attend(cuda, op, shape, sequences);
    let exact = reference(op, shape, sequences);
    let name = format!("{what}, heads {}/{}", shape.heads, shape.kv_heads);
    assert_close(&wide(&out), &exact, 5e-6, &name);
    out
}

#[test]
fn trees_agree_with_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for (seed, context) in [0, 1, 5, 63, 64, 65, 127, 500, 1000, 4095]
        .into_iter()
        .enumerate()
    {
        for (shape, rows) in [(TARGET, 16), (TINY, 64), (shape(7, 1), 9)] {
            let tree = Sequence::new(seed, shape, context, random_tree(seed as u64, rows));
            let what = format!("tree of {rows} behind {context}");
            check(&cuda, Op::Tree, shape, &[tree], &what);
        }
    }
}

#[test]
fn every_node_gets_the_bits_of_plain_decoding() {
    let Some(cuda) = gpu() else { return };
    for (seed, context) in [0, 1, 5, 63, 64, 65, 127, 500, 1000, 4095]
        .into_iter()
        .enumerate()
    {
        // Trees of each block size, and a chain that is deeper than drafts are.
        for (shape, parents) in [
            (TARGET, random_tree(seed as u64, 16)),
            (TINY, random_tree(seed as u64, 64)),
            (shape(8, 1), random_tree(seed as u64, 3)),
            (shape(5, 1), chain(64)),
        ] {
            let tree = Sequence::new(seed + 20, shape, context, parents);
            let out = attend(&cuda, Op::Tree, shape, std::slice::from_ref(&tree));
            let every = if context > 2000 { 5 } else { 1 };
            let rows: Vec<usize> = (0..tree.parents.len()).step_by(every).collect();
            let plain: Vec<Sequence> = rows
                .iter()
                .map(|&row| {
                    let path = path_to(&tree.parents, row);
                    tree.along(shape, &path, path.len() - 1)
                })
                .collect();
            let decoded = attend(&cuda, Op::Tree, shape, &plain);
            let wide = shape.query_width();
            for (n, &row) in rows.iter().enumerate() {
                let (node, plain) = (&out[row * wide..][..wide], &decoded[n * wide..][..wide]);
                assert!(
                    node.iter()
                        .zip(plain)
                        .all(|(a, b)| a.to_bits() == b.to_bits()),
                    "row {row} behind {context}, heads {}/{}",
                    shape.heads,
                    shape.kv_heads
                );
            }
        }
    }
}

#[test]
fn a_sequence_gets_the_same_bits_in_any_batch() {
    let Some(cuda) = gpu() else { return };
    let shape = TARGET;
    let sequences: Vec<Sequence> = [(300, 33), (5, 1), (127, 7), (64, 64), (2500, 16)]
        .into_iter()
        .enumerate()
        .map(|(seed, (context, rows))| {
            Sequence::new(seed + 40, shape, context, random_tree(seed as u64, rows))
        })
        .collect();
    let together = check(&cuda, Op::Tree, shape, &sequences, "five trees");
    let mut from = 0;
    for sequence in sequences {
        let alone = attend(&cuda, Op::Tree, shape, std::slice::from_ref(&sequence));
        assert_eq!(alone, together[from..from + alone.len()]);
        from += alone.len();
    }
    assert_eq!(from, together.len());
}

#[test]
fn chunks_agree_with_the_cpu_and_do_not_depend_on_their_borders() {
    let Some(cuda) = gpu() else { return };
    for (shape, cases) in [
        (TARGET, vec![(70, 0)]),
        (TINY, vec![(100, 333), (17, 0), (64, 64)]),
        (shape(5, 1), vec![(33, 1000)]),
        (shape(8, 2), vec![(1, 0), (40, 8300)]),
    ] {
        let whole: Vec<Sequence> = cases
            .iter()
            .enumerate()
            .map(|(seed, &(rows, context))| Sequence::new(seed + 60, shape, context, chain(rows)))
            .collect();
        let out = check(&cuda, Op::Prefill, shape, &whole, "chunks");
        let cut = |rows: usize| 2 * rows / 5;
        let pieces: Vec<Sequence> = whole
            .iter()
            .map(|s| {
                let rows: Vec<usize> = (0..s.parents.len()).collect();
                s.along(shape, &rows, cut(rows.len()))
            })
            .collect();
        let pieces = attend(&cuda, Op::Prefill, shape, &pieces);
        let (mut from, mut piece) = (0, 0);
        for sequence in &whole {
            let rows = sequence.parents.len();
            let begin = (from + cut(rows)) * shape.query_width();
            let values = (rows - cut(rows)) * shape.query_width();
            assert_eq!(pieces[piece..piece + values], out[begin..begin + values]);
            from += rows;
            piece += values;
        }
    }
}

#[test]
fn nothing_live_writes_nothing() {
    let Some(cuda) = gpu() else { return };
    let tree = Sequence::new(1, TINY, 70, random_tree(1, 4));
    let mut inputs = Inputs::new(TINY, &[tree], true);
    inputs.batch.live.fill(0);
    let device = inputs.on(&cuda);
    let tables = put_tree(&cuda, &tree_of(&inputs));
    reserve(&cuda, TINY, 8, 100);
    for op in [Op::Tree, Op::Prefill] {
        let mut out = poisoned::<bf16>(&cuda, inputs.query.len());
        let args = Attention {
            rows: device.batch.rows(6),
            batch: &device.batch,
            slots: &device.slots,
            cache: &device.cache,
            heads: TINY.heads,
            query: &device.query,
            gate: &device.gate,
            gate_row_stride: inputs.gate_stride,
            out: &mut out,
            tree: &tables,
        };
        match op {
            Op::Tree => cuda.tree_attention(args).unwrap(),
            Op::Prefill => cuda.prefill_attention(args).unwrap(),
        }
        assert!(get(&cuda, &out).iter().all(|v| v.to_bits() == 0xABAB));
    }
}

//! Attention of the drafter's blocks.

use half::bf16;

use super::attention_inputs::{Inputs, Sequence, Shape, reserve};
use super::{get, gpu, narrow, poisoned, put, wide};
use crate::testing::{assert_close, chain};
use crate::{Backend, BlockMask, Cpu, Cuda, DraftAttention};

const fn shape(heads: usize, kv_heads: usize) -> Shape {
    Shape {
        heads,
        kv_heads,
        dim: 128,
    }
}

const DRAFTER: Shape = shape(32, 8);
const TINY: Shape = shape(4, 2);

const MASKS: [BlockMask; 6] = [
    BlockMask::Full,
    BlockMask::Causal,
    BlockMask::CausalWindow(20),
    BlockMask::CausalWindow(130),
    BlockMask::Window(20),
    BlockMask::Window(130),
];

/// Keys and values of the blocks, and NaN for rows of padding.
fn blocks(shape: Shape, sequences: &[Sequence], rows: usize, keys: bool) -> Vec<f32> {
    let mut block: Vec<f32> = sequences
        .iter()
        .flat_map(|s| {
            let all = if keys { &s.keys } else { &s.values };
            all[s.context * shape.width()..].iter().copied()
        })
        .collect();
    block.resize(rows * shape.width(), f32::NAN);
    block
}

fn reference(shape: Shape, mask: BlockMask, sequences: &[Sequence]) -> Vec<f64> {
    let inputs = Inputs::new(shape, sequences, false);
    let rows = inputs.batch.rows_max;
    let mut out = vec![0.0; inputs.query.len()].into();
    let op = DraftAttention {
        rows: inputs.batch.rows(rows),
        batch: &inputs.batch,
        slots: &inputs.slots,
        cache: &inputs.cache,
        mask,
        heads: shape.heads,
        query: &inputs.query.clone().into(),
        block_keys: &blocks(shape, sequences, rows, true).into(),
        block_values: &blocks(shape, sequences, rows, false).into(),
        out: &mut out,
    };
    Cpu::default().draft_attention(op).unwrap();
    let live: usize = sequences.iter().map(|s| s.query.len()).sum();
    out[..live].iter().map(|&v| f64::from(v)).collect()
}

fn attend(cuda: &Cuda, shape: Shape, mask: BlockMask, sequences: &[Sequence]) -> Vec<bf16> {
    let inputs = Inputs::new(shape, sequences, false);
    let rows = inputs.batch.rows_max;
    let device = inputs.on(cuda);
    let mut out = poisoned::<bf16>(cuda, inputs.query.len());
    let longest = sequences.iter().map(|s| s.context + s.parents.len()).max();
    reserve(cuda, shape, rows, longest.unwrap_or(0));
    let op = DraftAttention {
        rows: device.batch.rows(rows),
        batch: &device.batch,
        slots: &device.slots,
        cache: &device.cache,
        mask,
        heads: shape.heads,
        query: &device.query,
        block_keys: &put(cuda, &narrow(&blocks(shape, sequences, rows, true))),
        block_values: &put(cuda, &narrow(&blocks(shape, sequences, rows, false))),
        out: &mut out,
    };
    cuda.draft_attention(op).unwrap();
    let live: usize = sequences.iter().map(|s| s.query.len()).sum();
    let mut out = get(cuda, &out);
    assert!(
        out[live..].iter().all(|v| v.to_bits() == 0xABAB),
        "padding rows"
    );
    out.truncate(live);
    out
}

fn check(cuda: &Cuda, shape: Shape, mask: BlockMask, cases: &[(usize, usize)]) {
    let sequences: Vec<Sequence> = cases
        .iter()
        .enumerate()
        .map(|(seed, &(context, rows))| Sequence::new(seed + 80, shape, context, chain(rows)))
        .collect();
    let out = attend(cuda, shape, mask, &sequences);
    let exact = reference(shape, mask, &sequences);
    let what = format!(
        "{mask:?}, heads {}/{}, {cases:?}",
        shape.heads, shape.kv_heads
    );
    assert_close(&wide(&out), &exact, 5e-6, &what);
    let mut from = 0;
    for sequence in sequences {
        let alone = attend(cuda, shape, mask, std::slice::from_ref(&sequence));
        assert!(alone == out[from..from + alone.len()], "alone: {what}");
        from += alone.len();
    }
}

#[test]
fn blocks_agree_with_the_cpu_and_do_not_depend_on_the_batch() {
    let Some(cuda) = gpu() else { return };
    for mask in MASKS {
        check(
            &cuda,
            DRAFTER,
            mask,
            &[(500, 16), (0, 16), (64, 16), (127, 16)],
        );
        check(&cuda, TINY, mask, &[(0, 16), (1, 16), (63, 16), (200, 16)]);
        check(&cuda, shape(10, 2), mask, &[(60, 7), (129, 1)]);
        check(&cuda, shape(8, 1), mask, &[(2100, 16), (9, 16)]);
    }
    let mask = BlockMask::CausalWindow(2048);
    check(
        &cuda,
        shape(4, 1),
        mask,
        &[(9000, 16), (2040, 16), (40, 16)],
    );
    check(&cuda, shape(4, 1), BlockMask::Full, &[(9000, 16)]);
}

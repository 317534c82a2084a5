//! `topk_logprobs` against the CPU.

use super::{cases, get, gpu, poisoned, put};
use crate::testing::{bits, floats, normalised_error};
use crate::{Backend, Cpu, Cuda, Rows, ScratchNeeds, TopK};

/// Rows of few ids, and of many, that do and do not allow vector loads and fill segments or not.
const SHAPES: [(usize, usize); 6] = [
    (150, 153),
    (600, 600),
    (2048, 2048),
    (7761, 7764),
    (40_001, 40_003),
    (248_320, 248_320),
];

fn reserve(cuda: &Cuda, rows: usize, vocab_rows: usize) {
    let needs = ScratchNeeds {
        rows,
        vocab_rows,
        ..ScratchNeeds::default()
    };
    cuda.reserve(&needs).unwrap();
}

/// Ids and log-probabilities of `live` rows in buffers and a launch for `capacity`.
fn on_gpu(
    cuda: &Cuda,
    logits: &[f32],
    (vocab_used, vocab_rows): (usize, usize),
    (capacity, live): (usize, usize),
    k: usize,
) -> (Vec<u32>, Vec<f32>) {
    reserve(cuda, capacity, vocab_rows);
    let mut ids = poisoned(cuda, capacity * k);
    let mut logprobs = poisoned(cuda, capacity * k);
    let mut padded = logits.to_vec();
    padded.resize(capacity * vocab_rows, f32::NAN);
    let op = TopK {
        rows: Rows {
            capacity,
            live: &put(cuda, &[live as u32, 1]),
            prompt: false,
        },
        vocab_rows,
        vocab_used,
        k,
        logits: &put(cuda, &padded),
        ids: &mut ids,
        logprobs: &mut logprobs,
    };
    cuda.topk_logprobs(op).unwrap();
    let (mut ids, mut logprobs) = (get(cuda, &ids), get(cuda, &logprobs));
    assert!(
        ids.drain(live * k..).all(|id| id == 0xABAB_ABAB),
        "padding rows"
    );
    let poison = f32::from_bits(0xABAB_ABAB);
    assert!(
        logprobs.drain(live * k..).all(|p| p == poison),
        "padding rows"
    );
    (ids, logprobs)
}

fn on_cpu(
    logits: &[f32],
    (vocab_used, vocab_rows): (usize, usize),
    k: usize,
) -> (Vec<u32>, Vec<f32>) {
    let rows = logits.len() / vocab_rows;
    let mut ids: Box<[u32]> = vec![0; rows * k].into();
    let mut logprobs: Box<[f32]> = vec![0.0; rows * k].into();
    let op = TopK {
        rows: Rows {
            capacity: rows,
            live: &vec![rows as u32, 1].into(),
            prompt: false,
        },
        vocab_rows,
        vocab_used,
        k,
        logits: &logits.into(),
        ids: &mut ids,
        logprobs: &mut logprobs,
    };
    Cpu::default().topk_logprobs(op).unwrap();
    (ids.into(), logprobs.into())
}

/// Rows of several kinds; ids that name no token would always win.
fn rows((vocab_used, vocab_rows): (usize, usize), seed: u64) -> Vec<f32> {
    let inf = f32::INFINITY;
    let mut logits = floats(seed, 10 * vocab_rows);
    for (row, logits) in logits.chunks_mut(vocab_rows).enumerate() {
        let at = |share: usize| share * vocab_used / 10;
        match row {
            0..3 => logits.iter_mut().for_each(|z| *z *= 20.0),
            // Ties, in part across segments.
            3 => logits.iter_mut().for_each(|z| *z = (*z * 5.0).round()),
            4 => logits.fill(-3.5),
            5 => logits.fill(-inf),
            6 => {
                logits.fill(-inf);
                for (n, share) in [9, 3, 5].into_iter().enumerate() {
                    logits[at(share)] = n as f32 * -1e30;
                }
            }
            7 => (logits[at(2)], logits[at(7)]) = (f32::NAN, f32::NAN),
            8 => (logits[at(1)], logits[at(8)]) = (inf, -0.0),
            _ => {
                logits.fill(f32::NAN);
                (logits[at(6)], logits[at(4)]) = (-inf, 0.0);
            }
        }
        logits[vocab_used..].fill(100.0);
    }
    logits
}

/// Log-probabilities agree: the same special values, and numbers within rounding.
pub(super) fn assert_logprobs(found: &[f32], expected: &[f32], what: &str) {
    let is_number = |p: &&f32| p.is_finite();
    for (n, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found == expected || found.is_nan() && expected.is_nan();
        assert!(
            same || found.is_finite() && expected.is_finite(),
            "{what}: {n}: {found} {expected}"
        );
    }
    let found: Vec<f32> = found.iter().filter(is_number).copied().collect();
    let expected: Vec<f64> = expected
        .iter()
        .filter(is_number)
        .map(|&p| f64::from(p))
        .collect();
    if expected.iter().any(|&p| p != 0.0) {
        let error = normalised_error(&found, &expected);
        assert!(error < 1e-12, "{what}: normalised error {error:e}");
    }
}

#[test]
fn ids_are_those_of_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for &shape in cases(&SHAPES, 4) {
        let logits = rows(shape, 1);
        for k in [1, 7, 15] {
            let (ids, logprobs) = on_gpu(&cuda, &logits, shape, (16, 10), k);
            let (cpu_ids, cpu_logprobs) = on_cpu(&logits, shape, k);
            for row in 0..10 {
                let what = format!("{shape:?}, k {k}, row {row}");
                let range = row * k..(row + 1) * k;
                assert_eq!(ids[range.clone()], cpu_ids[range.clone()], "{what}");
                assert_logprobs(&logprobs[range.clone()], &cpu_logprobs[range], &what);
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_launch() {
    let Some(cuda) = gpu() else { return };
    for &shape in cases(&[(2048, 2048), (248_320, 248_320)], 1) {
        let logits = rows(shape, 2);
        let all = on_gpu(&cuda, &logits, shape, (64, 10), 15);
        for row in 0..10 {
            let own = &logits[row * shape.1..][..shape.1];
            let alone = on_gpu(&cuda, own, shape, (1, 1), 15);
            assert_eq!(alone.0, all.0[row * 15..][..15]);
            let nan_as_one = |p: &[f32]| -> Vec<f32> {
                p.iter()
                    .map(|&p| if p.is_nan() { f32::NAN } else { p })
                    .collect()
            };
            let together = nan_as_one(&all.1[row * 15..][..15]);
            assert_eq!(bits(&nan_as_one(&alone.1)), bits(&together));
        }
    }
}

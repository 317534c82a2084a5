//! `token_logprobs` against the CPU.

use super::topk::assert_logprobs;
use super::{cases, get, gpu, poisoned, put, put_batch, put_slots, put_walk};
use crate::limits::{EMIT_MAX, TOP_LOGPROBS_MAX};
use crate::testing::{below, chain, floats, rng, tree_batch};
use crate::{Backend, Cpu, ScratchNeeds, Slots, TokenLogprobs, Walk};

const POISON: u32 = 0xABAB_ABAB;

/// Four sequences of 16 rows, of which 0 and 2 ask for log-probabilities.
fn check(vocab_used: usize, vocab_rows: usize) {
    let Some(cuda) = gpu() else { return };
    let cpu = Cpu::default();
    let mut rng = rng(vocab_used as u64);
    let mut slots = Slots::new(&cpu, 4, 2, vocab_rows, vocab_used).unwrap();
    (slots.sampling[0].logprobs, slots.sampling[2].logprobs) = (1, 21);
    let tree = chain(EMIT_MAX);
    let batch = tree_batch(&[&tree[..]; 4]);
    let mut walk = Walk::new(&cpu, 5).unwrap();
    for sequence in 0..4 {
        walk.emitted[sequence] = [16, 5, 3, 1][sequence];
        for entry in sequence * EMIT_MAX..(sequence + 1) * EMIT_MAX {
            walk.path[entry] = (entry - sequence * EMIT_MAX) as u32;
            walk.tokens[entry] = below(&mut rng, vocab_used + 2) as u32;
        }
    }
    let mut logits = floats(3, batch.rows_max * vocab_rows);
    logits.iter_mut().for_each(|z| *z *= 12.0);
    logits[vocab_rows..2 * vocab_rows].fill(2.0);
    logits[2 * vocab_rows + 1] = f32::NAN;
    logits[3 * vocab_rows..4 * vocab_rows].fill(f32::NEG_INFINITY);

    let entries = 5 * EMIT_MAX;
    let poison = f32::from_bits(POISON);
    let mut logprob: Box<[f32]> = vec![poison; entries].into();
    let mut top_ids: Box<[u32]> = vec![POISON; entries * TOP_LOGPROBS_MAX].into();
    let mut top_logprobs: Box<[f32]> = vec![poison; entries * TOP_LOGPROBS_MAX].into();
    cpu.token_logprobs(TokenLogprobs {
        batch: &batch,
        slots: &slots,
        walk: &walk,
        logits: &logits.clone().into(),
        logprob: &mut logprob,
        top_ids: &mut top_ids,
        top_logprobs: &mut top_logprobs,
    })
    .unwrap();

    let needs = ScratchNeeds {
        sequences: 5,
        vocab_rows,
        ..ScratchNeeds::default()
    };
    cuda.reserve(&needs).unwrap();
    let mut gpu_logprob = poisoned(&cuda, entries);
    let mut gpu_ids = poisoned(&cuda, entries * TOP_LOGPROBS_MAX);
    let mut gpu_logprobs = poisoned(&cuda, entries * TOP_LOGPROBS_MAX);
    cuda.token_logprobs(TokenLogprobs {
        batch: &put_batch(&cuda, &batch),
        slots: &put_slots(&cuda, &slots),
        walk: &put_walk(&cuda, &walk),
        logits: &put(&cuda, &logits),
        logprob: &mut gpu_logprob,
        top_ids: &mut gpu_ids,
        top_logprobs: &mut gpu_logprobs,
    })
    .unwrap();
    let what = format!("{vocab_used} of {vocab_rows}");
    assert_eq!(get(&cuda, &gpu_ids), *top_ids, "{what}");
    let found = [get(&cuda, &gpu_logprob), get(&cuda, &gpu_logprobs)];
    for (found, expected) in found.iter().zip([&logprob, &top_logprobs]) {
        compare(found, expected, &what);
    }
}

/// The same entries are written, with the same values.
fn compare(found: &[f32], expected: &[f32], what: &str) {
    let kept = |p: &&f32| p.to_bits() != POISON;
    let count = expected.iter().filter(kept).count();
    assert_eq!(
        found.iter().filter(kept).count(),
        count,
        "{what}: entries of others"
    );
    for first in (0..found.len()).step_by(EMIT_MAX) {
        let range = first..first + EMIT_MAX;
        assert_logprobs(&found[range.clone()], &expected[range], what);
    }
}

#[test]
fn entries_are_those_of_the_cpu() {
    let all = [(7, 10), (150, 153), (2048, 2048), (248_320, 248_320)];
    for &(vocab_used, vocab_rows) in cases(&all, 3) {
        check(vocab_used, vocab_rows);
    }
}

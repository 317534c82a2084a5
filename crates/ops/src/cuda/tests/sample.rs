//! `sample` against the CPU: the same ids, whatever the options.

use rand_pcg::Pcg64;

use super::{cases, get, gpu, put, put_batch, put_slots};
use crate::limits::{LOGIT_BIAS_MAX, NONE, STOP_IDS_MAX};
use crate::testing::{Segment, batch, below, floats, random_tree, rng};
use crate::{
    Backend, Batch, Cpu, Cuda, Sample, SamplingRow, ScratchNeeds, Slots, TokenMasks, is_allowed,
};

/// What the logits of a row look like.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Some ids stand out, as a model's do.
    Peaked,
    /// top_p keeps most of the row.
    Flat,
    /// Few distinct values.
    Coarse,
    /// NaN and infinities among peaks.
    Odd,
    /// Nothing above -inf, or one value everywhere.
    Same,
}

const KINDS: [Kind; 5] = [
    Kind::Peaked,
    Kind::Flat,
    Kind::Coarse,
    Kind::Odd,
    Kind::Same,
];

fn fill(kind: Kind, rng: &mut Pcg64, logits: &mut [f32]) {
    let mut ids = |count: usize| -> Vec<usize> {
        let len = logits.len();
        (0..count).map(|_| below(rng, len)).collect()
    };
    match kind {
        Kind::Flat => logits.iter_mut().for_each(|z| *z *= 1.5),
        Kind::Coarse => logits.iter_mut().for_each(|z| *z = (*z * 3.0).round()),
        Kind::Peaked | Kind::Odd => {
            let (peaks, odd) = (ids(60), ids(6));
            logits.iter_mut().for_each(|z| *z *= 4.0);
            for (n, id) in peaks.into_iter().enumerate() {
                logits[id] += 12.0 - 0.3 * n as f32;
            }
            if matches!(kind, Kind::Odd) {
                let values = [
                    f32::NAN,
                    f32::NEG_INFINITY,
                    f32::NAN,
                    f32::INFINITY,
                    -0.0,
                    1e38,
                ];
                let infinite = below(rng, 2);
                for (n, id) in odd.into_iter().enumerate() {
                    if n != 3 || infinite == 1 {
                        logits[id] = values[n];
                    }
                }
            }
        }
        Kind::Same => {
            let value = [f32::NAN, f32::NEG_INFINITY, 2.5, -1e38][below(rng, 4)];
            logits.fill(value);
        }
    }
}

/// Rows of the kind; ids that name no token would always win.
fn logits(kind: Kind, seed: u64, rows: usize, (used, stride): (usize, usize)) -> Vec<f32> {
    let mut rng = rng(seed);
    let mut logits = floats(seed, rows * stride);
    for row in logits.chunks_mut(stride) {
        fill(kind, &mut rng, &mut row[..used]);
        row[used..].fill(1e5);
    }
    logits
}

fn pick<T: Copy>(rng: &mut Pcg64, values: &[T]) -> T {
    values[below(rng, values.len())]
}

fn random_options(rng: &mut Pcg64, row: &mut SamplingRow) {
    row.temperature = pick(rng, &[0.0, 0.3, 1.0, 1.0, 1.7]);
    row.top_k = pick(rng, &[0, 0, 0, 1, 7, 20, 20, 50, 300, 5000, 1_000_000]);
    row.top_p = pick(rng, &[1.0, 1.0, 0.95, 0.95, 0.5, 0.9999, 0.0]);
    row.min_p = pick(rng, &[0.0, 0.0, 0.05, 0.3, 2.0]);
    row.repetition_penalty = pick(rng, &[1.0, 1.0, 1.3]);
    row.presence_penalty = pick(rng, &[0.0, 0.0, 0.6]);
    row.frequency_penalty = pick(rng, &[0.0, 0.0, 0.25]);
    row.seed_low = below(rng, 1 << 32) as u32;
    row.seed_high = below(rng, 1 << 32) as u32;
    row.choice = below(rng, 3) as u32;
    row.bias_count = pick(rng, &[0, 0, 0, 3, 40, LOGIT_BIAS_MAX as u32]);
    row.stop_count = pick(rng, &[0, 2, STOP_IDS_MAX as u32]);
    row.tokens_min = pick(rng, &[0, 0, 6]);
    row.tokens_max = u32::MAX;
    row.context_max = u32::MAX;
}

/// Slots of random options and histories. Ids come from the whole row, a few of them often.
fn random_slots(rng: &mut Pcg64, count: usize, (used, stride): (usize, usize)) -> Slots<Cpu> {
    let mut slots = Slots::new(&Cpu::default(), count, 2, stride, used).unwrap();
    let words = Slots::<Cpu>::seen_words(stride);
    for slot in 0..count {
        random_options(rng, &mut slots.sampling[slot]);
        slots.emitted[slot] = below(rng, 8) as u32;
        for n in 0..STOP_IDS_MAX {
            slots.stop_ids[slot * STOP_IDS_MAX + n] = below(rng, used + 3) as u32;
        }
        for n in slot * LOGIT_BIAS_MAX..(slot + 1) * LOGIT_BIAS_MAX {
            let end = pick(rng, &[20, used + 3]);
            slots.bias_ids[n] = below(rng, end) as u32;
            slots.bias_values[n] = pick(rng, &[-1.5, 0.7, 3.1, f32::NEG_INFINITY, -0.3]);
        }
        for _ in 0..100 {
            let end = pick(rng, &[50, used]);
            let id = below(rng, end);
            slots.prompt_seen[slot * words + id / 32] |= 1 << (id % 32);
            let end = pick(rng, &[50, used]);
            slots.generated[slot * stride + below(rng, end)] += 1;
        }
    }
    slots
}

/// One random tree of up to `rows` rows for every slot.
fn random_batch(rng: &mut Pcg64, slots: usize, rows: usize, used: usize) -> Batch<Cpu> {
    let trees: Vec<Vec<i32>> = (0..slots)
        .map(|slot| {
            let rows = 1 + below(rng, rows);
            random_tree(slot as u64, rows)
        })
        .collect();
    let tokens: Vec<Vec<u32>> = trees
        .iter()
        .map(|tree| {
            let id = |_| {
                let end = pick(rng, &[20, used + 3]);
                below(rng, end) as u32
            };
            tree.iter().map(id).collect()
        })
        .collect();
    let segments: Vec<_> = (trees.iter().zip(&tokens).enumerate())
        .map(|(slot, (parent, token))| Segment {
            slot: slot as u32,
            token,
            parent,
        })
        .collect();
    batch(&segments)
}

/// Masks for two rows of three: of no id, of one, of a few and a run, of about half.
fn random_masks(rng: &mut Pcg64, rows: usize, (used, stride): (usize, usize)) -> TokenMasks<Cpu> {
    let mut masks = TokenMasks::new(&Cpu::default(), rows, stride).unwrap();
    for row in 0..rows {
        let words = &mut masks.words[row * masks.words_per_row..][..masks.words_per_row];
        masks.masked[row] = u32::from(below(rng, 3) > 0);
        let density = pick(rng, &[0, 1, 300, 100_000]);
        words.fill(if density == 100_000 { u32::MAX } else { 0 });
        for _ in 0..density.min(used) {
            let id = below(rng, used);
            words[id / 32] ^= 1 << (id % 32);
        }
        if density == 300 {
            let first = below(rng, words.len());
            words[first..].fill(u32::MAX);
        }
    }
    masks
}

/// Choices and finiteness; 777 where nothing is written.
fn on_cpu(
    batch: &Batch<Cpu>,
    slots: &Slots<Cpu>,
    masks: Option<&TokenMasks<Cpu>>,
    logits: &[f32],
) -> (Vec<u32>, Vec<u32>) {
    let mut choice: Box<[u32]> = vec![777; batch.rows_max].into();
    let mut finite = choice.clone();
    let op = Sample {
        rows: batch.rows(batch.rows_max),
        batch,
        slots,
        masks,
        logits: &logits.into(),
        choice: &mut choice,
        finite: &mut finite,
    };
    Cpu::default().sample(op).unwrap();
    (choice.into(), finite.into())
}

fn on_gpu(
    cuda: &Cuda,
    batch: &Batch<Cpu>,
    slots: &Slots<Cpu>,
    masks: Option<&TokenMasks<Cpu>>,
    logits: &[f32],
) -> (Vec<u32>, Vec<u32>) {
    let needs = ScratchNeeds {
        rows: batch.rows_max,
        vocab_rows: slots.vocab_rows,
        ..ScratchNeeds::default()
    };
    cuda.reserve(&needs).unwrap();
    let mut choice = put(cuda, &vec![777; batch.rows_max]);
    let mut finite = put(cuda, &vec![777; batch.rows_max]);
    let tables = put_batch(cuda, batch);
    let masks = masks.map(|masks| TokenMasks {
        rows_max: masks.rows_max,
        words_per_row: masks.words_per_row,
        masked: put(cuda, &masks.masked),
        words: put(cuda, &masks.words),
    });
    let op = Sample {
        rows: tables.rows(batch.rows_max),
        batch: &tables,
        slots: &put_slots(cuda, slots),
        masks: masks.as_ref(),
        logits: &put(cuda, logits),
        choice: &mut choice,
        finite: &mut finite,
    };
    cuda.sample(op).unwrap();
    (get(cuda, &choice), get(cuda, &finite))
}

/// Differences without masks and with random ones, a line each.
fn compare(
    cuda: &Cuda,
    batch: &Batch<Cpu>,
    slots: &Slots<Cpu>,
    logits: &[f32],
    what: &str,
) -> Vec<String> {
    let shape = (slots.vocab_used, slots.vocab_rows);
    let masks = random_masks(&mut rng(what.len() as u64), batch.rows_max, shape);
    let mut wrong = compare_with(cuda, batch, slots, None, logits, what);
    let what = format!("{what}, masked");
    wrong.extend(compare_with(
        cuda,
        batch,
        slots,
        Some(&masks),
        logits,
        &what,
    ));
    wrong
}

fn compare_with(
    cuda: &Cuda,
    batch: &Batch<Cpu>,
    slots: &Slots<Cpu>,
    masks: Option<&TokenMasks<Cpu>>,
    logits: &[f32],
    what: &str,
) -> Vec<String> {
    let (choice, finite) = on_gpu(cuda, batch, slots, masks, logits);
    let (cpu_choice, cpu_finite) = on_cpu(batch, slots, masks, logits);
    let mut wrong = Vec::new();
    for row in 0..batch.rows_max {
        if (choice[row], finite[row]) != (cpu_choice[row], cpu_finite[row]) {
            let sequence = batch.row_sequence[row];
            let options = slots.sampling.get(sequence as usize);
            wrong.push(format!(
                "{what}, row {row}: {} {} for {} {}: {options:?}",
                choice[row], finite[row], cpu_choice[row], cpu_finite[row]
            ));
        }
    }
    wrong
}

fn assert_none(wrong: &[String]) {
    let first = &wrong[..wrong.len().min(8)];
    assert!(
        wrong.is_empty(),
        "{} rows differ:\n{}",
        wrong.len(),
        first.join("\n")
    );
}

#[test]
fn small_vocabularies_choose_as_the_cpu_does() {
    let Some(cuda) = gpu() else { return };
    let mut rng = rng(1);
    let mut wrong = Vec::new();
    for &case in cases(&(0..60).collect::<Vec<usize>>(), 6) {
        let shape = [(150, 153), (2048, 2048), (9001, 9001)][case % 3];
        let kind = KINDS[case / 3 % KINDS.len()];
        let slots = random_slots(&mut rng, 12, shape);
        let mut batch = random_batch(&mut rng, 12, 16, shape.0);
        if case % 4 == 0 {
            batch.row_sequence[1] = NONE;
        }
        let logits = logits(kind, case as u64, batch.rows_max, shape);
        let what = format!("case {case}, {shape:?}, {kind:?}");
        wrong.extend(compare(&cuda, &batch, &slots, &logits, &what));
    }
    assert_none(&wrong);
}

#[test]
fn the_whole_vocabulary_chooses_as_the_cpu_does() {
    let Some(cuda) = gpu() else { return };
    let (mut rng, shape) = (rng(2), (248_320, 248_320));
    let mut wrong = Vec::new();
    for &case in cases(&(0..10).collect::<Vec<usize>>(), 0) {
        let kind = KINDS[case % KINDS.len()];
        let slots = random_slots(&mut rng, 10, shape);
        let batch = random_batch(&mut rng, 10, 3, shape.0);
        let logits = logits(kind, case as u64, batch.rows_max, shape);
        let what = format!("case {case}, {kind:?}");
        wrong.extend(compare(&cuda, &batch, &slots, &logits, &what));
    }
    assert_none(&wrong);
}

/// Every way to decide what is kept: candidates alone, a search among few keys, a search among
/// more equal keys than are sorted at once; each with and without a history.
#[test]
fn every_search_keeps_what_the_cpu_keeps() {
    let Some(cuda) = gpu() else { return };
    let shape = (60_000, 60_000);
    let mut wrong = Vec::new();
    for &kind in cases(&[Kind::Coarse, Kind::Flat, Kind::Peaked], 1) {
        let kept = [
            (900, 0.99),
            (0, 0.9),
            (0, 1.0),
            (32, 1.0),
            (33, 0.7),
            (900, 1.0),
            (30_000, 1.0),
            (30_000, 0.6),
            (59_999, 0.9999),
            (60_000, 0.3),
        ];
        for &(top_k, top_p) in cases(&kept, 2) {
            let mut slots = random_slots(&mut rng(3), 16, shape);
            for (slot, row) in slots.sampling.iter_mut().enumerate() {
                (row.temperature, row.top_k, row.top_p) = (0.8, top_k, top_p);
                (row.min_p, row.tokens_min, row.bias_count) = (0.0, 0, 0);
                row.repetition_penalty = 1.0;
                row.presence_penalty = 0.0;
                row.frequency_penalty = if slot < 8 { 0.0 } else { 0.5 };
            }
            let parents = [[-1]; 16];
            let trees: Vec<&[i32]> = parents.iter().map(|tree| &tree[..]).collect();
            let batch = crate::testing::tree_batch(&trees);
            let logits = logits(kind, 4, batch.rows_max, shape);
            let what = format!("{kind:?}, top_k {top_k}, top_p {top_p}");
            wrong.extend(compare(&cuda, &batch, &slots, &logits, &what));
        }
    }
    assert_none(&wrong);
}

/// A mask bans on the device what it bans on the host, in greedy rows without a history as well:
/// the favourite of every row is banned, or the only one that is not.
#[test]
fn masks_decide_greedy_and_drawn_rows() {
    let Some(cuda) = gpu() else { return };
    let shape = (60_000, 60_003);
    let mut slots = Slots::new(&Cpu::default(), 2, 2, shape.1, shape.0).unwrap();
    for (row, temperature) in slots.sampling.iter_mut().zip([0.0, 1.0]) {
        random_options(&mut rng(1), row);
        (row.temperature, row.top_k, row.top_p, row.min_p) = (temperature, 0, 0.9, 0.0);
        (row.bias_count, row.tokens_min) = (0, 0);
        (row.repetition_penalty, row.presence_penalty) = (1.0, 0.0);
        row.frequency_penalty = 0.0;
    }
    let batch = crate::testing::tree_batch(&[&[-1, 0, 1], &[-1, 0, 0]]);
    let logits = logits(Kind::Peaked, 7, batch.rows_max, shape);
    let mut masks = TokenMasks::new(&Cpu::default(), batch.rows_max, shape.1).unwrap();
    let free = on_gpu(&cuda, &batch, &slots, None, &logits).0;
    for (row, &favourite) in free.iter().take(6).enumerate() {
        masks.masked[row] = 1;
        let words = &mut masks.words[row * masks.words_per_row..][..masks.words_per_row];
        let only = row % 3 == 0;
        words.fill(if only { 0 } else { u32::MAX });
        words[favourite as usize / 32] ^= 1 << (favourite % 32);
    }
    let found = on_gpu(&cuda, &batch, &slots, Some(&masks), &logits);
    assert_eq!(
        found,
        on_cpu(&batch, &slots, Some(&masks), &logits),
        "as on the CPU"
    );
    for (row, (&chosen, favourite)) in found.0.iter().zip(&free).take(6).enumerate() {
        assert!(is_allowed(masks.row(row).unwrap(), chosen));
        assert_eq!(chosen == *favourite, row % 3 == 0, "row {row}");
    }
}

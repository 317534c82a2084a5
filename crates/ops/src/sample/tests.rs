mod masks;

use rand_pcg::Pcg64;

use super::*;
use crate::SamplingRow;
use crate::testing::{Segment, batch, below, bits, chain, floats, rng, slots, tree_batch};

const VOCAB: usize = 150;
const VOCAB_ROWS: usize = VOCAB + 3;

/// Random logits of `rows` rows; ids that name no token would always win.
fn logits(seed: u64, rows: usize) -> Vec<f32> {
    let mut logits: Vec<f32> = floats(seed, rows * VOCAB_ROWS)
        .iter()
        .map(|z| 3.0 * z)
        .collect();
    for row in logits.chunks_mut(VOCAB_ROWS) {
        row[VOCAB..].fill(100.0);
    }
    logits
}

fn choices(batch: &Batch<Cpu>, slots: &Slots<Cpu>, logits: &[f32]) -> Vec<u32> {
    sampled(batch, slots, logits).0
}

/// Choices, and what is said of the logits.
fn sampled(batch: &Batch<Cpu>, slots: &Slots<Cpu>, logits: &[f32]) -> (Vec<u32>, Vec<u32>) {
    sampled_with(batch, slots, None, logits)
}

fn sampled_with(
    batch: &Batch<Cpu>,
    slots: &Slots<Cpu>,
    masks: Option<&TokenMasks<Cpu>>,
    logits: &[f32],
) -> (Vec<u32>, Vec<u32>) {
    let rows = batch.live[0] as usize;
    let mut finite = vec![777; batch.rows_max].into();
    let mut choice = vec![777; batch.rows_max].into();
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
    let padding = choice[rows..].iter().chain(&finite[rows..]);
    assert!(padding.into_iter().all(|&word| word == 777), "padding rows");
    (choice[..rows].into(), finite[..rows].into())
}

/// The token of a single row in slot 0.
fn one(slots: &Slots<Cpu>, logits: &[f32]) -> u32 {
    choices(&tree_batch(&[&[-1]]), slots, logits)[0]
}

fn with(options: impl Fn(&mut SamplingRow)) -> Slots<Cpu> {
    let mut slots = slots(1, VOCAB);
    options(&mut slots.sampling[0]);
    slots
}

#[test]
fn greedy_takes_the_largest_and_the_lower_id_of_equals() {
    let slots = with(|_| ());
    for seed in 0..50 {
        let mut logits = logits(seed, 1);
        let largest = logits[..VOCAB].iter().copied().fold(f32::MIN, f32::max);
        let first = logits.iter().position(|&z| z == largest).unwrap();
        assert_eq!(one(&slots, &logits), first as u32);
        logits[VOCAB - 1] = largest;
        assert_eq!(one(&slots, &logits), first as u32);
        logits[0] = largest;
        assert_eq!(one(&slots, &logits), 0);
    }
}

/// Ids that top_k, top_p and min_p leave, and their probabilities before the filters, in f64.
fn kept(logits: &[f32], options: &SamplingRow) -> Vec<(u32, f64)> {
    let weight = |z: f32| (f64::from(z) / f64::from(options.temperature)).exp();
    let mut ids: Vec<(u32, f64)> = (0u32..).zip(logits.iter().map(|&z| weight(z))).collect();
    ids.sort_by(|a, b| b.1.total_cmp(&a.1));
    if options.top_k > 0 {
        ids.truncate(options.top_k as usize);
    }
    let total: f64 = ids.iter().map(|id| id.1).sum();
    let largest = ids[0].1;
    let mut mass = 0.0;
    ids.retain(|id| {
        let is_kept = mass == 0.0 || mass < f64::from(options.top_p) * total;
        mass += id.1;
        is_kept
    });
    ids.retain(|id| id.1 >= f64::from(options.min_p) * largest);
    ids.sort_by_key(|id| id.0);
    ids
}

fn random_options(rng: &mut Pcg64, row: &mut SamplingRow) {
    row.temperature = [0.3, 1.0, 1.7][below(rng, 3)];
    row.top_k = [0, 1, 7, 40, 400][below(rng, 5)];
    row.top_p = [1.0, 0.9, 0.51, 0.0][below(rng, 4)];
    row.min_p = [0.0, 0.05, 0.3][below(rng, 3)];
    row.seed_low = below(rng, 1 << 32) as u32;
    row.seed_high = below(rng, 1 << 32) as u32;
    row.choice = below(rng, 3) as u32;
}

#[test]
fn draws_follow_the_cumulative_probability_of_what_the_filters_leave() {
    let mut rng = rng(1);
    for case in 0..2000 {
        let mut slots = slots(1, VOCAB);
        random_options(&mut rng, &mut slots.sampling[0]);
        slots.emitted[0] = case % 5;
        let options = slots.sampling[0];
        let logits = logits(u64::from(case), 1);
        let chosen = one(&slots, &logits);
        let kept = kept(&logits[..VOCAB], &options);
        let place = kept.iter().position(|id| id.0 == chosen);
        let place = place.unwrap_or_else(|| panic!("{chosen} is filtered out by {options:?}"));
        let total: f64 = kept.iter().map(|id| id.1).sum();
        let before: f64 = kept[..place].iter().map(|id| id.1).sum();
        let seed = u64::from(options.seed_high) << 32 | u64::from(options.seed_low);
        let u = f64::from(uniform(seed, case % 5, options.choice));
        let (low, high) = (before / total, (before + kept[place].1) / total);
        assert!(
            low - 1e-5 <= u && u < high + 1e-5,
            "{u} outside {low}..{high}"
        );
    }
}

#[test]
fn a_row_has_the_index_and_history_of_its_own_path() {
    // 0 - 1 - 3 and 0 - 2; tokens 10 and 20 in turn.
    let parent = [-1, 0, 0, 1];
    let token = [5, 10, 20, 10];
    let mut slots = with(|row| {
        row.frequency_penalty = 1.0;
        row.presence_penalty = 0.25;
        row.tokens_min = 5;
        row.stop_count = 1;
    });
    slots.stop_ids[0] = 30;
    slots.emitted[0] = 3;
    slots.generated[10] = 2;
    slots.prompt_seen[0] |= 1 << 20;
    let batch = batch(&[Segment {
        slot: 0,
        token: &token,
        parent: &parent,
    }]);
    let chosen = |z: [f32; 4]| {
        let mut row = vec![-50.0; VOCAB_ROWS];
        (row[10], row[20], row[30], row[40]) = (z[0], z[1], z[2], z[3]);
        choices(&batch, &slots, &row.repeat(4))
    };
    // Output index of the rows: 3, 4, 4, 5. Stop id 30 is banned below 5.
    assert_eq!(chosen([0.0, 0.0, 9.0, 1.0]), [40, 40, 40, 30]);
    // 10 was emitted 2, 3, 2 and 4 times: 10 - count - 0.25.
    assert_eq!(chosen([10.0, -9.0, -9.0, 6.5]), [10, 10, 10, 40]);
    assert_eq!(chosen([10.0, -9.0, -9.0, 7.0]), [10, 40, 10, 40]);
    // 20 stands in the prompt, which frequency and presence do not count, and on the path of row 2.
    assert_eq!(chosen([-9.0, 5.0, -9.0, 4.5]), [20, 20, 40, 20]);
}

#[test]
fn repetition_divides_what_is_positive_and_multiplies_what_is_negative() {
    let mut slots = with(|row| row.repetition_penalty = 2.0);
    slots.prompt_seen[1] |= 1 << 8;
    slots.generated[50] = 3;
    let chosen = |seen: f32, free: f32| {
        let mut row = vec![-50.0; VOCAB_ROWS];
        (row[40], row[50], row[60]) = (seen, seen - 0.01, free);
        one(&slots, &row)
    };
    assert_eq!(chosen(4.0, 1.9), 40);
    assert_eq!(chosen(4.0, 2.1), 60);
    assert_eq!(chosen(-4.0, -7.9), 60);
    assert_eq!(chosen(-4.0, -8.1), 40);
}

#[test]
fn a_bias_is_added_and_bans_hold() {
    let mut slots = with(|row| {
        row.bias_count = 3;
        row.temperature = 1.0;
        row.top_k = 1;
    });
    slots.bias_ids[..3].copy_from_slice(&[3, 4, 4_000_000]);
    slots.bias_values[..3].copy_from_slice(&[f32::NEG_INFINITY, 2.0, 100.0]);
    let mut row = vec![0.0; VOCAB_ROWS];
    (row[3], row[4], row[5]) = (f32::INFINITY, 1.0, 2.5);
    assert_eq!(one(&slots, &row), 4);
    row[5] = 3.5;
    assert_eq!(one(&slots, &row), 5);
    row[3] = f32::NAN;
    assert_eq!(one(&slots, &row), 5);
}

#[test]
fn not_a_number_is_chosen_only_where_nothing_else_is_allowed() {
    for temperature in [0.0, 1.0] {
        let mut slots = with(|row| {
            row.temperature = temperature;
            row.bias_count = 1;
        });
        slots.bias_values[0] = f32::NEG_INFINITY;
        let mut row = vec![f32::NAN; VOCAB_ROWS];
        assert_eq!(one(&slots, &row), 1, "id 0 is banned");
        row[70] = -1e30;
        assert_eq!(one(&slots, &row), 70);
        row.fill(f32::NEG_INFINITY);
        assert_eq!(one(&slots, &row), 0, "all banned");
        row[9] = f32::INFINITY;
        assert_eq!(one(&slots, &row), 9);
    }
}

#[test]
fn a_row_does_not_depend_on_the_rows_beside_it_or_on_threads() {
    let mut rng = rng(2);
    let mut slots = slots(8, VOCAB);
    for row in slots.sampling.iter_mut() {
        random_options(&mut rng, row);
        row.frequency_penalty = 0.5;
    }
    let trees = vec![chain(64); 8];
    let trees: Vec<&[i32]> = trees.iter().map(|tree| &tree[..]).collect();
    let batch = tree_batch(&trees);
    let logits = logits(3, 512);
    assert!(logits.len() > PARALLEL_LOGITS);
    let all = crate::testing::on_every_path(|| {
        let chosen = choices(&batch, &slots, &logits);
        chosen.into_iter().map(|id| id as f32).collect()
    });
    for sequence in 0..8 {
        let segment = Segment {
            slot: sequence,
            token: &[0; 64],
            parent: trees[0],
        };
        let first = sequence as usize * 64;
        let logits = &logits[first * VOCAB_ROWS..][..64 * VOCAB_ROWS];
        let alone = choices(&crate::testing::batch(&[segment]), &slots, logits);
        let alone: Vec<f32> = alone.into_iter().map(|id| id as f32).collect();
        assert_eq!(bits(&alone), bits(&all[first..first + 64]));
    }
}

#[test]
fn a_row_is_finite_if_every_logit_of_a_token_is() {
    let slots = with(|row| {
        row.bias_count = 1;
        row.temperature = 0.5;
    });
    let batch = tree_batch(&[&chain(5)]);
    let mut logits = logits(4, 5);
    // What a bias does to a logit, and what stands behind the last token, says nothing.
    logits[VOCAB] = f32::NAN;
    logits[VOCAB_ROWS] = f32::NEG_INFINITY;
    logits[2 * VOCAB_ROWS + VOCAB - 1] = f32::NAN;
    logits[4 * VOCAB_ROWS + 70] = f32::INFINITY;
    let (_, finite) = sampled(&batch, &slots, &logits);
    assert_eq!(finite, [1, 0, 0, 1, 0]);
}

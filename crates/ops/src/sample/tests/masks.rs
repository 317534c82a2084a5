//! Rows that may not choose every token.

use super::*;
use crate::is_allowed;

/// Masks for `rows` rows; those of `masked` allow the ids that `allow` says.
fn masks(rows: usize, masked: &[usize], allow: impl Fn(usize, u32) -> bool) -> TokenMasks<Cpu> {
    let mut masks = TokenMasks::new(&Cpu::default(), rows, VOCAB_ROWS).unwrap();
    // A row without a mask: its words mean nothing.
    masks.words.fill(0xABAB_ABAB);
    for &row in masked {
        masks.masked[row] = 1;
        let first = row * masks.words_per_row;
        masks.words[first..first + masks.words_per_row].fill(0);
        for id in (0..VOCAB_ROWS as u32).filter(|&id| allow(row, id)) {
            masks.words[first + id as usize / 32] |= 1 << (id % 32);
        }
    }
    masks
}

/// The token of a single row in slot 0 that may choose the `allowed` ids only.
fn one_of(slots: &Slots<Cpu>, allowed: &[u32], logits: &[f32]) -> u32 {
    let masks = masks(3, &[0], |_, id| allowed.contains(&id));
    sampled_with(&tree_batch(&[&[-1]]), slots, Some(&masks), logits).0[0]
}

/// A mask does to a row what a bias of -inf on every other id does to its logits.
#[test]
fn a_masked_row_is_that_of_logits_without_the_others() {
    let mut rng = rng(5);
    for case in 0..400 {
        let mut slots = slots(1, VOCAB);
        let row = &mut slots.sampling[0];
        random_options(&mut rng, row);
        row.temperature = [0.0, 0.3, 1.0, 1.7][below(&mut rng, 4)];
        row.frequency_penalty = [0.0, 0.4][below(&mut rng, 2)];
        row.repetition_penalty = [1.0, 1.3][below(&mut rng, 2)];
        slots.generated[below(&mut rng, VOCAB)] = 2;
        let batch = tree_batch(&[&[-1, 0, 0, 1]]);
        let every = 1 + below(&mut rng, 20) as u32;
        let allow = |row: usize, id: u32| id.is_multiple_of(every) || id as usize == row;
        let masks = masks(batch.rows_max, &[0, 2, 3], allow);
        let logits = logits(case, 4);
        let chosen = sampled_with(&batch, &slots, Some(&masks), &logits);
        let mut banned = logits.clone();
        for row in [0, 2, 3] {
            for id in (0..VOCAB as u32).filter(|&id| !allow(row, id)) {
                banned[row * VOCAB_ROWS + id as usize] = f32::NEG_INFINITY;
            }
        }
        assert_eq!(chosen.0, choices(&batch, &slots, &banned), "case {case}");
        assert_eq!(chosen.1, [1; 4], "the raw logits are finite");
        for row in [0, 2, 3] {
            assert!(allow(row, chosen.0[row]));
        }
    }
}

#[test]
fn a_ban_of_a_mask_holds_against_any_bias_and_logit() {
    for temperature in [0.0, 1.0] {
        let mut slots = with(|row| {
            row.temperature = temperature;
            row.bias_count = 2;
        });
        slots.bias_ids[..2].copy_from_slice(&[3, 4]);
        slots.bias_values[..2].copy_from_slice(&[f32::INFINITY, 90.0]);
        let mut row = vec![-40.0; VOCAB_ROWS];
        (row[3], row[7], row[8]) = (5.0, f32::INFINITY, f32::NAN);
        assert_eq!(one_of(&slots, &[4, 60, 149], &row), 4);
        assert_eq!(one_of(&slots, &[149], &row), 149);
        assert_eq!(one_of(&slots, &[149, 7], &row), 7);
        assert_eq!(one_of(&slots, &[8, 149], &row), 149, "NaN beside another");
        assert_eq!(one_of(&slots, &[8], &row), 8, "only NaN is allowed");
        assert_eq!(one_of(&slots, &[], &row), 0, "all banned");
        // Ids that name no token are not there, whatever the mask says.
        assert_eq!(one_of(&slots, &[VOCAB as u32, 33], &row), 33);
    }
}

#[test]
fn stop_ids_that_are_banned_stay_banned_in_a_mask() {
    let mut slots = with(|row| {
        row.tokens_min = 1;
        row.stop_count = 1;
    });
    slots.stop_ids[0] = 30;
    let mut row = vec![0.0; VOCAB_ROWS];
    row[30] = 9.0;
    assert_eq!(one_of(&slots, &[30, 31, 32], &row), 31);
    slots.emitted[0] = 1;
    assert_eq!(one_of(&slots, &[30, 31, 32], &row), 30);
}

#[test]
fn finite_tells_of_raw_logits() {
    let batch = tree_batch(&[&chain(3)]);
    let slots = with(|_| ());
    let mut logits = logits(4, 3);
    logits[VOCAB_ROWS + 9] = f32::NAN;
    let masks = masks(batch.rows_max, &[0, 1, 2], |_, id| id == 5);
    assert!(is_allowed(masks.row(1).unwrap(), 5));
    let found = sampled_with(&batch, &slots, Some(&masks), &logits);
    assert_eq!(found, (vec![5; 3], vec![1, 0, 1]));
}

#[test]
#[should_panic(expected = "masks for 2 rows")]
fn masks_for_fewer_rows_are_refused() {
    let masks = masks(2, &[], |_, _| true);
    sampled_with(
        &tree_batch(&[&[-1, 0, 1]]),
        &with(|_| ()),
        Some(&masks),
        &logits(1, 5),
    );
}

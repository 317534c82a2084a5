use std::collections::HashMap;

use super::*;
use crate::TreeTablesFrom;
use crate::testing::{Segment, batch, slots};

/// One sequence: its tree, the choice at every row, and where it stands.
struct Case<'a> {
    token: &'a [u32],
    parent: &'a [i32],
    choice: &'a [u32],
}

#[derive(Debug, PartialEq)]
struct Outcome {
    path: Vec<u32>,
    tokens: Vec<u32>,
    reason: Option<CutReason>,
}

fn walk(cases: &[Case<'_>], slots: &Slots<Cpu>, first: bool) -> Vec<Outcome> {
    let segments: Vec<_> = (cases.iter().enumerate())
        .map(|(slot, case)| Segment {
            slot: slot as u32,
            token: case.token,
            parent: case.parent,
        })
        .collect();
    let batch = batch(&segments);
    let mut tree = TreeTables::new(&Cpu::default(), batch.rows_max).unwrap();
    if first {
        // Not computed for such a batch: whatever is read from them must not matter.
        tree.first_child.fill(0);
    } else {
        Cpu::default()
            .tree_tables(TreeTablesFrom {
                batch: &batch,
                padding: None,
                tables: &mut tree,
            })
            .unwrap();
    }
    let mut choice: Vec<u32> = cases.iter().flat_map(|case| case.choice).copied().collect();
    choice.extend([77, 77]);
    let mut walk = Walk::new(&Cpu::default(), cases.len()).unwrap();
    Cpu::default()
        .accept_walk(AcceptWalk {
            batch: &batch,
            tree: &tree,
            slots,
            first,
            choice: &choice.into(),
            walk: &mut walk,
        })
        .unwrap();
    (0..cases.len())
        .map(|sequence| Outcome {
            path: walk.path[sequence * EMIT_MAX..][..walk.path_rows[sequence] as usize].into(),
            tokens: walk.tokens[sequence * EMIT_MAX..][..walk.emitted[sequence] as usize].into(),
            reason: CutReason::from_code(walk.reason[sequence]),
        })
        .collect()
}

#[test]
fn worked_examples() {
    let token = &[5, 11, 21, 12, 31, 21, 32];
    let parent = &[-1, 0, 1, 0, 2, 3, 2];
    let case = |choice| Case {
        token,
        parent,
        choice,
    };
    let cases = [
        case(&[11, 21, 32, 21, 5, 31, 99]),
        case(&[12, 0, 0, 21, 0, 77, 0]),
        case(&[13, 21, 32, 21, 5, 31, 99]),
    ];
    let outcome = |path: &[u32], tokens: &[u32]| Outcome {
        path: path.into(),
        tokens: tokens.into(),
        reason: None,
    };
    assert_eq!(
        walk(&cases, &slots(3, 100), false),
        [
            outcome(&[0, 1, 2, 6], &[11, 21, 32, 99]),
            outcome(&[0, 3, 5], &[12, 21, 77]),
            outcome(&[0], &[13]),
        ]
    );
}

/// Every tree of up to five rows and every assignment of choices, with tokens that repeat across
/// branches: a node's token is its number among its siblings.
#[test]
fn equals_a_walk_by_map() {
    let slots = slots(1, 10);
    let mut walks = 0;
    for rows in 1..=5_usize {
        for tree in 0..(1..rows).product::<usize>() {
            let (mut parent, mut rest) = (vec![-1], tree);
            for row in 1..rows {
                parent.push((rest % row) as i32);
                rest /= row;
            }
            let token: Vec<u32> = (0..rows)
                .map(|row| (0..row).filter(|&r| parent[r] == parent[row]).count() as u32)
                .collect();
            let children: HashMap<(u32, u32), u32> = (1..rows)
                .map(|row| ((parent[row] as u32, token[row]), row as u32))
                .collect();
            for code in 0..3_usize.pow(rows as u32) {
                let choice: Vec<u32> = (0..rows)
                    .map(|row| (code / 3_usize.pow(row as u32) % 3) as u32)
                    .collect();
                let (mut path, mut tokens) = (vec![0], vec![]);
                loop {
                    let row = path[path.len() - 1];
                    tokens.push(choice[row as usize]);
                    match children.get(&(row, choice[row as usize])) {
                        Some(&next) => path.push(next),
                        None => break,
                    }
                }
                let case = Case {
                    token: &token,
                    parent: &parent,
                    choice: &choice,
                };
                let reason = None;
                let expected = [Outcome {
                    path,
                    tokens,
                    reason,
                }];
                assert_eq!(walk(&[case], &slots, false), expected);
                walks += 1;
            }
        }
    }
    assert_eq!(walks, 3 + 9 + 2 * 27 + 6 * 81 + 24 * 243);
}

/// A chain of 16 rows whose nodes are all chosen, and a last token 200 of the target's own.
fn chain(rows: usize) -> (Vec<u32>, Vec<i32>, Vec<u32>) {
    let token: Vec<u32> = (100..100 + rows as u32).collect();
    let parent = (-1..rows as i32 - 1).collect();
    let choice = token[1..].iter().copied().chain([200]).collect();
    (token, parent, choice)
}

fn expected(kept: usize, reason: Option<CutReason>) -> Outcome {
    let (_, _, choice) = chain(16);
    Outcome {
        // The target's own token (number 16) has no row; an accepted one has.
        path: (0..16.min(kept as u32 + 1)).collect(),
        tokens: choice[..kept].into(),
        reason,
    }
}

#[test]
fn every_cut_falls_where_it_should() {
    let (token, parent, choice) = chain(16);
    for kept in 1..=16 {
        let mut slots = slots(3, 300);
        slots.length.copy_from_slice(&[50, 50, 50]);
        slots.emitted.copy_from_slice(&[8, 8, 8]);
        // Slot 0: a stop id among others.
        slots.sampling[0].stop_count = 2;
        slots.stop_ids[..3].copy_from_slice(&[250, choice[kept - 1], choice[0]]);
        slots.sampling[1].tokens_max = 8 + kept as u32;
        // 50 tokens before the root, the root, the tokens of this step.
        slots.sampling[2].context_max = 51 + kept as u32;
        let case = || Case {
            token: &token,
            parent: &parent,
            choice: &choice,
        };
        let reasons = [CutReason::Stop, CutReason::Tokens, CutReason::Context];
        assert_eq!(
            walk(&[case(), case(), case()], &slots, false),
            reasons.map(|reason| expected(kept, Some(reason)))
        );
    }
}

#[test]
fn a_stop_wins_over_a_limit_and_tokens_over_context() {
    let (token, parent, choice) = chain(16);
    let mut slots = slots(2, 300);
    for slot in 0..2 {
        slots.sampling[slot].tokens_max = 5;
        slots.sampling[slot].context_max = 6;
    }
    slots.sampling[0].stop_count = 1;
    slots.stop_ids[0] = choice[4];
    let case = || Case {
        token: &token,
        parent: &parent,
        choice: &choice,
    };
    assert_eq!(
        walk(&[case(), case()], &slots, false),
        [CutReason::Stop, CutReason::Tokens].map(|reason| expected(5, Some(reason)))
    );
}

/// The stop id is every token: the first that may end the sequence has `tokens_min` before it.
#[test]
fn stop_ids_wait_for_the_least_number_of_tokens() {
    let (token, parent, choice) = chain(16);
    for tokens_min in 0..=30_u32 {
        let mut slots = slots(1, 300);
        slots.emitted[0] = 8;
        slots.sampling[0].tokens_min = tokens_min;
        slots.sampling[0].stop_count = 16;
        slots.stop_ids[..16].copy_from_slice(&choice);
        let case = Case {
            token: &token,
            parent: &parent,
            choice: &choice,
        };
        let kept = tokens_min.saturating_sub(8) as usize + 1;
        let outcome = match kept {
            ..=16 => expected(kept, Some(CutReason::Stop)),
            _ => expected(16, None),
        };
        assert_eq!(walk(&[case], &slots, false), [outcome]);
    }
}

#[test]
fn a_path_holds_as_many_rows_as_the_tables() {
    let (token, parent, choice) = chain(20);
    let case = Case {
        token: &token,
        parent: &parent,
        choice: &choice,
    };
    let outcome = &walk(&[case], &slots(1, 300), false)[0];
    assert_eq!(outcome.path, (0..16).collect::<Vec<u32>>());
    assert_eq!(outcome.tokens, choice[..16]);
    assert_eq!(outcome.reason, None);
}

#[test]
fn the_first_token_follows_the_prompt() {
    let case = |choice| Case {
        token: &[3],
        parent: &[-1],
        choice,
    };
    let mut slots = slots(5, 300);
    slots.length.fill(50);
    slots.sampling[1].context_max = 51;
    slots.sampling[2].context_max = 52;
    slots.sampling[3].tokens_max = 1;
    slots.sampling[4].stop_count = 1;
    slots.stop_ids[4 * STOP_IDS_MAX] = 9;
    // Slot 0 chooses the token of row 0: it is still no child of itself.
    let outcomes = walk(
        &[case(&[3]), case(&[9]), case(&[9]), case(&[9]), case(&[9])],
        &slots,
        true,
    );
    let reasons = [
        None,
        Some(CutReason::Context),
        None,
        Some(CutReason::Tokens),
        Some(CutReason::Stop),
    ];
    for (sequence, (outcome, reason)) in outcomes.into_iter().zip(reasons).enumerate() {
        let tokens = vec![if sequence == 0 { 3 } else { 9 }];
        let path = vec![0];
        assert_eq!(
            outcome,
            Outcome {
                path,
                tokens,
                reason
            }
        );
    }
}

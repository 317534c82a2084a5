//! Steps whose sequences share their rows.

use super::*;

/// A sharing step of `rows.len()` random sequences; sequence s was given `rows[s]` rows.
fn random(rng: &mut Pcg64, rows: &[usize], quantised: bool) -> Step {
    let (depths, k) = (rng.random_range(1..=15), rng.random_range(1..=8));
    let logprobs: Vec<f32> = (0..rows.len() * depths)
        .flat_map(|_| {
            let mut row = random_row(rng, k, quantised);
            if rng.random_range(0..40) == 0 {
                row[rng.random_range(0..k)] = f32::NAN;
            }
            row
        })
        .collect();
    let mut step = Step::new(depths, k, &logprobs, rows);
    step.shared = true;
    for (sequence, &rows) in rows.iter().enumerate() {
        step.plan.rows[sequence] = rows as u32;
        step.plan.rows_max[sequence] = 64;
        step.plan.chain[sequence] = u32::from(rng.random_range(0..3) == 0);
        step.depth_max[sequence] = rng.random_range(0..=depths as u32);
    }
    // What the op writes.
    let batch = &mut step.batch;
    batch.live[0] = 9;
    batch.row_sequence.fill(9);
    batch.sequence_start.fill(9);
    batch.sequence_rows.fill(9);
    step
}

/// The same step, every sequence alone with so many rows.
fn unshared(step: &Step, rows: &[usize]) -> Step {
    let mut alone = Step::new(step.depths, step.k, &step.logprobs, rows);
    alone.plan.block.copy_from_slice(&step.plan.block);
    alone.plan.chain.copy_from_slice(&step.plan.chain);
    alone.depth_max.clone_from(&step.depth_max);
    alone.run()
}

/// Scores in order of choice.
fn scores(step: &Step, sequence: usize) -> Vec<f32> {
    if step.plan.block[sequence] == NONE {
        return Vec::new();
    }
    let len = step.depths * step.k;
    let block = step.plan.block[sequence] as usize * len..;
    let candidates = Candidates::new(
        &step.ids[block.clone()][..len],
        &step.logprobs[block][..len],
        step.k,
        step.depth_max[sequence] as usize,
    );
    let nodes = match step.plan.chain[sequence] {
        1 => candidates.chain(),
        _ => candidates.best_first().take(63).collect(),
    };
    nodes.iter().map(|node| node.score).collect()
}

/// Rows by the rule itself: one node after the other, always the best that is left.
fn one_by_one(step: &Step, given: &[usize]) -> Vec<usize> {
    let shares = |sequence: usize| step.plan.rows_max[sequence] > 0;
    let mut rows: Vec<usize> = (0..given.len())
        .map(|s| if shares(s) { 1 } else { given[s] })
        .collect();
    let scores: Vec<Vec<f32>> = (0..given.len()).map(|s| scores(step, s)).collect();
    let pool: usize = (0..given.len())
        .filter(|&s| shares(s))
        .map(|s| given[s] - 1)
        .sum();
    for _ in 0..pool {
        let mut best: Option<(f32, usize)> = None;
        for sequence in (0..given.len()).filter(|&s| shares(s)) {
            let cap = step.plan.rows_max[sequence] as usize;
            let next = scores[sequence].get(rows[sequence] - 1);
            let next = next.filter(|_| rows[sequence] < cap);
            if let Some(&score) = next
                && best.is_none_or(|(other, _)| score > other)
            {
                best = Some((score, sequence));
            }
        }
        let Some((_, sequence)) = best else { break };
        rows[sequence] += 1;
    }
    rows
}

fn rows_of(step: &Step) -> Vec<usize> {
    let live = step.batch.live[1] as usize;
    let rows = step.batch.sequence_rows[..live].iter();
    rows.map(|&rows| rows as usize).collect()
}

#[test]
fn rows_go_to_the_best_nodes_of_all_and_trees_are_those_of_so_many_rows() {
    let mut rng = Pcg64::seed_from_u64(7);
    let (mut spare, mut capped) = (0, 0);
    for instance in 0..600 {
        let count = rng.random_range(1..=12);
        let most = [2, 8, 40][rng.random_range(0..3)];
        let given: Vec<usize> = (0..count).map(|_| rng.random_range(1..=most)).collect();
        let mut step = random(&mut rng, &given, instance % 2 == 0);
        for sequence in 0..count {
            match rng.random_range(0..6) {
                0 => step.plan.rows_max[sequence] = 0,
                1 => step.plan.rows_max[sequence] = rng.random_range(1..=20),
                2 => step.plan.block[sequence] = NONE,
                _ => {}
            }
        }
        let expected = one_by_one(&step, &given);
        let step = step.run();
        assert_eq!(
            rows_of(&step),
            expected,
            "instance {instance}, given {given:?}"
        );
        let total: usize = expected.iter().sum();
        assert_eq!(step.batch.live[0] as usize, total);
        assert!(total <= given.iter().sum());
        spare += given.iter().sum::<usize>() - total;
        let alone = unshared(&step, &expected);
        let mut start = 0;
        for (sequence, &rows) in expected.iter().enumerate() {
            assert_eq!(step.batch.sequence_start[sequence] as usize, start);
            let owners = &step.batch.row_sequence[start..start + rows];
            assert!(owners.iter().all(|&owner| owner == sequence as u32));
            assert_eq!(step.segment(sequence), alone.segment(sequence));
            assert_eq!(step.prediction(sequence), alone.prediction(sequence));
            let shares = step.plan.rows_max[sequence] > 0;
            assert!(!shares || step.segment(sequence).3.iter().all(|&padding| padding == 0));
            capped += usize::from(shares && rows == step.plan.rows_max[sequence] as usize);
            start += rows;
        }
        assert!(
            step.batch.row_sequence[start..]
                .iter()
                .all(|&owner| owner == NONE)
        );
    }
    assert!(spare > 500 && capped > 100, "{spare} {capped}");
}

#[test]
fn equal_scores_go_to_the_sequence_that_comes_first() {
    // Every node of both has the same score: a chain of certain tokens.
    let mut step = Step::new(4, 1, &[0.0; 12], &[1, 4, 2]);
    step.shared = true;
    step.plan.rows.copy_from_slice(&[1, 4, 2]);
    step.plan.rows_max.copy_from_slice(&[64, 3, 64]);
    let step = step.run();
    assert_eq!(rows_of(&step), [5, 1, 1], "4 nodes for the first");
    let mut step = Step::new(4, 1, &[0.0; 12], &[8, 4, 2]);
    step.shared = true;
    step.plan.rows.copy_from_slice(&[8, 4, 2]);
    step.plan.rows_max.copy_from_slice(&[64, 3, 64]);
    let step = step.run();
    assert_eq!(rows_of(&step), [5, 3, 5], "11 nodes: 4, 2 up to the cap, 4");
    assert_eq!(step.batch.live, [13, 3].into());
}

#[test]
fn a_sure_draft_gets_the_rows_of_an_unsure_one() {
    let sure = [0.9_f32.ln(); 8];
    let unsure = [0.2_f32.ln(); 8];
    let logprobs = [sure, unsure].concat();
    let mut step = Step::new(8, 1, &logprobs, &[5, 5]);
    step.shared = true;
    step.plan.rows.fill(5);
    step.plan.rows_max.fill(64);
    step.plan.chain.fill(1);
    // 0.9^8 = 0.43 is still above 0.2.
    assert_eq!(rows_of(&step.run()), [9, 1]);
}

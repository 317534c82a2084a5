//! Walks, sequences that move on, and results, after random choices on random trees.

use rand_pcg::Pcg64;

use super::{get, gpu, poisoned, put, put_batch, put_slots, put_tree, tree_tables_of};
use crate::testing::{Segment, batch, below, chain, random_tree, rng, slots};
use crate::*;

/// A batch of trees with choices, and sequences near their ends.
struct Step {
    batch: Batch<Cpu>,
    tree: TreeTables<Cpu>,
    slots: Slots<Cpu>,
    choice: Vec<u32>,
    finite: Vec<u32>,
    padding: Vec<u32>,
    first: bool,
}

/// Tokens of a tree: siblings differ, cousins often do not.
fn tokens(rng: &mut Pcg64, parents: &[i32]) -> Vec<u32> {
    let offset = below(rng, 3) as u32;
    let rank = |row: usize| (0..row).filter(|&r| parents[r] == parents[row]).count() as u32;
    (0..parents.len()).map(|row| offset + rank(row)).collect()
}

/// Mostly a child's token, so that paths grow long.
fn choices(rng: &mut Pcg64, parents: &[i32], tokens: &[u32]) -> Vec<u32> {
    (0..parents.len())
        .map(|row| {
            let children: Vec<usize> = (0..parents.len())
                .filter(|&child| parents[child] == row as i32)
                .collect();
            match children.is_empty() || below(rng, 8) == 0 {
                true => below(rng, 70) as u32,
                false => tokens[children[below(rng, children.len())]],
            }
        })
        .collect()
}

impl Step {
    fn random(rng: &mut Pcg64, sequences: usize, first: bool) -> Self {
        let (mut parents, mut token, mut choice) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..sequences {
            let rows = if first {
                1
            } else {
                [1 + below(rng, 64), 16, 64][below(rng, 3)]
            };
            let tree = match below(rng, 3) {
                0 => chain(rows.min(20)),
                _ => random_tree(below(rng, 1 << 20) as u64, rows),
            };
            token.push(tokens(rng, &tree));
            choice.extend(choices(rng, &tree, &token[token.len() - 1]));
            parents.push(tree);
        }
        // Slots in another order than sequences.
        let segments: Vec<_> = (0..sequences)
            .map(|s| Segment {
                slot: ((s * 7 + 3) % sequences.next_multiple_of(11)) as u32,
                token: &token[s],
                parent: &parents[s],
            })
            .collect();
        let batch = batch(&segments);
        let mut tree = tree_tables_of(&batch);
        if first {
            tree.first_child.fill(0);
        }
        let rows = batch.rows_max;
        choice.resize(rows, 5);
        Step {
            slots: limits(rng, sequences.next_multiple_of(11)),
            finite: (0..rows).map(|_| u32::from(below(rng, 40) > 0)).collect(),
            padding: (0..rows).map(|_| u32::from(below(rng, 5) == 0)).collect(),
            batch,
            tree,
            choice,
            first,
        }
    }
}

/// Slots that may end within a step.
fn limits(rng: &mut Pcg64, count: usize) -> Slots<Cpu> {
    let mut slots = slots(count, 100);
    for slot in 0..count {
        slots.length[slot] = below(rng, 100) as u32;
        slots.emitted[slot] = below(rng, 100) as u32;
        slots.pending[slot] = 9;
        for id in 0..STOP_IDS_MAX {
            slots.stop_ids[slot * STOP_IDS_MAX + id] = below(rng, 70) as u32;
        }
        let (emitted, length) = (slots.emitted[slot], slots.length[slot]);
        let row = &mut slots.sampling[slot];
        row.stop_count = [0, 0, 1, 3, STOP_IDS_MAX as u32][below(rng, 5)];
        row.tokens_min = [0, emitted + below(rng, 8) as u32][below(rng, 2)];
        row.tokens_max = [u32::MAX, emitted + 1 + below(rng, 16) as u32][below(rng, 2)];
        row.context_max = [u32::MAX, length + 1 + below(rng, 16) as u32][below(rng, 2)];
    }
    slots
}

fn poisoned_walk(cuda: &Cuda, sequences: usize) -> Walk<Cuda> {
    Walk {
        sequences_max: sequences,
        path_rows: poisoned(cuda, sequences),
        path: poisoned(cuda, sequences * EMIT_MAX),
        emitted: poisoned(cuda, sequences),
        tokens: poisoned(cuda, sequences * EMIT_MAX),
        reason: poisoned(cuda, sequences),
    }
}

/// Everything that the three ops leave behind. Entries that mean nothing are left out.
#[derive(Debug, PartialEq)]
struct After {
    paths: Vec<Vec<u32>>,
    tokens: Vec<Vec<u32>>,
    reason: Vec<u32>,
    length: Vec<u32>,
    pending: Vec<u32>,
    emitted: Vec<u32>,
    root: Vec<u32>,
    generated: Vec<u32>,
    context: [Vec<u32>; 3],
    result: Vec<u32>,
}

/// Runs the three ops with tables that are already on the device.
fn after<B: Backend>(
    backend: &B,
    step: OnDevice<B>,
    get: &dyn Fn(&B::Buf<u32>) -> Vec<u32>,
) -> After {
    let OnDevice {
        batch,
        tree,
        mut slots,
        mut walk,
        choice,
        finite,
        padding,
        prediction,
        mut context,
        mut result,
        first,
    } = step;
    let accept = AcceptWalk {
        batch: &batch,
        tree: &tree,
        slots: &slots,
        first,
        choice: &choice,
        walk: &mut walk,
    };
    backend.accept_walk(accept).unwrap();
    let pack = StepResult {
        batch: &batch,
        walk: &walk,
        padding: &padding,
        prediction: &prediction,
        finite: &finite,
        out: &mut result,
    };
    backend.step_result(pack).unwrap();
    let advance = Advance {
        batch: &batch,
        walk: &walk,
        first,
        slots: &mut slots,
        context: &mut context,
    };
    backend.advance(advance).unwrap();
    let sequences = get(&batch.live)[1] as usize;
    let rows_of = |values: Vec<u32>, counts: Vec<u32>| -> Vec<Vec<u32>> {
        (0..sequences)
            .map(|s| values[s * EMIT_MAX..][..counts[s] as usize].into())
            .collect()
    };
    let listed = get(&context.live)[0] as usize;
    let list = |values: &B::Buf<u32>| get(values)[..listed].to_vec();
    After {
        paths: rows_of(get(&walk.path), get(&walk.path_rows)),
        tokens: rows_of(get(&walk.tokens), get(&walk.emitted)),
        reason: get(&walk.reason)[..sequences].into(),
        length: get(&slots.length),
        pending: get(&slots.pending),
        emitted: get(&slots.emitted),
        root: get(&slots.root),
        generated: get(&slots.generated),
        context: [
            list(&context.source),
            list(&context.slot),
            list(&context.position),
        ],
        result: get(&result)[..sequences * RESULT_WORDS].into(),
    }
}

struct OnDevice<B: Backend> {
    batch: Batch<B>,
    tree: TreeTables<B>,
    slots: Slots<B>,
    walk: Walk<B>,
    choice: B::Buf<u32>,
    finite: B::Buf<u32>,
    padding: B::Buf<u32>,
    prediction: B::Buf<f32>,
    context: ContextRows<B>,
    result: B::Buf<u32>,
    first: bool,
}

fn on_gpu(cuda: &Cuda, step: &Step, prediction: &[f32]) -> OnDevice<Cuda> {
    let (rows, sequences) = (step.batch.rows_max, step.batch.sequences_max);
    OnDevice {
        batch: put_batch(cuda, &step.batch),
        tree: put_tree(cuda, &step.tree),
        slots: put_slots(cuda, &step.slots),
        walk: poisoned_walk(cuda, sequences),
        choice: put(cuda, &step.choice),
        finite: put(cuda, &step.finite),
        padding: put(cuda, &step.padding),
        prediction: put(cuda, prediction),
        context: ContextRows {
            rows_max: rows,
            live: poisoned(cuda, 2),
            source: poisoned(cuda, rows),
            slot: poisoned(cuda, rows),
            position: poisoned(cuda, rows),
        },
        result: poisoned(cuda, sequences * RESULT_WORDS),
        first: step.first,
    }
}

fn on_cpu(step: Step, prediction: &[f32]) -> OnDevice<Cpu> {
    let (rows, sequences) = (step.batch.rows_max, step.batch.sequences_max);
    let cpu = Cpu::default();
    OnDevice {
        walk: Walk::new(&cpu, sequences).unwrap(),
        choice: step.choice.into(),
        finite: step.finite.into(),
        padding: step.padding.into(),
        prediction: prediction.into(),
        context: ContextRows::new(&cpu, rows).unwrap(),
        result: vec![0; sequences * RESULT_WORDS].into(),
        first: step.first,
        batch: step.batch,
        tree: step.tree,
        slots: step.slots,
    }
}

#[test]
fn walks_and_what_follows_are_those_of_the_reference() {
    let Some(cuda) = gpu() else { return };
    let mut rng = rng(1);
    let (mut accepted, mut reasons, mut walks) = ([0; EMIT_MAX + 1], [0; 4], 0);
    for number in 0..200 {
        let sequences = [0, 1, 2, 40, 1 + below(&mut rng, 40)][number % 5];
        let step = Step::random(&mut rng, sequences, number % 7 == 0);
        let prediction: Vec<f32> = (0..step.batch.sequences_max * Prediction::LEN)
            .map(|i| i as f32 * 0.37)
            .collect();
        let found = after(&cuda, on_gpu(&cuda, &step, &prediction), &|buf| {
            get(&cuda, buf)
        });
        let expected = after(&Cpu::default(), on_cpu(step, &prediction), &|buf| {
            buf.to_vec()
        });
        assert_eq!(found, expected, "step {number} of {sequences} sequences");
        for (path, &reason) in expected.paths.iter().zip(&expected.reason) {
            accepted[path.len()] += 1;
            reasons[reason as usize] += 1;
            walks += 1;
        }
    }
    println!("{walks} walks; by path rows {accepted:?}, by reason {reasons:?}");
    assert!(
        accepted[1..].iter().all(|&count| count > 0),
        "paths of every length"
    );
    assert!(reasons.iter().all(|&count| count > 50), "every reason");
}

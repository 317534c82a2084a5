//! `simulate_acceptance` against the CPU.

use super::{get, gpu, put, put_batch, put_slots, put_tree, tree_tables_of};
use crate::limits::DEPTH_MAX;
use crate::testing::{Segment, batch, below, floats, random_tree, rng, slots};
use crate::{Backend, Cpu, SimulateAcceptance};

#[test]
fn choices_are_those_of_the_cpu() {
    let Some(cuda) = gpu() else { return };
    let cpu = Cpu::default();
    let mut rng = rng(1);
    for case in 0..20 {
        let trees: Vec<Vec<i32>> = (0..5)
            .map(|sequence| random_tree(case * 5 + sequence, 1 + below(&mut rng, 64)))
            .collect();
        // Low ids, so that the lowest free one is looked for.
        let tokens: Vec<Vec<u32>> = trees
            .iter()
            .map(|tree| (0..tree.len() as u32).map(|n| n * 7 % 67).collect())
            .collect();
        let segments: Vec<_> = (trees.iter().zip(&tokens).enumerate())
            .map(|(slot, (parent, token))| Segment {
                slot: slot as u32,
                token,
                parent,
            })
            .collect();
        let batch = batch(&segments);
        let mut slots = slots(5, 100);
        for emitted in slots.emitted.iter_mut() {
            *emitted = below(&mut rng, 1000) as u32;
        }
        let tree = tree_tables_of(&batch);
        let law: Vec<f32> = floats(case, 2 * DEPTH_MAX)
            .iter()
            .map(|p| p.abs())
            .collect();
        let mut choice: Box<[u32]> = vec![777; batch.rows_max].into();
        let mut on_gpu = put(&cuda, &choice);
        let seed = 0x1234_5678_9abc_def0 + case;
        cpu.simulate_acceptance(SimulateAcceptance {
            batch: &batch,
            tree: &tree,
            slots: &slots,
            law: &law.clone().into(),
            seed,
            choice: &mut choice,
        })
        .unwrap();
        cuda.simulate_acceptance(SimulateAcceptance {
            batch: &put_batch(&cuda, &batch),
            tree: &put_tree(&cuda, &tree),
            slots: &put_slots(&cuda, &slots),
            law: &put(&cuda, &law),
            seed,
            choice: &mut on_gpu,
        })
        .unwrap();
        assert_eq!(get(&cuda, &on_gpu), *choice);
    }
}

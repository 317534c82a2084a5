use super::*;
use crate::TreeTablesFrom;
use crate::testing::{Segment, batch, slots};

/// Root with children 1 and 2; 1 with child 3 and 4; tokens in order of rank.
const PARENT: [i32; 5] = [-1, 0, 0, 1, 1];
const TOKEN: [u32; 5] = [50, 0, 8, 1, 0];

/// Choices of the rows when each of `emitted` tokens stand before a step.
fn choices(law: &[f32], seed: u64, emitted: &[u32]) -> Vec<u32> {
    let backend = Cpu::default();
    let mut slots = slots(emitted.len(), 100);
    slots.emitted.copy_from_slice(emitted);
    let segments: Vec<_> = (0..emitted.len())
        .map(|slot| Segment {
            slot: slot as u32,
            token: &TOKEN,
            parent: &PARENT,
        })
        .collect();
    let batch = batch(&segments);
    let mut tree = TreeTables::new(&backend, batch.rows_max).unwrap();
    let tables = TreeTablesFrom {
        batch: &batch,
        padding: None,
        tables: &mut tree,
    };
    backend.tree_tables(tables).unwrap();
    let mut choice = vec![777; batch.rows_max].into();
    let op = SimulateAcceptance {
        batch: &batch,
        tree: &tree,
        slots: &slots,
        law: &law.into(),
        seed,
        choice: &mut choice,
    };
    backend.simulate_acceptance(op).unwrap();
    let live = emitted.len() * TOKEN.len();
    assert_eq!(choice[live..], [777; 2], "padding rows");
    choice[..live].into()
}

/// Rates of the first child, and of later ones, at every depth.
fn law(first: f32, later: f32) -> Vec<f32> {
    [[first; DEPTH_MAX], [later; DEPTH_MAX]].concat()
}

#[test]
fn rates_of_one_and_zero_leave_no_chance() {
    assert_eq!(choices(&law(1.0, 0.0), 3, &[4]), [0, 1, 0, 0, 0]);
    assert_eq!(choices(&law(0.0, 1.0), 3, &[4]), [8, 0, 0, 0, 0]);
    // Ids that no child has: 0 and 8 hang on the root, 1 and 0 on row 1.
    assert_eq!(choices(&law(0.0, 0.0), 3, &[4]), [1, 2, 0, 0, 0]);
    let mut by_depth = law(0.0, 0.0);
    by_depth[1] = 1.0;
    assert_eq!(choices(&by_depth, 3, &[4]), [1, 1, 0, 0, 0]);
}

#[test]
fn children_are_taken_as_often_as_the_law_says() {
    let emitted: Vec<u32> = (0..20_000).collect();
    let chosen = choices(&law(0.7, 0.4), 11, &emitted);
    let share = |row: usize, token: u32| {
        let rows = chosen.iter().skip(row).step_by(TOKEN.len());
        rows.filter(|&&choice| choice == token).count() as f64 / emitted.len() as f64
    };
    // Five standard errors.
    let close = |share: f64, rate: f64| {
        let error = (rate * (1.0 - rate) / emitted.len() as f64).sqrt();
        assert!((share - rate).abs() < 5.0 * error, "{share} for {rate}");
    };
    for (row, first, second) in [(0, 0, 8), (1, 1, 0)] {
        close(share(row, first), 0.7);
        close(share(row, second), 0.3 * 0.4);
    }
}

#[test]
fn a_draw_belongs_to_its_output_position() {
    let law = law(0.5, 0.5);
    let together = choices(&law, 5, &[0, 9, 4]);
    for (sequence, emitted) in [0, 9, 4].into_iter().enumerate() {
        let alone = choices(&law, 5, &[emitted]);
        assert_eq!(alone, together[sequence * TOKEN.len()..][..TOKEN.len()]);
    }
    let many: Vec<u32> = (0..64).collect();
    assert_ne!(choices(&law, 5, &many), choices(&law, 6, &many));
}

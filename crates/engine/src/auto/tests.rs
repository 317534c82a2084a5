use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::timing_table::ShapeTiming;

/// A table in which a step takes `ms` of its shape with one sequence and `slope` more per row of
/// every further one.
fn table(ms: impl Fn(Shape) -> f64, slope: f64) -> TimingTable {
    let timing = |shape: Shape| ShapeTiming {
        shape,
        times: vec![
            (1, ms(shape)),
            (4, ms(shape) + 3.0 * slope * shape.rows() as f64),
        ],
    };
    TimingTable {
        shapes: CANDIDATES.map(timing).to_vec(),
    }
}

/// Milliseconds per row of a step whose first `flat` rows cost the same.
fn staircase(shape: Shape) -> f64 {
    match shape.rows() {
        1 => 10.0,
        2..=16 => 11.0,
        17..=32 => 14.0,
        _ => 20.0,
    }
}

const GOOD: Prediction = Prediction {
    tree: [3.5, 4.5, 5.5, 6.2],
    chain: [2.2, 3.4, 4.0],
};
const POOR: Prediction = Prediction {
    tree: [0.05, 0.06, 0.07, 0.08],
    chain: [0.03, 0.04, 0.05],
};

/// One sequence alone: its steps, of which each takes what the table says and accepts
/// `accepted(shape)`.
fn run(
    auto: &mut Auto,
    phi: &mut PhiAverage,
    steps: usize,
    prediction: &Prediction,
    mut accepted: impl FnMut(Shape) -> usize,
) -> Vec<Shape> {
    (0..steps)
        .map(|_| {
            let shape = auto.choose(&[phi], 0).shape;
            let ms = auto.table_ms(Choice::uniform(shape, 1), 1, 0);
            auto.took(shape.rows(), ms);
            if shape != Shape::Plain {
                auto.observe(phi, shape, accepted(shape), prediction);
            }
            shape
        })
        .collect()
}

/// Accepted nodes as predicted, in the mean.
fn as_predicted(prediction: Prediction, seed: u64) -> impl FnMut(Shape) -> usize {
    let mut random = Pcg64::seed_from_u64(seed);
    move |shape| {
        let mean = predicted(shape, &prediction);
        let whole = mean as usize;
        whole + usize::from(random.random_bool(mean - whole as f64))
    }
}

#[test]
#[should_panic(expected = "begins with the plain shape")]
fn a_table_without_plain_is_refused() {
    let mut table = table(staircase, 0.0);
    table.shapes.remove(0);
    Auto::new(table, false);
}

#[test]
fn without_a_drafting_sequence_a_step_is_plain() {
    let mut auto = Auto::new(table(staircase, 0.0), false);
    assert_eq!(auto.choose(&[], 3), Choice::uniform(Shape::Plain, 0));
}

#[test]
fn the_first_steps_run_the_longest_timed_chain() {
    for longest in [3, 7, 15] {
        let mut table = table(staircase, 0.0);
        table
            .shapes
            .retain(|timing| !matches!(timing.shape, Shape::Chain(drafts) if drafts > longest));
        let mut auto = Auto::new(table, false);
        let shapes = run(&mut auto, &mut PhiAverage::default(), 4, &POOR, |_| 0);
        assert_eq!(shapes, [Shape::Chain(longest); 4]);
    }
}

#[test]
fn a_plain_table_is_always_plain() {
    let mut table = table(staircase, 0.0);
    table.shapes.truncate(1);
    let mut auto = Auto::new(table, false);
    let shapes = run(&mut auto, &mut PhiAverage::default(), 200, &GOOD, |_| 0);
    assert_eq!(shapes, [Shape::Plain; 200]);
}

#[test]
fn the_best_rate_wins_across_a_step_of_the_staircase() {
    // Tokens per millisecond: chain-15 5.0/11, tree-15 5.5/11, tree-31 6.5/14, tree-63 7.2/12.
    // A search that stops at the first local maximum would stay at tree-15.
    let ms = |shape| match shape {
        Shape::Tree(63) => 12.0,
        shape => staircase(shape),
    };
    let mut auto = Auto::new(table(ms, 0.0), false);
    let accepted = as_predicted(GOOD, 1);
    let shapes = run(&mut auto, &mut PhiAverage::default(), 60, &GOOD, accepted);
    assert_eq!(shapes[10..], [Shape::Tree(63); 50]);
}

#[test]
fn a_change_must_promise_three_per_cent() {
    for (gain, expected) in [(1.02, Shape::Chain(15)), (1.05, Shape::Tree(15))] {
        // The chain yields 5 tokens in 11 ms, the tree 5.5 in as long as makes it `gain` better.
        let ms = |shape| match shape {
            Shape::Chain(15) => 11.0,
            Shape::Tree(15) => 5.5 * 11.0 / (5.0 * gain),
            _ => 1e3,
        };
        let mut auto = Auto::new(table(ms, 0.0), false);
        let accepted = as_predicted(GOOD, 2);
        let shapes = run(&mut auto, &mut PhiAverage::default(), 30, &GOOD, accepted);
        assert_eq!(shapes[29], expected, "gain {gain}");
    }
}

#[test]
fn poor_drafts_fall_back_to_plain_and_probes_find_the_way_back() {
    let mut auto = Auto::new(table(staircase, 0.0), false);
    let mut phi = PhiAverage::default();
    let shapes = run(&mut auto, &mut phi, 400, &POOR, |_| 0);
    let plain_from = shapes.iter().position(|shape| *shape == Shape::Plain);
    let plain_from = plain_from.expect("plain is best");
    assert!((16..40).contains(&plain_from), "{plain_from} drafted steps");
    let probes: Vec<usize> = (plain_from..400)
        .filter(|&step| shapes[step] != Shape::Plain)
        .collect();
    assert_eq!(probes.len(), (400 - plain_from) / 64, "{probes:?}");
    assert!(probes.windows(2).all(|pair| pair[1] - pair[0] == 64));
    // One probe with good news is enough.
    let accepted = as_predicted(GOOD, 3);
    let shapes = run(&mut auto, &mut phi, 70, &GOOD, accepted);
    let probe = shapes.iter().position(|shape| *shape != Shape::Plain);
    let probe = probe.expect("a probe within 64 steps");
    assert!(shapes[probe..].iter().all(|shape| *shape != Shape::Plain));
}

#[test]
fn until_plain_has_proved_itself_the_best_draft_is_run() {
    // Drafts cost what they yield and little more: plain is best, chain-3 second.
    let ms = |shape: Shape| 10.0 + shape.rows() as f64;
    let prediction = Prediction {
        tree: [0.2, 0.3, 0.4, 0.5],
        chain: [0.2, 0.2, 0.2],
    };
    let mut auto = Auto::new(table(ms, 0.0), false);
    let shapes = run(
        &mut auto,
        &mut PhiAverage::default(),
        40,
        &prediction,
        |_| 0,
    );
    let order: Vec<Shape> = shapes.iter().fold(Vec::new(), |mut order, &shape| {
        if order.last() != Some(&shape) {
            order.push(shape);
        }
        order
    });
    assert_eq!(order, [Shape::Chain(15), Shape::Chain(3), Shape::Plain]);
}

#[test]
fn a_new_request_is_drafted_for_although_plain_rules() {
    let mut auto = Auto::new(table(staircase, 0.0), false);
    let mut old = PhiAverage::default();
    run(&mut auto, &mut old, 60, &POOR, |_| 0);
    assert_eq!(auto.choose(&[&old], 0).shape, Shape::Plain);
    let mut new = PhiAverage::default();
    let shape = auto.choose(&[&new], 0).shape;
    assert_ne!(shape, Shape::Plain);
    auto.observe(&mut new, shape, 5, &GOOD);
    let shapes = run(&mut auto, &mut new, 8, &GOOD, as_predicted(GOOD, 4));
    assert!(shapes.iter().all(|shape| *shape != Shape::Plain));
}

#[test]
fn one_new_request_among_many_does_not_make_all_of_them_draft() {
    let mut auto = Auto::new(table(staircase, 0.0), false);
    let mut old = PhiAverage::default();
    run(&mut auto, &mut old, 60, &POOR, |_| 0);
    let new = PhiAverage::default();
    assert_eq!(
        auto.choose(&[&old, &old, &old, &new], 0).shape,
        Shape::Plain
    );
}

#[test]
fn the_mode_that_is_not_used_is_tried_every_64_steps() {
    let mut auto = Auto::new(table(staircase, 0.0), false);
    let accepted = as_predicted(GOOD, 5);
    let shapes = run(&mut auto, &mut PhiAverage::default(), 300, &GOOD, accepted);
    let chains: Vec<usize> = (20..300)
        .filter(|&step| matches!(shapes[step], Shape::Chain(_)))
        .collect();
    assert!((4..=5).contains(&chains.len()), "{chains:?}");
    assert!(chains.windows(2).all(|pair| pair[1] - pair[0] == 64));
    let others = (20..300).filter(|step| !chains.contains(step));
    assert!(others.map(|step| shapes[step]).all(|s| s == shapes[19]));
}

#[test]
fn what_is_accepted_corrects_what_is_predicted() {
    // The drafter promises GOOD; trees keep half of it, chains all.
    let mut auto = Auto::new(table(staircase, 0.0), false);
    let mut full = as_predicted(GOOD, 6);
    let accepted = move |shape| match shape {
        Shape::Tree(_) => full(shape) / 2,
        _ => full(shape),
    };
    let shapes = run(&mut auto, &mut PhiAverage::default(), 800, &GOOD, accepted);
    assert_eq!(shapes[799], Shape::Chain(15));
    let ratio = auto.tree.value();
    assert!((0.35..0.65).contains(&ratio), "{ratio}");
    let ratio = auto.chain.value();
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn the_ratio_of_accepted_to_predicted_is_bounded_and_forgets() {
    let mut kappa = Kappa::default();
    assert_eq!(kappa.value(), 1.0);
    for _ in 0..2000 {
        kappa.observe(0, 5.0);
    }
    assert_eq!(kappa.value(), 0.3);
    for _ in 0..2000 {
        kappa.observe(15, 1.0);
    }
    assert_eq!(kappa.value(), 2.0);
    // Half of what was known is gone after 200 observations.
    let mut kappa = Kappa {
        accepted: 0.0,
        predicted: 1000.0,
    };
    for _ in 0..200 {
        kappa.observe(0, 0.0);
    }
    assert!((kappa.predicted - 500.0).abs() < 1e-6);
}

#[test]
fn predictions_fade_with_the_steps_that_passed() {
    let at = |value| Prediction {
        tree: [value; 4],
        chain: [value; 3],
    };
    let mut phi = PhiAverage::default();
    phi.observe(&at(4.0), 10, 1);
    assert_eq!(phi.mean, at(4.0), "the first one counts in full");
    phi.observe(&at(0.0), 18, 1);
    assert_eq!(phi.mean, at(2.0), "eight steps are a half-life");
    phi.observe(&at(1.0), 18 + 400, 1);
    let worst = (phi.mean.tree[3] - 1.0).abs();
    assert!(worst < 1e-6, "a long gap leaves nothing");
}

#[test]
fn larger_batches_get_smaller_shapes() {
    let settled = |sequences: usize| {
        let mut auto = Auto::new(table(staircase, 0.4), false);
        let mut phis = vec![PhiAverage::default(); sequences];
        let mut accepted = as_predicted(GOOD, 7);
        let mut shape = Shape::Plain;
        for _ in 0..60 {
            shape = auto.choose(&phis.iter().collect::<Vec<_>>(), 0).shape;
            for phi in &mut phis {
                auto.observe(phi, shape, accepted(shape), &GOOD);
            }
        }
        shape.rows()
    };
    let rows = [1, 4, 16].map(settled);
    assert!(rows[0] > rows[1] && rows[1] > rows[2], "{rows:?}");
}

#[test]
fn shapes_that_overfill_a_step_are_not_chosen() {
    // Rows are free, so that the largest shape would always win.
    let mut auto = Auto::new(table(|_| 10.0, 0.0), false);
    let phis = vec![PhiAverage::default(); 20];
    let mut seen = PhiAverage::default();
    seen.observe(&GOOD, 1, 1);
    auto.overall = seen;
    let all: Vec<&PhiAverage> = phis.iter().collect();
    for _ in 0..100 {
        let choice = auto.choose(&all, 2);
        assert!(choice.rows + 2 <= STEP_ROWS_MAX, "{choice:?}");
        assert_eq!(choice.rows, 20 * choice.shape.rows());
    }
    assert_eq!(auto.current.shape, Shape::Tree(15));
    // When the others have left, the largest is best again.
    for _ in 0..8 {
        auto.choose(&all[..1], 0);
    }
    assert_eq!(auto.current.shape, Shape::Tree(63));
}

#[test]
fn sequences_that_do_not_draft_count_in_time_and_tokens() {
    let auto = Auto::new(table(staircase, 0.5), false);
    let mut phi = PhiAverage::default();
    phi.observe(&GOOD, 1, 1);
    // Plain: 1 and 4 tokens in 10 and 11.5 ms. Tree-15: 5.5 and 8.5 tokens in 11 and 12.5 ms.
    let close = |rate: f64, expected: f64| assert!((rate - expected).abs() < 1e-9, "{rate}");
    let rate = |shape, plain| {
        let batch = auto.batch(&[&phi], plain);
        auto.rate(Choice::uniform(shape, 1), &batch)
    };
    close(rate(Shape::Plain, 0), 1.0 / 10.0);
    close(rate(Shape::Plain, 3), 4.0 / 11.5);
    close(rate(Shape::Tree(15), 0), 5.5 / 11.0);
    close(rate(Shape::Tree(15), 3), 8.5 / 12.5);
}

/// Against every fixed shape in hindsight, over drafters whose quality and honesty vary.
#[test]
fn the_choice_stays_close_to_the_best_fixed_shape() {
    let mut random = Pcg64::seed_from_u64(8);
    for world in 0..40 {
        let scale = random.random_range(0.02..1.0f32);
        let honesty = random.random_range(0.5..1.6f64);
        let tree_gain = random.random_range(0.6..1.4f64);
        let row_ms = random.random_range(0.0..0.4f64);
        let ms = |shape: Shape| staircase(shape) + row_ms * shape.rows() as f64;
        let promised = Prediction {
            tree: GOOD.tree.map(|value| value * scale),
            chain: GOOD.chain.map(|value| value * scale),
        };
        let mean = |shape: Shape| {
            let gain = match shape {
                Shape::Tree(_) => tree_gain,
                _ => 1.0,
            };
            (honesty * gain * predicted(shape, &promised)).min(15.0)
        };
        let best = CANDIDATES
            .map(|shape| (1.0 + mean(shape)) / ms(shape))
            .into_iter()
            .fold(0.0, f64::max);
        let mut draw = Pcg64::seed_from_u64(world);
        let accepted = |shape| {
            let mean = mean(shape);
            mean as usize + usize::from(draw.random_bool(mean.fract()))
        };
        let mut auto = Auto::new(table(ms, row_ms), false);
        let mut phi = PhiAverage::default();
        let shapes = run(&mut auto, &mut phi, 3000, &promised, accepted);
        let tokens: f64 = shapes.iter().map(|&shape| 1.0 + mean(shape)).sum();
        let time: f64 = shapes.iter().map(|&shape| ms(shape)).sum();
        let share = tokens / time / best;
        assert!(share > 0.94, "world {world}: {share:.3} of the best");
    }
}

mod paced;
mod shared;

//! Batches whose sequences share rows.

use super::*;

/// A table whose steps take `fixed` milliseconds and `row` for every row; drafting costs `draft`.
fn linear(fixed: f64, draft: f64, row: f64) -> TimingTable {
    let ms = |shape: Shape, sequences: f64| {
        let drafter = if shape == Shape::Plain { 0.0 } else { draft };
        fixed + drafter + row * shape.rows() as f64 * sequences
    };
    TimingTable {
        shapes: CANDIDATES
            .map(|shape| ShapeTiming {
                shape,
                times: vec![(1, ms(shape, 1.0)), (4, ms(shape, 4.0))],
            })
            .to_vec(),
    }
}

/// Averages that have seen these predictions.
fn seen(auto: &mut Auto, predictions: &[Prediction]) -> Vec<PhiAverage> {
    let observe = |prediction: &Prediction| {
        let mut phi = PhiAverage::default();
        phi.observe(prediction, 1, 1);
        auto.overall.observe(prediction, 1, 1);
        phi
    };
    predictions.iter().map(observe).collect()
}

/// What a batch settles on.
fn settled(auto: &mut Auto, phis: &[PhiAverage], plain: usize) -> Choice {
    let all: Vec<&PhiAverage> = phis.iter().collect();
    for _ in 0..59 {
        auto.choose(&all, plain);
    }
    auto.choose(&all, plain);
    auto.current
}

fn scaled(prediction: Prediction, scale: f32) -> Prediction {
    Prediction {
        tree: prediction.tree.map(|value| value * scale),
        chain: prediction.chain.map(|value| value * scale),
    }
}

#[test]
fn rows_per_sequence_shrink_with_the_load_and_with_acceptance() {
    let rows = |count: usize, scale| {
        let mut auto = Auto::new(linear(10.0, 1.0, 0.06), true);
        let phis = seen(&mut auto, &vec![scaled(GOOD, scale); count]);
        let choice = settled(&mut auto, &phis, 0);
        choice.rows as f64 / count as f64
    };
    let by_load = [2, 8, 32].map(|count| rows(count, 1.0));
    assert!(by_load.is_sorted_by(|a, b| a > b), "{by_load:?}");
    let by_acceptance = [1.0, 0.3, 0.1].map(|scale| rows(16, scale));
    assert!(
        by_acceptance.is_sorted_by(|a, b| a > b),
        "{by_acceptance:?}"
    );
    assert!(by_acceptance[2] < 3.0, "few rows: {by_acceptance:?}");
    assert_eq!(rows(64, 0.02), 1.0, "plain");
}

/// A batch of good and poor drafts is worth more than the mean of both: rows go to the good ones.
#[test]
fn good_drafts_are_counted_with_the_rows_of_poor_ones() {
    let rate = |share| {
        let mut auto = Auto::new(linear(10.0, 1.0, 0.05), share);
        let phis = seen(&mut auto, &[GOOD, POOR, GOOD, POOR]);
        let all: Vec<&PhiAverage> = phis.iter().collect();
        let batch = auto.batch(&all, 0);
        [Shape::Chain(7), Shape::Tree(15)].map(|shape| {
            let choice = Choice::uniform(shape, 4);
            auto.rate(choice, &batch)
        })
    };
    let (own, shared) = (rate(false), rate(true));
    for (own, shared) in own.iter().zip(shared) {
        assert!(shared > own * 1.02, "{own} alone, {shared} shared");
    }
}

#[test]
fn row_buckets_between_the_shapes_are_chosen_too() {
    // Steps of four sequences: a row costs more from 48 rows on.
    let ms = |rows: usize| 10.0 + 0.02 * rows as f64 + 0.2 * rows.saturating_sub(48) as f64;
    let mut table = linear(10.0, 0.0, 0.02);
    table.shapes.retain(|timing| match timing.shape {
        Shape::Tree(_) => true,
        shape => shape == Shape::Plain,
    });
    for timing in &mut table.shapes {
        timing.times[1].1 = ms(4 * timing.shape.rows()).max(timing.times[0].1);
    }
    let mut auto = Auto::new(table, true);
    let phis = seen(&mut auto, &[GOOD; 4]);
    let all: Vec<&PhiAverage> = phis.iter().collect();
    let outlook = auto.outlook(&all, 2);
    let rows: Vec<usize> = outlook
        .rated
        .iter()
        .map(|(choice, _)| choice.rows)
        .collect();
    for bucket in [8, 16, 24, 32, 48, 64, 96, 128] {
        assert!(rows.contains(&(bucket - 2)), "{bucket}: {rows:?}");
    }
    for uniform in [4, 32, 64, 128, 256] {
        assert!(rows.contains(&uniform), "{uniform}: {rows:?}");
    }
    let average = |choice: &Choice| choice.shape.rows() == choice.rows / 4;
    assert!(outlook.rated.iter().all(|(choice, _)| average(choice)));
}

#[test]
fn a_batch_that_changes_keeps_its_rows_per_sequence() {
    let mut auto = Auto::new(linear(10.0, 1.0, 0.0), true);
    let at_start = |auto: &mut Auto, count: usize, plain: usize| {
        let phis = vec![PhiAverage::default(); count];
        auto.choose(&phis.iter().collect::<Vec<_>>(), plain)
    };
    let chain = |rows, drafts| Choice {
        shape: Shape::Chain(drafts),
        rows,
    };
    assert_eq!(at_start(&mut auto, 4, 0), chain(64, 15));
    assert_eq!(at_start(&mut auto, 3, 0), chain(48, 15));
    // 512 rows in all.
    assert_eq!(at_start(&mut auto, 60, 8), chain(504, 7));
    // Back at one: the nearest shape that was timed for it.
    assert_eq!(at_start(&mut auto, 1, 3), chain(8, 7));
}

/// In the table's own model no choice is worse than plain, but for what hysteresis holds back; and
/// none is worse than any shape for all.
#[test]
fn no_choice_is_worse_than_plain_or_a_uniform_shape() {
    let mut random = Pcg64::seed_from_u64(11);
    for world in 0..150 {
        // Concave in the rows of a step.
        let (fixed, draft) = (
            random.random_range(2.0..20.0),
            random.random_range(0.0..3.0),
        );
        let (row, power) = (random.random_range(0.0..0.5), random.random_range(0.3..1.0));
        let mut table = linear(fixed, draft, 0.0);
        for timing in &mut table.shapes {
            let rows = timing.shape.rows() as f64;
            let [one, four] = &mut timing.times[..] else {
                panic!("two measurements")
            };
            one.1 += row * f64::powf(rows, power);
            four.1 = one.1.max(four.1 + row * f64::powf(4.0 * rows, power));
        }
        let mut auto = Auto::new(table, true);
        let count = random.random_range(2..=40);
        let plain = random.random_range(0..=10);
        let predictions: Vec<Prediction> = (0..count)
            .map(|_| scaled(GOOD, random.random_range(0.0..1.2)))
            .collect();
        let phis = seen(&mut auto, &predictions);
        let choice = settled(&mut auto, &phis, plain);
        let all: Vec<&PhiAverage> = phis.iter().collect();
        let batch = auto.batch(&all, plain);
        let rate = |choice| auto.rate(choice, &batch);
        let own = rate(choice) * HYSTERESIS * (1.0 + 1e-9);
        for shape in CANDIDATES {
            let uniform = rate(Choice::uniform(shape, count));
            assert!(
                own >= uniform,
                "world {world}: {choice:?} against {shape:?}"
            );
        }
        assert!(choice.rows + plain <= STEP_ROWS_MAX);
    }
}

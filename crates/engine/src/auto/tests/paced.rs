//! Steps that do not take what the table says, and probes that cost.

use super::*;

/// Batches of `count` fresh sequences that each run `steps` steps of what takes `ms` and accepts what
/// was promised; tokens, milliseconds, and how many steps drafted.
fn waves(
    auto: &mut Auto,
    (waves, count, steps): (usize, usize, usize),
    prediction: &Prediction,
    ms: impl Fn(Choice) -> f64,
) -> (f64, f64, usize) {
    let (mut tokens, mut time, mut drafted) = (0.0, 0.0, 0);
    let mut accepted = as_predicted(*prediction, 9);
    for _ in 0..waves {
        let mut phis = vec![PhiAverage::default(); count];
        for _ in 0..steps {
            let choice = auto.choose(&phis.iter().collect::<Vec<_>>(), 0);
            auto.took(choice.rows, ms(choice));
            time += ms(choice);
            tokens += count as f64;
            drafted += usize::from(choice.shape != Shape::Plain);
            for phi in phis.iter_mut().filter(|_| choice.shape != Shape::Plain) {
                let nodes = accepted(choice.shape);
                tokens += nodes as f64;
                auto.observe(phi, choice.shape, nodes, prediction);
            }
        }
    }
    (tokens, time, drafted)
}

/// Rates of all candidates if every sequence always ran one of them.
fn best_fixed(count: usize, prediction: &Prediction, ms: impl Fn(Choice) -> f64) -> f64 {
    let rate = |shape| {
        let tokens = count as f64 * (1.0 + predicted(shape, prediction));
        tokens / ms(Choice::uniform(shape, count))
    };
    CANDIDATES.map(rate).into_iter().fold(0.0, f64::max)
}

/// Drafts cost three times what the table says: they look good and are not.
#[test]
fn steps_that_take_longer_than_the_table_says_are_left() {
    let mut auto = Auto::new(table(staircase, 0.0), false);
    let ms = |choice: Choice| {
        let slow = if choice.shape == Shape::Plain {
            1.0
        } else {
            3.0
        };
        slow * staircase(choice.shape)
    };
    let prediction = Prediction {
        tree: [0.9, 1.1, 1.3, 1.4],
        chain: [0.7, 0.9, 1.0],
    };
    // Nothing is known at first but the table.
    for least in [0.85, 0.95] {
        let (tokens, time, _) = waves(&mut auto, (1, 1, 1500), &prediction, ms);
        let share = tokens / time / best_fixed(1, &prediction, ms);
        assert!(share > least, "{share}");
    }
}

/// The table was measured while something else ran beside the plain steps.
#[test]
fn a_plain_step_that_was_timed_too_long_is_found_out() {
    let ms = |choice: Choice| staircase(choice.shape) + choice.rows as f64;
    let wrong = |shape: Shape| {
        let disturbed = if shape == Shape::Plain { 1.8 } else { 1.0 };
        disturbed * ms(Choice::uniform(shape, 1))
    };
    let prediction = Prediction {
        tree: [0.3, 0.35, 0.4, 0.45],
        chain: [0.25, 0.3, 0.3],
    };
    let mut auto = Auto::new(table(wrong, 0.0), false);
    waves(&mut auto, (1, 1, 1000), &prediction, ms);
    let (tokens, time, _) = waves(&mut auto, (1, 1, 1500), &prediction, ms);
    let share = tokens / time / best_fixed(1, &prediction, ms);
    assert!(share > 0.95, "{share}");
}

/// Waves of new requests, short ones, for which drafting is never worth it.
#[test]
fn news_is_not_sought_at_any_price() {
    for (count, steps) in [(1, 24), (16, 24), (32, 12)] {
        let slope = 0.5;
        let ms = |choice: Choice| {
            staircase(choice.shape) + slope * (choice.rows - choice.shape.rows()) as f64
        };
        let mut auto = Auto::new(table(staircase, slope), false);
        waves(&mut auto, (8, count, steps), &POOR, ms);
        let (tokens, time, drafted) = waves(&mut auto, (40, count, steps), &POOR, ms);
        let share = tokens / time / best_fixed(count, &POOR, ms);
        assert!(share > 0.97, "{count} at once: {share}");
        assert!(drafted > 0, "{count} at once");
    }
}

/// Answers that begin well and go on badly, in step with each other.
#[test]
fn a_batch_whose_drafts_become_poor_is_left_soon() {
    let slope = 0.35;
    let ms = |choice: Choice| {
        staircase(choice.shape) + slope * (choice.rows - choice.shape.rows()) as f64
    };
    let count = 16;
    let mut auto = Auto::new(table(staircase, slope), false);
    waves(&mut auto, (1, count, 30), &GOOD, ms);
    let mut phis = vec![PhiAverage::default(); count];
    let mut poor_steps = 0;
    for step in 0..40 {
        let choice = auto.choose(&phis.iter().collect::<Vec<_>>(), 0);
        auto.took(choice.rows, ms(choice));
        let drafts = choice.shape != Shape::Plain;
        assert!(drafts || step >= 4, "good drafts are used");
        poor_steps += usize::from(drafts && step >= 4);
        let prediction = if step < 4 { GOOD } else { POOR };
        for phi in phis.iter_mut().filter(|_| drafts) {
            let accepted = if step < 4 { 3 } else { 0 };
            auto.observe(phi, choice.shape, accepted, &prediction);
        }
    }
    assert!(poor_steps <= 12, "{poor_steps} steps of poor drafts");
}

#[test]
fn a_large_batch_falls_back_soon() {
    let mut auto = Auto::new(table(staircase, 0.5), false);
    let ms = |choice: Choice| staircase(choice.shape);
    let (_, _, drafted) = waves(&mut auto, (1, 16, 60), &POOR, ms);
    assert!(drafted <= 10, "{drafted} steps drafted");
}

/// Steps of a 27B target on an H200, with 1, 4, 16 and 32 sequences.
fn large_target() -> TimingTable {
    let times = [
        [12.65, 13.24, 15.28, 17.98],
        [14.54, 15.76, 19.62, 25.35],
        [14.80, 16.62, 21.98, 34.48],
        [15.22, 17.58, 31.46, 57.26],
        [14.77, 16.58, 21.92, 33.97],
        [15.21, 17.44, 30.76, 56.62],
        [16.39, 20.00, 53.95, 108.0],
        [17.57, 29.25, 108.0, 216.0],
    ];
    let shapes = CANDIDATES
        .iter()
        .zip(times)
        .map(|(&shape, ms)| ShapeTiming {
            shape,
            times: [1, 4, 16, 32].into_iter().zip(ms).collect(),
        });
    TimingTable {
        shapes: shapes.collect(),
    }
}

/// A full batch that should not draft, of requests as long as answers are.
#[test]
fn finding_out_costs_a_full_batch_half_a_percent_at_most() {
    for tokens in [1.1f32, 1.3] {
        let chain = 1.0 - 1.0 / tokens;
        let more = tokens - 1.0;
        let prediction = Prediction {
            tree: [1.15 * more, 1.3 * more, 1.45 * more, 1.6 * more],
            chain: [more * (1.0 - chain.powi(3)), more, more],
        };
        let timed = Auto::new(large_target(), true);
        let ms = |choice: Choice| timed.table_ms(choice, 32, 0);
        let mut auto = Auto::new(large_target(), true);
        // What one request alone did not lose is not lost later.
        let alone = |choice: Choice| timed.table_ms(choice, 1, 0);
        waves(&mut auto, (20, 1, 400), &GOOD, alone);
        waves(&mut auto, (1, 32, 192), &prediction, ms);
        let (generated, time, drafted) = waves(&mut auto, (5, 32, 192), &prediction, ms);
        let plain = 32.0 / ms(Choice::uniform(Shape::Plain, 32));
        let share = generated / time / plain;
        assert!(share > 0.995, "{tokens}: {share}, {drafted} steps");
    }
}

//! The shapes of a step: names, predictions, and how they are lowered to what fits.

use model::{Prediction, Shape};
use ops::{PHI_BUDGETS, PHI_LENGTHS, ROW_BUCKETS};

/// Rows of all sequences of one step.
pub(crate) const STEP_ROWS_MAX: usize = ROW_BUCKETS[ROW_BUCKETS.len() - 1];

/// How requests draft unless they opt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drafting {
    /// Never.
    Off,
    /// Always this shape.
    Fixed(Shape),
    /// Chosen per step.
    Auto,
}

/// What drafts are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Chain,
    Tree,
}

impl Kind {
    pub(crate) fn of(shape: Shape) -> Self {
        match shape {
            Shape::Plain => Kind::Plain,
            Shape::Chain(_) => Kind::Chain,
            Shape::Tree(_) => Kind::Tree,
        }
    }

    /// The shape of this kind with so many drafts.
    pub(crate) fn shape(self, drafts: usize) -> Shape {
        match self {
            Kind::Plain => Shape::Plain,
            Kind::Chain => Shape::Chain(drafts),
            Kind::Tree => Shape::Tree(drafts),
        }
    }
}

/// `plain`, `chain-15`, `tree-31`: the name in metrics and tables.
pub fn name(shape: Shape) -> String {
    match shape {
        Shape::Plain => "plain".into(),
        Shape::Chain(drafts) => format!("chain-{drafts}"),
        Shape::Tree(budget) => format!("tree-{budget}"),
    }
}

/// Predicted accepted nodes of a shape. Between the reported sizes the concave curve of prefix
/// sums is replaced by its chords; beyond the last it is flat.
pub(crate) fn predicted(shape: Shape, prediction: &Prediction) -> f64 {
    match shape {
        Shape::Plain => 0.0,
        Shape::Chain(drafts) => chord(&PHI_LENGTHS, &prediction.chain, drafts),
        Shape::Tree(budget) => chord(&PHI_BUDGETS, &prediction.tree, budget),
    }
}

/// The same curve in pieces: nodes, and what each of them adds.
pub(crate) fn pieces(kind: Kind, prediction: &Prediction) -> Vec<(usize, f64)> {
    let (sizes, values): (&[usize], &[f32]) = match kind {
        Kind::Plain => (&[], &[]),
        Kind::Chain => (&PHI_LENGTHS, &prediction.chain),
        Kind::Tree => (&PHI_BUDGETS, &prediction.tree),
    };
    let mut before = (0, 0.0);
    let pieces = sizes.iter().zip(values).map(|(&at, &value)| {
        let (nodes, value) = (at - before.0, f64::from(value));
        let gain = (value - before.1) / nodes as f64;
        before = (at, value);
        (nodes, gain)
    });
    pieces.collect()
}

fn chord(sizes: &[usize], values: &[f32], size: usize) -> f64 {
    let mut before = (0, 0.0);
    for (&at, &value) in sizes.iter().zip(values) {
        let value = f64::from(value);
        if size <= at {
            let part = (size - before.0) as f64 / (at - before.0) as f64;
            return before.1 + (value - before.1) * part;
        }
        before = (at, value);
    }
    before.1
}

/// The shape itself if it has at most `rows` rows, else the largest standard one of its kind that
/// has, else plain.
pub(crate) fn lower(shape: Shape, rows: usize) -> Shape {
    if shape.rows() <= rows {
        return shape;
    }
    let standard = |sizes: &[usize]| sizes.iter().rev().copied().find(|size| size < &rows);
    let lowered = match shape {
        Shape::Plain => None,
        Shape::Chain(_) => standard(&PHI_LENGTHS).map(Shape::Chain),
        Shape::Tree(_) => standard(&PHI_BUDGETS).map(Shape::Tree),
    };
    lowered.unwrap_or(Shape::Plain)
}

/// Lowers the shapes of a step until they have at most `rows` rows together. Drafting sequences
/// share evenly what the one-row sequences leave.
pub(crate) fn fit(shapes: &mut [Shape], rows: usize) {
    let total: usize = shapes.iter().map(|shape| shape.rows()).sum();
    if total <= rows {
        return;
    }
    assert!(
        shapes.len() <= rows,
        "{} sequences in a step of {rows} rows",
        shapes.len()
    );
    let drafting = shapes.iter().filter(|shape| shape.rows() > 1).count();
    let share = (rows - (shapes.len() - drafting)) / drafting;
    for shape in shapes {
        *shape = lower(*shape, share);
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn names_are_those_of_the_metrics() {
        let names = [Shape::Plain, Shape::Chain(15), Shape::Tree(31)].map(name);
        assert_eq!(names, ["plain", "chain-15", "tree-31"]);
    }

    #[test]
    fn lowers_to_the_largest_standard_shape_that_fits() {
        assert_eq!(lower(Shape::Tree(63), 64), Shape::Tree(63));
        assert_eq!(lower(Shape::Tree(63), 63), Shape::Tree(31));
        assert_eq!(lower(Shape::Tree(20), 20), Shape::Tree(15));
        assert_eq!(lower(Shape::Tree(20), 21), Shape::Tree(20));
        assert_eq!(lower(Shape::Tree(15), 7), Shape::Plain);
        assert_eq!(lower(Shape::Chain(15), 15), Shape::Chain(7));
        assert_eq!(lower(Shape::Chain(15), 4), Shape::Chain(3));
        assert_eq!(lower(Shape::Chain(5), 3), Shape::Plain);
        assert_eq!(lower(Shape::Plain, 1), Shape::Plain);
    }

    #[test]
    fn any_batch_fits_and_small_batches_are_left_alone() {
        let mut random = rand_pcg::Pcg64::seed_from_u64(5);
        for _ in 0..2000 {
            let count = random.random_range(1..=STEP_ROWS_MAX);
            let wanted: Vec<Shape> = (0..count)
                .map(|_| match random.random_range(0..3) {
                    0 => Shape::Plain,
                    1 => Shape::Chain(random.random_range(1..=15)),
                    _ => Shape::Tree(random.random_range(1..=63)),
                })
                .collect();
            let mut shapes = wanted.clone();
            fit(&mut shapes, STEP_ROWS_MAX);
            let rows = |list: &[Shape]| list.iter().map(|s| s.rows()).sum::<usize>();
            assert!(rows(&shapes) <= STEP_ROWS_MAX);
            if rows(&wanted) <= STEP_ROWS_MAX {
                assert_eq!(shapes, wanted);
            }
        }
    }

    #[test]
    fn eight_trees_of_63_fit_and_nine_become_31() {
        let mut eight = [Shape::Tree(63); 8];
        fit(&mut eight, STEP_ROWS_MAX);
        assert_eq!(eight, [Shape::Tree(63); 8]);
        let mut nine = [Shape::Tree(63); 9];
        fit(&mut nine, STEP_ROWS_MAX);
        assert_eq!(nine, [Shape::Tree(31); 9]);
    }

    #[test]
    fn predictions_are_read_at_and_between_the_reported_sizes() {
        let prediction = Prediction {
            tree: [2.0, 3.0, 4.0, 4.5],
            chain: [1.5, 2.5, 3.5],
        };
        assert_eq!(predicted(Shape::Plain, &prediction), 0.0);
        assert_eq!(predicted(Shape::Chain(7), &prediction), 2.5);
        assert_eq!(predicted(Shape::Tree(63), &prediction), 4.5);
        assert_eq!(predicted(Shape::Tree(23), &prediction), 3.5);
        assert_eq!(predicted(Shape::Chain(1), &prediction), 0.5);
        for (kind, size) in [(Kind::Plain, 5), (Kind::Chain, 15), (Kind::Tree, 63)] {
            let pieces = pieces(kind, &prediction);
            let sum: f64 = pieces.iter().map(|piece| piece.0 as f64 * piece.1).sum();
            let whole = predicted(kind.shape(size), &prediction);
            assert!((sum - whole).abs() < 1e-9, "{kind:?}");
            assert!(pieces.is_sorted_by(|a, b| a.1 >= b.1), "{kind:?}");
        }
    }
}

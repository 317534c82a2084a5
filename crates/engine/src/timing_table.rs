//! Milliseconds of one step per shape, measured at start.

use model::Shape;

use crate::shape::Kind;

/// One shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ShapeTiming {
    /// The shape.
    pub(crate) shape: Shape,
    /// A step of one sequence.
    pub(crate) one_ms: f64,
    /// A step of [`TimingTable::batch`] sequences, where it was measured.
    pub(crate) batch_ms: Option<f64>,
}

/// All shapes that can be chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TimingTable {
    /// Sequences of the batch measurement.
    pub(crate) batch: usize,
    /// Plain first.
    pub(crate) shapes: Vec<ShapeTiming>,
}

impl TimingTable {
    /// Expected milliseconds of a step in which `sequences` sequences use shape `index`: the line
    /// through both measurements, never falling.
    pub(crate) fn step_ms(&self, index: usize, sequences: usize) -> f64 {
        let timing = &self.shapes[index];
        let slope = match timing.batch_ms {
            Some(batch_ms) if self.batch > 1 => {
                ((batch_ms - timing.one_ms) / (self.batch - 1) as f64).max(0.0)
            }
            _ => 0.0,
        };
        timing.one_ms + slope * sequences.saturating_sub(1) as f64
    }

    /// Expected milliseconds of a step in which `sequences` sequences draft like that and have `rows`
    /// rows together: on the line between the two shapes whose steps have rows next to that, and
    /// with less or more rows than any, as long as with the nearest.
    pub(crate) fn rows_ms(&self, kind: Kind, rows: usize, sequences: usize) -> f64 {
        let mut below: Option<(usize, f64)> = None;
        let mut above: Option<(usize, f64)> = None;
        for (index, timing) in self.shapes.iter().enumerate() {
            if Kind::of(timing.shape) != kind {
                continue;
            }
            let at = (
                timing.shape.rows() * sequences,
                self.step_ms(index, sequences),
            );
            if at.0 <= rows && below.is_none_or(|other| at.0 > other.0) {
                below = Some(at);
            }
            if at.0 >= rows && above.is_none_or(|other| at.0 < other.0) {
                above = Some(at);
            }
        }
        match (below, above) {
            (Some(below), Some(above)) if below.0 < above.0 => {
                let part = (rows - below.0) as f64 / (above.0 - below.0) as f64;
                below.1 + part * (above.1 - below.1)
            }
            (Some(near), _) | (None, Some(near)) => near.1,
            (None, None) => f64::INFINITY,
        }
    }

    /// Shape names with milliseconds; `tree-31 x4` is a step of four sequences.
    pub(crate) fn lines(&self) -> Vec<(String, f64)> {
        let one = self
            .shapes
            .iter()
            .map(|t| (crate::shape::name(t.shape), t.one_ms));
        let batch = self.shapes.iter().filter_map(|t| {
            let name = format!("{} x{}", crate::shape::name(t.shape), self.batch);
            t.batch_ms.map(|ms| (name, ms))
        });
        one.chain(batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_between_two_shapes_take_a_time_between_theirs() {
        let timing = |shape, one_ms, batch_ms| ShapeTiming {
            shape,
            one_ms,
            batch_ms: Some(batch_ms),
        };
        let table = TimingTable {
            batch: 4,
            shapes: vec![
                timing(Shape::Plain, 9.0, 9.0),
                timing(Shape::Chain(3), 10.0, 10.0),
                timing(Shape::Chain(7), 11.0, 14.0),
            ],
        };
        let ms = |rows, sequences| table.rows_ms(Kind::Chain, rows, sequences);
        assert_eq!([ms(4, 1), ms(6, 1), ms(8, 1)], [10.0, 10.5, 11.0]);
        assert_eq!([ms(16, 4), ms(20, 4), ms(32, 4)], [10.0, 11.0, 14.0]);
        assert_eq!([ms(5, 4), ms(50, 4)], [10.0, 14.0]);
        assert_eq!(table.rows_ms(Kind::Plain, 3, 3), 9.0);
        assert_eq!(table.rows_ms(Kind::Tree, 8, 1), f64::INFINITY);
    }

    #[test]
    fn steps_grow_along_the_measured_line() {
        let timing = |one_ms, batch_ms| ShapeTiming {
            shape: Shape::Tree(15),
            one_ms,
            batch_ms,
        };
        let table = TimingTable {
            batch: 4,
            shapes: vec![
                timing(10.0, Some(16.0)),
                timing(10.0, Some(9.0)),
                timing(5.0, None),
            ],
        };
        assert_eq!(table.step_ms(0, 1), 10.0);
        assert_eq!(table.step_ms(0, 4), 16.0);
        assert_eq!(table.step_ms(0, 8), 24.0);
        assert_eq!(
            table.step_ms(1, 8),
            10.0,
            "noise does not make larger batches cheaper"
        );
        assert_eq!(table.step_ms(2, 8), 5.0);
        let names: Vec<String> = table.lines().into_iter().map(|line| line.0).collect();
        assert_eq!(
            names,
            ["tree-15", "tree-15", "tree-15", "tree-15 x4", "tree-15 x4"]
        );
    }
}

//! Milliseconds of one step per shape, measured at start.

use model::Shape;

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

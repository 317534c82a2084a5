//! Milliseconds of one step per shape, measured at start.

use model::Shape;

use crate::shape::Kind;

/// One shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShapeTiming {
    /// The shape.
    pub(crate) shape: Shape,
    /// Sequences of a step and its milliseconds, by sequences; the first one has one.
    pub(crate) times: Vec<(usize, f64)>,
}

impl ShapeTiming {
    /// Between two measurements on their line, behind the last on the line of the last two; never
    /// falling.
    fn ms(&self, sequences: usize) -> f64 {
        let mut before = self.times[0];
        let mut slope = 0.0;
        for &(count, ms) in &self.times[1..] {
            if sequences <= before.0 {
                break;
            }
            let ms = ms.max(before.1);
            slope = (ms - before.1) / (count - before.0) as f64;
            if sequences <= count {
                break;
            }
            before = (count, ms);
        }
        before.1 + slope * sequences.saturating_sub(before.0) as f64
    }
}

/// All shapes that can be chosen, plain first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TimingTable {
    pub(crate) shapes: Vec<ShapeTiming>,
}

impl TimingTable {
    /// Expected milliseconds of a step in which `sequences` sequences use shape `index`.
    pub(crate) fn step_ms(&self, index: usize, sequences: usize) -> f64 {
        self.shapes[index].ms(sequences)
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

    /// Shape names with milliseconds, smaller batches first; `tree-31 x4` is a step of four sequences.
    pub(crate) fn lines(&self) -> Vec<(String, f64)> {
        let times = self.shapes.iter().flat_map(|timing| {
            let name = crate::shape::name(timing.shape);
            timing.times.iter().map(move |&(count, ms)| match count {
                1 => (count, name.clone(), ms),
                _ => (count, format!("{name} x{count}"), ms),
            })
        });
        let mut lines: Vec<(usize, String, f64)> = times.collect();
        lines.sort_by_key(|line| line.0);
        lines.into_iter().map(|(_, name, ms)| (name, ms)).collect()
    }
}

/// A time for people: two decimals.
pub(crate) fn shown(ms: f64) -> f64 {
    (ms * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_two_decimals() {
        for (ms, text) in [(2.004_9, "2"), (1.234_567, "1.23"), (0.1 + 0.2, "0.3")] {
            assert_eq!(shown(ms).to_string(), text);
        }
    }

    #[test]
    fn rows_between_two_shapes_take_a_time_between_theirs() {
        let timing = |shape, one_ms, batch_ms| ShapeTiming {
            shape,
            times: vec![(1, one_ms), (4, batch_ms)],
        };
        let table = TimingTable {
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
    fn steps_grow_along_the_measured_lines() {
        let timing = |times: &[(usize, f64)]| ShapeTiming {
            shape: Shape::Tree(15),
            times: times.to_vec(),
        };
        let table = TimingTable {
            shapes: vec![
                timing(&[(1, 10.0), (4, 16.0)]),
                timing(&[(1, 10.0), (4, 9.0)]),
                timing(&[(1, 5.0)]),
                timing(&[(1, 10.0), (4, 13.0), (16, 37.0), (32, 69.0)]),
                timing(&[(1, 10.0), (4, 16.0), (16, 12.0)]),
            ],
        };
        let ms = |index: usize, counts: &[usize]| -> Vec<f64> {
            counts
                .iter()
                .map(|&count| table.step_ms(index, count))
                .collect()
        };
        assert_eq!(ms(0, &[1, 3, 4, 8]), [10.0, 14.0, 16.0, 24.0]);
        // Noise does not make larger batches cheaper.
        assert_eq!(ms(1, &[2, 8]), [10.0, 10.0]);
        assert_eq!(ms(2, &[1, 8]), [5.0, 5.0]);
        assert_eq!(
            ms(3, &[2, 4, 10, 16, 24, 32, 40]),
            [11.0, 13.0, 25.0, 37.0, 53.0, 69.0, 85.0]
        );
        assert_eq!(ms(4, &[4, 8, 20]), [16.0, 16.0, 16.0]);
        let names: Vec<String> = table.lines().into_iter().map(|line| line.0).collect();
        let counts = [5, 4, 2, 1].into_iter().zip(["", " x4", " x16", " x32"]);
        let expected = counts.flat_map(|(count, name)| vec![format!("tree-15{name}"); count]);
        assert_eq!(names, expected.collect::<Vec<_>>());
    }
}

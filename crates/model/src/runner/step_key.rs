//! The capacities of a step, for which its ops are enqueued or were recorded.

use ops::{EMIT_MAX, ROW_BUCKETS};

use super::{SequenceStep, Shape};

/// Upper bounds of what a step works on; each is a row bucket, or the runner's own maximum where
/// that is smaller. Ops get capacities from here only. How much of them is live stands on the
/// device, so that whatever a larger key was recorded for serves a smaller step as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepKey {
    /// Rows of the verify.
    pub rows: usize,
    /// Blocks of the drafter, one per drafting sequence; 0 = nothing drafts.
    pub blocks: usize,
    /// Rows that are committed at most: of every sequence as many as it can emit tokens.
    pub context: usize,
    /// Sequences.
    pub sequences: usize,
    /// Whether some sequences share their rows: other ops than where none does.
    pub shared: bool,
}

impl StepKey {
    /// Of a step with one sequence per shape, in a runner of `sequences_max` sequences.
    ///
    /// # Panics
    /// If the shapes have more rows than the largest bucket.
    pub fn of(shapes: impl Iterator<Item = Shape>, sequences_max: usize) -> Self {
        Self::covering(shapes.map(|shape| (shape, false)), sequences_max)
    }

    /// Of a step of these sequences.
    ///
    /// # Panics
    /// As [`StepKey::of`].
    pub fn of_step(sequences: &[SequenceStep], sequences_max: usize) -> Self {
        let shapes = sequences.iter().map(|s| (s.shape, s.rows_max.is_some()));
        Self::covering(shapes, sequences_max)
    }

    /// Of a step of these shapes; `true` = it shares its rows.
    fn covering(shapes: impl Iterator<Item = (Shape, bool)>, sequences_max: usize) -> Self {
        let mut exact = StepKey {
            rows: 0,
            blocks: 0,
            context: 0,
            sequences: 0,
            shared: false,
        };
        let (mut sharing, mut pool) = (0, 0);
        for (shape, shares) in shapes {
            exact.rows += shape.rows();
            exact.blocks += usize::from(shape != Shape::Plain);
            exact.sequences += 1;
            if shares {
                (sharing, pool) = (sharing + 1, pool + shape.rows());
            } else {
                exact.context += shape.rows().min(EMIT_MAX);
            }
        }
        // Whoever gets the rows of others can emit as many tokens.
        exact.context += pool.min(sharing * EMIT_MAX);
        StepKey {
            shared: sharing > 0,
            rows: bucket(exact.rows),
            blocks: match exact.blocks {
                0 => 0,
                blocks => bucket(blocks).min(sequences_max),
            },
            context: bucket(exact.context),
            sequences: bucket(exact.sequences).min(sequences_max),
        }
    }

    /// The keys of steps of 1, 2, ... `sequences_max` sequences of one shape, as far as a step
    /// holds them: each key once, with the largest such step. `share`: where there are several,
    /// they share their rows.
    pub fn uniform(shape: Shape, sequences_max: usize, share: bool) -> Vec<(usize, StepKey)> {
        let largest = ROW_BUCKETS[ROW_BUCKETS.len() - 1];
        let mut keys: Vec<(usize, StepKey)> = Vec::new();
        for count in 1..=sequences_max.min(largest / shape.rows()) {
            let shares = share && count > 1 && shape != Shape::Plain;
            let shapes = std::iter::repeat_n((shape, shares), count);
            let key = StepKey::covering(shapes, sequences_max);
            match keys.last_mut() {
                Some(last) if last.1 == key => last.0 = count,
                _ => keys.push((count, key)),
            }
        }
        keys
    }

    /// Whether ops with these capacities serve a step of key `step`. One that drafts nothing is
    /// not worth a drafter's weights.
    pub fn covers(self, step: StepKey) -> bool {
        self.rows >= step.rows
            && self.blocks >= step.blocks
            && self.context >= step.context
            && self.sequences >= step.sequences
            && (self.blocks == 0) == (step.blocks == 0)
            && self.shared == step.shared
    }
}

/// The smallest row bucket that holds `rows`.
///
/// # Panics
/// If no bucket does: the caller plans at most the largest.
pub(crate) fn bucket(rows: usize) -> usize {
    *ROW_BUCKETS
        .iter()
        .find(|bucket| **bucket >= rows)
        .unwrap_or_else(|| panic!("{rows} rows in a step; the largest bucket is 512"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rows: usize, blocks: usize, context: usize, sequences: usize) -> StepKey {
        StepKey {
            rows,
            blocks,
            context,
            sequences,
            shared: false,
        }
    }

    #[test]
    fn fields_are_buckets_within_the_runner() {
        let of = |shapes: &[Shape], max| StepKey::of(shapes.iter().copied(), max);
        let (plain, chain, tree) = (Shape::Plain, Shape::Chain(3), Shape::Tree(31));
        assert_eq!(of(&[plain], 8), key(1, 0, 1, 1));
        assert_eq!(of(&[tree], 8), key(32, 1, 16, 1));
        assert_eq!(of(&[tree, chain, plain], 8), key(48, 2, 24, 4));
        assert_eq!(of(&[tree, chain, plain], 3), key(48, 2, 24, 3));
        assert_eq!(of(&[tree; 3], 3), key(96, 3, 48, 3));
        assert_eq!(of(&[Shape::Tree(63); 8], 512), key(512, 8, 128, 8));
    }

    #[test]
    fn uniform_keys_are_those_of_all_steps_of_a_shape() {
        let keys = StepKey::uniform(Shape::Tree(63), 64, false);
        let counts: Vec<usize> = keys.iter().map(|key| key.0).collect();
        assert_eq!(counts, [1, 2, 3, 4, 6, 8], "5 and 6, 7 and 8 share a key");
        for shape in [Shape::Plain, Shape::Chain(15), Shape::Tree(7)] {
            for max in [1, 3, 40, 512] {
                let keys = StepKey::uniform(shape, max, false);
                for count in 1..=max.min(512 / shape.rows()) {
                    let step = StepKey::of(std::iter::repeat_n(shape, count), max);
                    let key = keys.iter().find(|key| key.0 >= count);
                    assert_eq!(key.map(|key| key.1), Some(step));
                }
            }
        }
    }

    /// One of two sharing sequences may get nearly all rows, and emit as many tokens as ever.
    #[test]
    fn shared_rows_may_be_anybodys() {
        let step = |slot, shape, rows_max| SequenceStep {
            slot,
            shape,
            rows_max,
        };
        let of = |steps: &[SequenceStep]| StepKey::of_step(steps, 8);
        let shared = |key: StepKey| StepKey {
            shared: true,
            ..key
        };
        let two = [
            step(0, Shape::Chain(3), Some(16)),
            step(1, Shape::Tree(0), Some(16)),
        ];
        assert_eq!(of(&two), shared(key(8, 2, 8, 2)));
        let own = step(2, Shape::Tree(31), None);
        assert_eq!(
            of(&[two[0], two[1], own]),
            shared(key(48, 4, 24, 4)),
            "5 + 16 rows of context"
        );
        let wide = [
            step(0, Shape::Tree(63), Some(64)),
            step(1, Shape::Tree(7), Some(64)),
        ];
        assert_eq!(of(&wide), shared(key(96, 2, 32, 2)));
        assert!(!of(&two).covers(key(8, 2, 8, 2)) && !key(8, 2, 8, 2).covers(of(&two)));
        for (count, key) in StepKey::uniform(Shape::Chain(7), 8, true) {
            assert_eq!(key.shared, count > 1);
        }
        let plain = StepKey::uniform(Shape::Plain, 8, true);
        assert!(plain.iter().all(|(_, key)| !key.shared));
    }

    #[test]
    fn a_key_covers_what_is_smaller_in_every_field() {
        let all = key(32, 2, 16, 4);
        assert!(all.covers(all) && all.covers(key(1, 1, 1, 1)));
        for larger in [
            key(33, 2, 16, 4),
            key(32, 3, 16, 4),
            key(32, 2, 17, 4),
            key(32, 2, 16, 5),
        ] {
            assert!(!all.covers(larger) && larger.covers(all));
        }
        assert!(!all.covers(key(1, 0, 1, 1)), "no drafter for a plain step");
    }
}

//! Everything a batch could run next, and what it promises.

use model::{Prediction, Shape};
use ops::ROW_BUCKETS;

use super::pool::Pool;
use super::{Auto, Choice, PhiAverage};
use crate::shape::{Kind, STEP_ROWS_MAX, pieces, predicted};

/// Choices of one batch with their rates, the plain one first, and the rate of the current choice.
pub(super) struct Outlook {
    pub(super) rated: Vec<(Choice, f64)>,
    pub(super) now: f64,
}

impl Outlook {
    /// The first of the best among those of some kind.
    pub(super) fn best(&self, wanted: impl Fn(Kind) -> bool) -> Option<(Choice, f64)> {
        let choices = self
            .rated
            .iter()
            .filter(|(choice, _)| wanted(choice.kind()));
        choices
            .copied()
            .reduce(|best, next| if next.1 > best.1 { next } else { best })
    }
}

/// What is known of the sequences of a step.
pub(super) struct Batch<'a> {
    /// Of each that drafts.
    known: Vec<&'a Prediction>,
    /// One-row sequences beside them.
    plain: usize,
    /// Whether rows are shared; then what the sequences promise together.
    pools: Option<[Pool; 2]>,
}

impl Auto {
    /// The batch as it is rated.
    pub(super) fn batch<'a>(&'a self, drafting: &[&'a PhiAverage], plain: usize) -> Batch<'a> {
        let known: Vec<&Prediction> = (drafting.iter())
            .map(|average| &average.seen.map_or(&self.overall, |_| *average).mean)
            .collect();
        let pool = |kind| Pool::new(known.iter().flat_map(|mean| pieces(kind, mean)));
        let pools = self
            .shares(drafting.len())
            .then(|| [pool(Kind::Chain), pool(Kind::Tree)]);
        Batch {
            known,
            plain,
            pools,
        }
    }

    pub(super) fn outlook(&self, drafting: &[&PhiAverage], plain: usize) -> Outlook {
        let batch = self.batch(drafting, plain);
        let choices = self.choices(drafting.len(), plain).into_iter();
        Outlook {
            rated: choices
                .map(|choice| (choice, self.rate(choice, &batch)))
                .collect(),
            now: self.rate(self.current, &batch),
        }
    }

    /// Whether sequences of a step share rows.
    pub(super) fn shares(&self, drafting: usize) -> bool {
        self.share && drafting > 1
    }

    /// What so many drafting sequences could run: the shapes that were timed, and where rows are
    /// shared, whatever fills a row bucket as well.
    fn choices(&self, drafting: usize, plain: usize) -> Vec<Choice> {
        let room = STEP_ROWS_MAX.saturating_sub(plain);
        let timed = self.table.shapes.iter().map(|timing| timing.shape);
        let mut choices: Vec<Choice> = timed
            .map(|shape| Choice::uniform(shape, drafting))
            .filter(|choice| choice.shape == Shape::Plain || choice.rows <= room)
            .collect();
        if !self.shares(drafting) {
            return choices;
        }
        for kind in [Kind::Chain, Kind::Tree] {
            let most = drafting * self.largest(kind);
            for rows in ROW_BUCKETS
                .iter()
                .filter_map(|rows| rows.checked_sub(plain))
            {
                let known = |choice: &Choice| choice.kind() == kind && choice.rows == rows;
                if rows > drafting && rows <= most.min(room) && !choices.iter().any(known) {
                    let drafts = rows / drafting - 1;
                    choices.push(Choice {
                        shape: kind.shape(drafts),
                        rows,
                    });
                }
            }
        }
        choices
    }

    /// Rows of the largest shape of a kind that was timed; 0: none was.
    pub(super) fn largest(&self, kind: Kind) -> usize {
        let shapes = self.table.shapes.iter().map(|timing| timing.shape);
        let rows = shapes.filter(|&shape| Kind::of(shape) == kind);
        rows.map(Shape::rows).max().unwrap_or(0)
    }

    /// Expected tokens per millisecond; 0 for what a step cannot hold: it would be lowered to less,
    /// which is rated itself.
    pub(super) fn rate(&self, choice: Choice, batch: &Batch<'_>) -> f64 {
        let (drafting, plain) = (batch.known.len(), batch.plain);
        if choice.shape != Shape::Plain && choice.rows + plain > STEP_ROWS_MAX {
            return 0.0;
        }
        let nodes = choice.rows.saturating_sub(drafting);
        let each = |shape| batch.known.iter().map(move |mean| predicted(shape, mean));
        let accepted = match (choice.kind(), &batch.pools) {
            (Kind::Plain, _) => 0.0,
            (Kind::Chain, Some([chain, _])) => self.chain.value() * chain.predicted(nodes),
            (Kind::Tree, Some([_, tree])) => self.tree.value() * tree.predicted(nodes),
            (Kind::Chain, None) => self.chain.value() * each(choice.shape).sum::<f64>(),
            (Kind::Tree, None) => self.tree.value() * each(choice.shape).sum::<f64>(),
        };
        let tokens = (drafting + plain) as f64 + accepted;
        tokens / self.ms(choice, batch).max(f64::MIN_POSITIVE)
    }

    /// Expected milliseconds.
    pub(super) fn ms(&self, choice: Choice, batch: &Batch<'_>) -> f64 {
        let (drafting, plain) = (batch.known.len(), batch.plain);
        let rows = choice.rows + plain;
        self.table_ms(choice, drafting, plain) * self.pace.factor(choice.kind(), rows, self.step)
    }

    /// The same as the table has it.
    pub(super) fn table_ms(&self, choice: Choice, drafting: usize, plain: usize) -> f64 {
        let table = &self.table;
        let one_row = table.step_ms(0, drafting + plain) - table.step_ms(0, drafting);
        table.rows_ms(choice.kind(), choice.rows, drafting) + one_row
    }
}

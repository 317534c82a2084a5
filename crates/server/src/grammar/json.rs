//! JSON of a schema, by a parser of the grammar engine.

use engine::{Constraint, ConstraintState, OutputConstraint};
use llguidance::Matcher;

/// A text of a compiled schema.
pub(super) struct JsonConstraint {
    matcher: Matcher,
    failed: Option<String>,
}

impl JsonConstraint {
    /// A copy of a parser, which shares nothing with it: what it learns of the tokens takes memory.
    pub(super) fn of(matcher: &Matcher) -> Self {
        JsonConstraint {
            matcher: matcher.deep_clone(),
            failed: None,
        }
    }
}

impl Constraint for JsonConstraint {
    fn mask(&mut self, words: &mut [u32]) {
        if self.matcher.is_stopped() {
            return;
        }
        match self.matcher.compute_mask() {
            Ok(set) => {
                for (word, &own) in words.iter_mut().zip(set.as_slice()) {
                    *word |= own;
                }
            }
            Err(error) => {
                self.failed.get_or_insert(error.to_string());
            }
        }
    }

    fn accept(&mut self, token: u32) {
        if let Err(error) = self.matcher.consume_token(token) {
            self.failed.get_or_insert(error.to_string());
        }
    }

    fn rollback(&mut self, tokens: usize) {
        if let Err(error) = self.matcher.rollback(tokens) {
            self.failed.get_or_insert(error.to_string());
        }
    }
}

impl OutputConstraint for JsonConstraint {
    fn state(&self) -> ConstraintState {
        match &self.failed {
            Some(reason) => ConstraintState::Failed(reason.clone()),
            None if self.matcher.is_stopped() => ConstraintState::Complete,
            None => ConstraintState::Open,
        }
    }

    fn boxed_clone(&self) -> Box<dyn OutputConstraint> {
        Box::new(JsonConstraint {
            matcher: self.matcher.deep_clone(),
            failed: self.failed.clone(),
        })
    }
}

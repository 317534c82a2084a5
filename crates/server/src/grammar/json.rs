//! JSON of a schema, by a parser of the grammar engine.

use engine::{Constraint, ConstraintState, OutputConstraint};
use llguidance::Matcher;

/// A text of a compiled schema.
pub(super) struct JsonConstraint {
    matcher: Matcher,
    /// Tokens that the matcher took.
    taken: usize,
    /// The first token that could not come and did. The matcher knows nothing of it, nor of those
    /// behind it.
    refused: Option<Refused>,
    failed: Option<String>,
}

#[derive(Clone, Copy)]
struct Refused {
    /// Tokens from it on.
    tokens: usize,
    /// The text might have ended before it.
    whole: bool,
}

impl JsonConstraint {
    /// A copy of a parser, which shares nothing with it: what it learns of the tokens takes memory.
    pub(super) fn of(matcher: &Matcher) -> Self {
        JsonConstraint {
            matcher: matcher.deep_clone(),
            taken: 0,
            refused: None,
            failed: None,
        }
    }

    /// Gives the matcher a token that may be a wrong one.
    fn take(&mut self, token: u32) -> Result<Option<Refused>, String> {
        let matcher = &mut self.matcher;
        if matcher
            .try_consume_tokens(&[token])
            .map_err(|error| error.to_string())?
            == 1
        {
            return Ok(None);
        }
        let whole = matcher.is_accepting().map_err(|error| error.to_string())?;
        Ok(Some(Refused { tokens: 1, whole }))
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
        if let Some(refused) = &mut self.refused {
            refused.tokens += 1;
            return;
        }
        match self.take(token) {
            Ok(None) => self.taken += 1,
            Ok(refused) => self.refused = refused,
            Err(reason) => {
                self.failed.get_or_insert(reason);
            }
        }
    }

    fn rollback(&mut self, tokens: usize) {
        let refused = self.refused.map_or(0, |refused| refused.tokens);
        self.refused = self.refused.filter(|_| tokens < refused);
        if let Some(refused) = &mut self.refused {
            refused.tokens -= tokens;
            return;
        }
        let taken = (tokens - refused).min(self.taken);
        self.taken -= taken;
        if let Err(error) = self.matcher.rollback(taken) {
            self.failed.get_or_insert(error.to_string());
        }
    }
}

impl OutputConstraint for JsonConstraint {
    fn state(&self) -> ConstraintState {
        match &self.failed {
            Some(reason) => ConstraintState::Failed(reason.clone()),
            None if self.refused.is_some() => ConstraintState::Blocked {
                whole: self.refused.is_some_and(|refused| refused.whole),
            },
            None if self.matcher.is_stopped() => ConstraintState::Complete,
            None => ConstraintState::Open,
        }
    }

    fn boxed_clone(&self) -> Box<dyn OutputConstraint> {
        Box::new(JsonConstraint {
            matcher: self.matcher.deep_clone(),
            taken: self.taken,
            refused: self.refused,
            failed: self.failed.clone(),
        })
    }
}

//! What a request's output must be, one token at a time.

use ops::is_allowed;

use crate::tests::harness::VOCAB;
use crate::tests::stub_runner::{law_of, mix, token_after};
use crate::{ConstraintState, FinishReason, OutputConstraint, Request};

/// The output so far.
#[derive(Clone)]
pub(super) struct Law {
    law: u64,
    stop_ids: Vec<u32>,
    tokens_min: usize,
    pub(super) tokens_max: usize,
    constraint: Option<Box<dyn OutputConstraint>>,
    pub(super) emitted: usize,
    /// Why it ends behind the last token.
    pub(super) end: Option<FinishReason>,
}

impl Law {
    pub(super) fn new(request: &Request, context: usize) -> Self {
        let tokens_max = request.max_tokens.min(context - request.prompt.len());
        Law {
            law: law_of(request.sampling.seed, &request.prompt),
            stop_ids: request.stop_ids.clone(),
            tokens_min: request.min_tokens.min(tokens_max),
            tokens_max,
            constraint: request.constraint.clone(),
            emitted: 0,
            end: (tokens_max == 0).then_some(FinishReason::Length),
        }
    }

    /// The next token; `None` where the constraint refuses it: then it is the end.
    pub(super) fn next(&mut self) -> Option<u32> {
        assert_eq!(self.end, None, "a token behind the end");
        let words = self.constraint.as_mut().map(|constraint| {
            let mut words = vec![0; VOCAB.div_ceil(32)];
            constraint.mask(&mut words);
            words
        });
        let banned = |id: u32| {
            (self.emitted < self.tokens_min && self.stop_ids.contains(&id))
                || words.as_ref().is_some_and(|words| !is_allowed(words, id))
        };
        let token = match (0..VOCAB as u32).all(banned) {
            true => 0,
            false => token_after(self.law, VOCAB, banned),
        };
        let state = self.constraint.as_mut().map(|constraint| {
            constraint.accept(token);
            constraint.state()
        });
        let stopped = self.stop_ids.contains(&token);
        self.emitted += 1;
        self.law = mix(self.law, u64::from(token));
        let refused = match &state {
            Some(ConstraintState::Failed(text)) => Some(FinishReason::Error(text.clone())),
            Some(ConstraintState::Blocked { whole: true }) => Some(FinishReason::Stop),
            Some(ConstraintState::Blocked { whole: false }) => Some(FinishReason::Blocked),
            _ => None,
        };
        if refused.is_some() {
            self.emitted -= 1;
            self.end = refused;
            return None;
        }
        self.end = match state {
            Some(ConstraintState::Complete) => Some(FinishReason::Stop),
            _ if stopped => Some(FinishReason::Stop),
            _ if self.emitted == self.tokens_max => Some(FinishReason::Length),
            _ => None,
        };
        if state == Some(ConstraintState::Released) {
            self.constraint = None;
        }
        Some(token)
    }
}

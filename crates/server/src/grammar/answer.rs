//! Where in an output a constraint holds: from the end of the reasoning on.

use std::sync::Arc;

use engine::{Constraint, ConstraintState, OutputConstraint};

use super::allowed_calls::AllowedCalls;
use super::masks::{allow, ban};
use super::reasoning::{Closing, Held, Marks};

/// Tokens of nothing but newlines that may stand between reasoning and answer.
const NEWLINE_TOKENS_MAX: u8 = 2;

/// What the mark of a tool call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// In the place of the answer's first token it sets the output free.
    Instead,
    /// It begins the answer, which may then come while the reasoning is still open.
    Forced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Every token may follow.
    Reasoning(Held),
    /// So many tokens of newlines came after the reasoning.
    Newlines(u8),
    /// The token is the answer's.
    Answer,
    /// A tool call is there instead of the answer.
    Free,
}

/// Lets the reasoning pass and holds the answer to another constraint.
pub(super) struct AnswerConstraint {
    answer: Box<dyn OutputConstraint>,
    marks: Arc<Marks>,
    call: Option<Call>,
    /// What calls may be, where the answer itself says nothing of that.
    calls: Option<AllowedCalls>,
    start: Phase,
    /// After each accepted token.
    phases: Vec<Phase>,
    /// Index of the first token that could not come and did.
    illegal: Option<usize>,
}

impl AnswerConstraint {
    /// At the first output token; `in_reasoning` says that the prompt left a block open.
    pub(super) fn new(
        answer: Box<dyn OutputConstraint>,
        marks: Arc<Marks>,
        in_reasoning: bool,
        call: Option<Call>,
        calls: Option<AllowedCalls>,
    ) -> Self {
        AnswerConstraint {
            answer,
            marks,
            call,
            calls,
            start: match in_reasoning {
                true => Phase::Reasoning(Held::default()),
                // The template has closed the block and written the newlines itself.
                false => Phase::Newlines(NEWLINE_TOKENS_MAX),
            },
            phases: Vec::new(),
            illegal: None,
        }
    }

    fn phase(&self) -> Phase {
        self.phases.last().copied().unwrap_or(self.start)
    }

    /// The rules of calls, where the text is free otherwise.
    fn calls(&self) -> Option<&AllowedCalls> {
        let free = match self.phase() {
            Phase::Reasoning(_) | Phase::Free => true,
            Phase::Newlines(_) => false,
            Phase::Answer => self.answer.state() == ConstraintState::Released,
        };
        self.calls.as_ref().filter(|_| free)
    }

    fn is_call(&self, token: u32, call: Call) -> bool {
        self.call == Some(call) && self.marks.tool_call() == Some(token)
    }

    /// Where a token leads.
    fn next(&mut self, token: u32) -> Phase {
        match self.phase() {
            Phase::Free => Phase::Free,
            Phase::Reasoning(_) if self.is_call(token, Call::Forced) => Phase::Answer,
            Phase::Reasoning(held) => match self.marks.closing(held, token) {
                Closing::Open(held) => Phase::Reasoning(held),
                Closing::Closed => Phase::Newlines(0),
                Closing::Overrun => {
                    self.illegal.get_or_insert(self.phases.len());
                    Phase::Newlines(0)
                }
            },
            Phase::Newlines(_) if self.is_call(token, Call::Instead) => Phase::Free,
            Phase::Newlines(count) if count < NEWLINE_TOKENS_MAX => {
                match self.marks.newlines().binary_search(&token) {
                    Ok(_) => Phase::Newlines(count + 1),
                    Err(_) => Phase::Answer,
                }
            }
            Phase::Newlines(_) | Phase::Answer => Phase::Answer,
        }
    }
}

impl Constraint for AnswerConstraint {
    fn mask(&mut self, words: &mut [u32]) {
        match self.phase() {
            Phase::Free => words.fill(u32::MAX),
            Phase::Reasoning(held) => {
                words.fill(u32::MAX);
                for &id in self.marks.overrun(held) {
                    ban(words, id);
                }
            }
            Phase::Newlines(count) => {
                self.answer.mask(words);
                if count < NEWLINE_TOKENS_MAX {
                    for &id in self.marks.newlines() {
                        allow(words, id);
                    }
                }
                if let (Some(Call::Instead), Some(id)) = (self.call, self.marks.tool_call()) {
                    allow(words, id);
                }
            }
            Phase::Answer => self.answer.mask(words),
        }
        if let Some(calls) = self.calls() {
            calls.restrict(words);
        }
    }

    fn allows_all(&mut self) -> bool {
        let all = match self.phase() {
            Phase::Free => true,
            Phase::Reasoning(held) => self.marks.overrun(held).is_empty(),
            Phase::Newlines(_) => false,
            Phase::Answer => self.answer.allows_all(),
        };
        all && self.calls().is_none_or(AllowedCalls::allows_any)
    }

    fn accept(&mut self, token: u32) {
        if let Some(calls) = &mut self.calls {
            calls.accept(token);
        }
        let phase = self.next(token);
        if phase == Phase::Answer {
            self.answer.accept(token);
        }
        self.phases.push(phase);
    }

    fn rollback(&mut self, tokens: usize) {
        if let Some(calls) = &mut self.calls {
            calls.rollback(tokens);
        }
        let kept = self.phases.len().saturating_sub(tokens);
        let answered = self.phases.drain(kept..);
        let answered = answered.filter(|&phase| phase == Phase::Answer).count();
        if answered > 0 {
            self.answer.rollback(answered);
        }
        self.illegal = self.illegal.filter(|&index| index < kept);
    }
}

impl OutputConstraint for AnswerConstraint {
    fn state(&self) -> ConstraintState {
        // The answer began in the token that closed the reasoning.
        if self.illegal.is_some() {
            return ConstraintState::Blocked { whole: false };
        }
        if let Some(calls) = self.calls() {
            return calls.state();
        }
        match self.phase() {
            Phase::Free => ConstraintState::Released,
            Phase::Reasoning(_) | Phase::Newlines(_) => ConstraintState::Open,
            Phase::Answer => self.answer.state(),
        }
    }

    fn boxed_clone(&self) -> Box<dyn OutputConstraint> {
        Box::new(AnswerConstraint {
            answer: self.answer.boxed_clone(),
            marks: Arc::clone(&self.marks),
            call: self.call,
            calls: self.calls.clone(),
            start: self.start,
            phases: self.phases.clone(),
            illegal: self.illegal,
        })
    }
}

//! What an output must obey, and what the step loop does with it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use model::Constraint;

use crate::FinishReason;
use crate::sequence::Sequence;

/// Where the text under a constraint stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConstraintState {
    /// Something may follow, and masks say what.
    Open,
    /// The text is whole: the request ends with its last token, drawn end or not.
    Complete,
    /// From here on every token may follow, whatever comes.
    Released,
    /// The last token may not follow, and came because something else bans all that may: a bias,
    /// a minimum of tokens. The request ends before it.
    Blocked {
        /// The text might have ended there.
        whole: bool,
    },
    /// It cannot say what may follow; the request fails with this reason.
    Failed(String),
}

/// A [`Constraint`] on one request's output.
///
/// Where the text is complete, [`Constraint::mask`] leaves its words zero. A token that may not
/// follow is no broken contract here: [`Constraint::accept`] takes any, and [`Self::state`] then
/// says `Blocked`. That happens when everything the mask left is banned by something else, such as
/// a bias.
pub trait OutputConstraint: Constraint + Send {
    /// Where the text stands.
    fn state(&self) -> ConstraintState;

    /// The same constraint at the same point, independent of this one.
    fn boxed_clone(&self) -> Box<dyn OutputConstraint>;
}

impl Clone for Box<dyn OutputConstraint> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

impl fmt::Debug for dyn OutputConstraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "OutputConstraint({:?})", self.state())
    }
}

/// What of a step's tokens counts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Tokens up to the end, if there is one.
    pub(crate) kept: usize,
    /// Why the request ends with them.
    pub(crate) end: Option<FinishReason>,
}

/// A running sequence's constraint. A panic in it is a failure of this sequence alone.
#[derive(Debug)]
pub(crate) struct Guarded {
    /// `None` after a panic: nobody knows what is left of it.
    own: Option<Box<dyn OutputConstraint>>,
    spent: Duration,
}

impl Guarded {
    /// Takes a request's constraint.
    pub(crate) fn new(own: Box<dyn OutputConstraint>) -> Self {
        Guarded {
            own: Some(own),
            spent: Duration::ZERO,
        }
    }

    /// Moves on by emitted tokens, up to where the text ends.
    pub(crate) fn check(&mut self, tokens: impl Iterator<Item = u32>) -> Checked {
        let (mut kept, mut end) = (0, None);
        // The masks of these tokens may have broken it already.
        if let failed @ ConstraintState::Failed(_) = self.state() {
            return Checked {
                kept,
                end: finish_reason(failed),
            };
        }
        for token in tokens {
            self.accept(token);
            let state = self.state();
            let refused = matches!(
                state,
                ConstraintState::Failed(_) | ConstraintState::Blocked { .. }
            );
            kept += usize::from(!refused);
            end = finish_reason(state);
            if end.is_some() {
                break;
            }
        }
        Checked { kept, end }
    }

    /// Whether nothing is constrained any more.
    pub(crate) fn is_released(&mut self) -> bool {
        self.state() == ConstraintState::Released
    }

    /// Time in the constraint since the last call.
    pub(crate) fn take_time(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }

    fn state(&mut self) -> ConstraintState {
        let broken = || ConstraintState::Failed("the constraint panicked".into());
        self.call(|own| own.state()).unwrap_or_else(broken)
    }

    fn call<T>(&mut self, work: impl FnOnce(&mut dyn OutputConstraint) -> T) -> Option<T> {
        let own = self.own.as_mut()?;
        let began = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut **own)));
        self.spent += began.elapsed();
        if result.is_err() {
            self.own = None;
        }
        result.ok()
    }
}

fn finish_reason(state: ConstraintState) -> Option<FinishReason> {
    match state {
        ConstraintState::Open | ConstraintState::Released => None,
        ConstraintState::Complete | ConstraintState::Blocked { whole: true } => {
            Some(FinishReason::Stop)
        }
        ConstraintState::Blocked { whole: false } => Some(FinishReason::Blocked),
        ConstraintState::Failed(reason) => Some(FinishReason::Error(reason)),
    }
}

/// The constraints of a call's sequences, apart from them: a call reads the one and changes the
/// other.
pub(crate) struct Borrowed(Vec<Option<Guarded>>);

impl Borrowed {
    /// Takes those of the sequences at `indices`.
    pub(crate) fn take(running: &mut [Sequence], indices: &[usize]) -> Self {
        let take = |&index: &usize| running[index].history.constraint.take();
        Borrowed(indices.iter().map(take).collect())
    }

    /// What the runner takes.
    pub(crate) fn list(&mut self) -> Vec<Option<&mut dyn Constraint>> {
        (self.0.iter_mut())
            .map(|own| own.as_mut().map(|own| own as &mut dyn Constraint))
            .collect()
    }

    /// Gives them back; the milliseconds that they took, if there are any.
    pub(crate) fn put_back(self, running: &mut [Sequence], indices: &[usize]) -> Option<f64> {
        let mut spent = Duration::ZERO;
        for (mut own, &index) in self.0.into_iter().zip(indices) {
            spent += own.as_mut().map_or(Duration::ZERO, Guarded::take_time);
            running[index].history.constraint = own;
        }
        (!spent.is_zero()).then_some(spent.as_secs_f64() * 1e3)
    }
}

impl Constraint for Guarded {
    fn mask(&mut self, words: &mut [u32]) {
        self.call(|own| own.mask(words));
    }

    fn allows_all(&mut self) -> bool {
        self.call(|own| own.allows_all()).unwrap_or(false)
    }

    fn accept(&mut self, token: u32) {
        self.call(|own| own.accept(token));
    }

    fn rollback(&mut self, tokens: usize) {
        self.call(|own| own.rollback(tokens));
    }
}

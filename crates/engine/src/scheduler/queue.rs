//! Requests that wait for a slot.

use std::collections::VecDeque;
use std::time::Instant;

use crate::history::History;
use crate::{Request, RequestId};

/// A request in the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Whose it is.
    pub(crate) id: RequestId,
    /// What was asked for.
    pub(crate) request: Request,
    /// When.
    pub(crate) submitted: Instant,
    /// Of a request that had a slot and lost it.
    pub(crate) history: Option<History>,
}

impl Waiting {
    /// Lower goes first: by priority, then by age. Ids are given in order of submission.
    fn rank(&self) -> (i64, RequestId) {
        (self.request.priority, self.id)
    }
}

/// In order of priority and age.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Waiting>,
}

impl Queue {
    /// Nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes its place among the others: in front of all that are less urgent or younger.
    pub(crate) fn push(&mut self, waiting: Waiting) {
        let place = (self.waiting).partition_point(|other| other.rank() < waiting.rank());
        self.waiting.insert(place, waiting);
    }

    /// All, in order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter()
    }

    /// How many had a slot and lost it.
    pub(crate) fn preempted(&self) -> usize {
        let waiting = self.waiting.iter();
        waiting.filter(|waiting| waiting.history.is_some()).count()
    }

    /// The one that starts next.
    pub(crate) fn head(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    /// Takes it out.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    /// Takes a request out.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let index = self.waiting.iter().position(|waiting| waiting.id == id)?;
        self.waiting.remove(index)
    }

    /// Whether a request is here and never had a slot.
    pub(crate) fn is_new(&self, id: RequestId) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|waiting| waiting.id == id && waiting.history.is_none())
    }
}

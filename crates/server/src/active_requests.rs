//! The requests that the engine works on, by the names under which they can be aborted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{EngineHandle, RequestId};

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct ActiveRequests {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    last_key: u64,
    by_key: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// What the client calls it; several requests may have one name.
    name: String,
    /// Sequences that have not ended.
    sequences: Vec<RequestId>,
    aborted: Arc<AtomicBool>,
}

/// One request's place in the list, left when this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    list: Arc<ActiveRequests>,
    key: u64,
    aborted: Arc<AtomicBool>,
}

impl ActiveRequests {
    /// A request without sequences yet.
    pub(crate) fn enter(self: &Arc<Self>, name: &str) -> Registration {
        let aborted = Arc::new(AtomicBool::new(false));
        let mut entries = self.entries();
        entries.last_key += 1;
        let key = entries.last_key;
        let entry = Entry {
            name: name.to_owned(),
            sequences: Vec::new(),
            aborted: Arc::clone(&aborted),
        };
        entries.by_key.insert(key, entry);
        Registration {
            list: Arc::clone(self),
            key,
            aborted,
        }
    }

    /// Ends every request of this name; how many there were.
    pub(crate) fn abort(&self, engine: &EngineHandle, name: &str) -> usize {
        self.abort_where(|entry| entry.name == name, |id| engine.abort(id))
    }

    /// Ends every request; how many there were.
    pub(crate) fn abort_all(&self, engine: &EngineHandle) -> usize {
        self.abort_where(|_| true, |id| engine.abort(id))
    }

    fn abort_where(&self, which: impl Fn(&Entry) -> bool, abort: impl Fn(RequestId)) -> usize {
        let entries = self.entries();
        let open = |entry: &&Entry| !entry.sequences.is_empty() && which(entry);
        let mut count = 0;
        for entry in entries.by_key.values().filter(open) {
            // Before the engine hears of it: whoever sees the end must know why.
            if entry.aborted.swap(true, Ordering::AcqRel) {
                continue;
            }
            entry.sequences.iter().for_each(|&id| abort(id));
            count += 1;
        }
        count
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Calls the request by the client's name for it.
    pub(crate) fn rename(&self, name: &str) {
        self.change(|entry| name.clone_into(&mut entry.name));
    }

    /// A sequence was submitted.
    pub(crate) fn add(&self, id: RequestId) {
        self.change(|entry| entry.sequences.push(id));
    }

    /// A sequence has ended.
    pub(crate) fn remove(&self, id: RequestId) {
        self.change(|entry| entry.sequences.retain(|&known| known != id));
    }

    /// Whether somebody asked for the end of the request.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.list.entries().by_key.get_mut(&self.key) {
            change(entry);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.list.entries().by_key.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn aborted(list: &ActiveRequests, name: Option<&str>) -> (usize, Vec<u64>) {
        let ids = RefCell::new(Vec::new());
        let which = |entry: &Entry| name.is_none_or(|name| entry.name == name);
        let count = list.abort_where(which, |id| ids.borrow_mut().push(id.0));
        (count, ids.into_inner())
    }

    #[test]
    fn requests_are_found_by_name_until_they_end() {
        let list = Arc::new(ActiveRequests::default());
        let (one, two, three) = (list.enter("a"), list.enter("b"), list.enter("x"));
        three.rename("a");
        one.add(RequestId(1));
        one.add(RequestId(2));
        two.add(RequestId(3));
        three.add(RequestId(4));
        assert_eq!(aborted(&list, Some("x")), (0, vec![]));
        assert_eq!(aborted(&list, Some("a")), (2, vec![1, 2, 4]));
        assert!(one.is_aborted() && three.is_aborted() && !two.is_aborted());
        assert_eq!(aborted(&list, Some("a")), (0, vec![]), "once is enough");
        let four = list.enter("c");
        four.add(RequestId(5));
        four.add(RequestId(6));
        four.remove(RequestId(5));
        drop(three);
        assert_eq!(aborted(&list, None), (2, vec![3, 6]));
        let five = list.enter("d");
        five.add(RequestId(7));
        five.remove(RequestId(7));
        assert_eq!(aborted(&list, Some("d")), (0, vec![]));
    }
}

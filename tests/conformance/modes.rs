//! A server per algorithm, and many requests at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::server::Server;

/// Requests in flight.
const AT_ONCE: usize = 6;

/// The same model behind every algorithm.
pub struct Modes {
    pub plain: Server,
    pub chain: Server,
    pub tree: Server,
}

impl Modes {
    /// One set for all tests that run at the same time.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Modes>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let start = |algorithm: &str| {
                let algorithm = format!("--speculative-algorithm={algorithm}");
                Server::start(&[&algorithm, "--speculative-ddtree-budget=15"])
            };
            let modes = Arc::new(Modes {
                plain: Server::start(&["--speculative-algorithm=NONE"]),
                chain: Server::start(&["--speculative-algorithm=DFLASH"]),
                tree: start("DDTREE"),
            });
            *shared = Arc::downgrade(&modes);
            modes
        })
    }

    /// With their names.
    pub fn all(&self) -> [(&'static str, &Server); 3] {
        [
            ("NONE", &self.plain),
            ("DFLASH", &self.chain),
            ("DDTREE 15", &self.tree),
        ]
    }
}

/// Applies `ask` to every item, several at a time; results are in the order of the items.
pub fn at_once<T: Sync, R: Send>(items: &[T], ask: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let result = ask(item);
                    results.lock().unwrap().push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

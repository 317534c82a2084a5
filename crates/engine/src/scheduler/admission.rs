//! From the queue into a slot.

use super::{Scheduler, Waiting};
use crate::history::History;
use crate::kv_pool::BlockTable;
use crate::prefix_cache::boundaries::Boundaries;
use crate::prefix_cache::{Lease, Lookup, Move};
use crate::sequence::Sequence;

/// A request has moved into a slot.
#[derive(Debug)]
#[must_use]
pub(crate) struct Admission {
    /// Index in [`Scheduler::running`].
    pub(crate) index: usize,
    /// Whether the request never had a slot before.
    pub(crate) first: bool,
    /// Prompt tokens that the cache spared; 0 unless it is the first admission.
    pub(crate) spared: usize,
    /// Where it goes on from.
    pub(crate) resumed: Option<Resumed>,
}

/// A beginning that the prefix cache holds.
#[derive(Debug)]
pub(crate) struct Resumed {
    /// Its tokens.
    pub(crate) length: usize,
    /// Its state on the device; ends with [`crate::prefix_cache::PrefixCache::unpin`] when the runner has read it.
    pub(crate) lease: Lease,
    /// Copies to be made before.
    pub(crate) moves: Vec<Move>,
}

/// Pages of the request that is about to start.
struct Room {
    pages: BlockTable,
    resumed: Option<Resumed>,
    fork: Option<usize>,
}

impl Scheduler {
    /// Moves the head of the queue into a slot, if one and enough pages are free.
    pub(crate) fn admit(&mut self) -> Option<Admission> {
        let head = self.waiting.head()?;
        if self.slots.used() == self.slots.total() {
            return None;
        }
        // Whether there is room changes with what runs and what is free; looking is not for nothing.
        let id = head.id;
        if self.blocked == Some((id, self.kv.free(), self.running.len())) {
            return None;
        }
        let head = self.waiting.pop().expect("the queue has a head");
        let Some(room) = self.room(&head) else {
            self.blocked = Some((id, self.kv.free(), self.running.len()));
            self.waiting.push(head);
            return None;
        };
        let slot = self.slots.reserve().expect("a slot is free");
        let Waiting {
            id,
            mut request,
            submitted,
            history,
        } = head;
        let cached = room.resumed.as_ref().map_or(0, |resumed| resumed.length);
        let prompt = request.prompt.len();
        let first = history.is_none();
        let spared = if first { cached } else { 0 };
        let history = history.unwrap_or_else(|| {
            if let Some(cache) = &mut self.cache {
                cache.count(prompt, cached);
            }
            History::new(&mut request, submitted, cached)
        });
        let boundaries = self
            .cache
            .as_ref()
            .map(|_| Boundaries::new(self.limits.interval, request.turn_end, room.fork, prompt));
        let tokens_max = request.max_tokens.min(self.limits.context - prompt);
        let owned = (slot, room.pages);
        let mut sequence = Sequence::new((id, request, history), tokens_max, owned, cached);
        sequence.boundaries = boundaries;
        self.running.push(sequence);
        Some(Admission {
            index: self.running.len() - 1,
            first,
            spared,
            resumed: room.resumed,
        })
    }

    /// Pages for what is known of a request and one verify block, those of its beginning from the
    /// cache.
    fn room(&mut self, head: &Waiting) -> Option<Room> {
        let prompt = head.request.prompt.len();
        let emitted = head
            .history
            .as_ref()
            .map_or(0, |history| history.output.len());
        // The last verify pass may write `tree_rows - 1` rows behind the last token. A prompt that
        // is only scored owns the place of one token all the same: a slot always has an output.
        let tokens = (prompt + emitted.max(1) + self.limits.tree_rows - 1).min(self.limits.context);
        let Lookup { hit, fork } = self.lookup(head);
        let shared = hit.as_ref().map_or(&[][..], |hit| &hit.pages);
        let pages = self.reserve(shared, tokens);
        let (Some(hit), Some(cache)) = (hit, &mut self.cache) else {
            return pages.map(|pages| Room {
                pages,
                resumed: None,
                fork,
            });
        };
        let mut lease = hit.lease;
        let Some(pages) = pages else {
            cache.unpin(lease);
            return None;
        };
        if let Some(moves) = cache.promote(&mut lease) {
            return Some(Room {
                pages,
                resumed: Some(Resumed {
                    length: hit.length,
                    lease,
                    moves,
                }),
                fork,
            });
        }
        // The state is in host memory, and every place on the device is needed right now.
        cache.unpin(lease);
        self.kv.release(pages);
        let pages = self.reserve(&[], tokens)?;
        Some(Room {
            pages,
            resumed: None,
            fork: None,
        })
    }

    /// What the cache has of a prompt. One that is scored needs all its rows computed.
    fn lookup(&mut self, head: &Waiting) -> Lookup {
        let request = &head.request;
        match &mut self.cache {
            Some(cache) if request.prompt_logprobs.is_none() => {
                cache.lookup(request.cache_salt.as_deref(), &request.prompt)
            }
            _ => Lookup {
                hit: None,
                fork: None,
            },
        }
    }

    /// A table of the shared pages and as many more as `tokens` tokens need. While others run each
    /// of them must find a page more, or the newcomer would only make them, or be made, go back to
    /// the queue.
    fn reserve(&mut self, shared: &[u32], tokens: usize) -> Option<BlockTable> {
        let mut pages = self.kv.share(shared);
        let wanted = tokens.div_ceil(ops::PAGE_TOKENS) - shared.len() + self.running.len();
        let short = wanted.saturating_sub(self.kv.free());
        if let (Some(cache), true) = (&mut self.cache, short > 0) {
            cache.evict_pages(&mut self.kv, short);
        }
        if self.kv.free() >= wanted && self.kv.extend(&mut pages, tokens) {
            return Some(pages);
        }
        self.kv.release(pages);
        None
    }
}

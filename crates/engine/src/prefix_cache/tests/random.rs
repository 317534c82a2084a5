//! Long random histories against a model that remembers what every page and place holds.

use std::collections::{HashMap, HashSet};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::kv_pool::BlockTable;

/// A salt and the tokens up to the end of a page or the place of a state.
type Prefix = (Option<&'static str>, Vec<u32>);

struct Running {
    prefix: Prefix,
    table: BlockTable,
    lease: Option<Lease>,
}

struct History {
    random: Pcg64,
    cache: PrefixCache,
    pool: KvPool,
    /// What was last written to each page.
    pages: HashMap<u32, Prefix>,
    /// What was last written to each place.
    places: HashMap<Place, Prefix>,
    running: Vec<Running>,
    hits: usize,
}

impl History {
    fn new(seed: u64, device: usize, host: usize, pages: usize) -> Self {
        History {
            random: Pcg64::seed_from_u64(seed),
            cache: PrefixCache::new(device, host),
            pool: KvPool::new(pages),
            pages: HashMap::new(),
            places: HashMap::new(),
            running: Vec::new(),
            hits: 0,
        }
    }

    /// A prompt of a few pages over two tokens; sometimes two pages differ in their last token.
    fn prompt(&mut self) -> Prefix {
        let salt = [None, None, Some("a"), Some("b")][self.random.random_range(0..4)];
        let pages: Vec<u32> = (0..self.random.random_range(0..7))
            .map(|_| self.random.random_range(0..2))
            .collect();
        let mut prompt = tokens(&pages);
        for page in prompt.chunks_mut(PAGE_TOKENS) {
            page[PAGE_TOKENS - 1] += u32::from(self.random.random_bool(0.1));
        }
        prompt.extend(vec![0; self.random.random_range(0..64)]);
        (salt, prompt)
    }

    fn copy(&mut self, moves: &[Move]) {
        for &copy in moves {
            let (from, to) = match copy {
                Move::Offload { device, host } => (Place::Device(device), Place::Host(host)),
                Move::Fetch { host, device } => (Place::Host(host), Place::Device(device)),
            };
            self.write(to, self.places[&from].clone());
        }
    }

    /// Nobody may overwrite what a lease points to.
    fn write(&mut self, place: Place, prefix: Prefix) {
        let leases = self.running.iter().filter_map(|r| r.lease.as_ref());
        assert!(leases.into_iter().all(|lease| lease.place() != place));
        self.places.insert(place, prefix);
    }

    /// The deepest prefix that can be resumed and how far the pages reach, found by trying all.
    fn expected(&self, (salt, prompt): &Prefix) -> (usize, usize) {
        let cached: HashSet<&Prefix> = self.cache.pages().map(|p| &self.pages[&p]).collect();
        let attached = self
            .cache
            .tree
            .nodes()
            .filter_map(|(_, node)| node.snapshot);
        let states: HashSet<&Prefix> = attached.map(|place| &self.places[&place]).collect();
        let (mut hit, mut known) = (0, 0);
        for end in (PAGE_TOKENS..prompt.len()).step_by(PAGE_TOKENS) {
            let prefix = (*salt, prompt[..end].to_vec());
            if !cached.contains(&prefix) {
                break;
            }
            known = end;
            if states.contains(&prefix) {
                hit = end;
            }
        }
        (hit, known)
    }

    fn admit(&mut self) {
        let (salt, prompt) = self.prompt();
        if prompt.is_empty() {
            return;
        }
        let prefix = (salt, prompt);
        let (hit_expected, known) = self.expected(&prefix);
        let Lookup { hit, fork } = self.cache.lookup(salt, &prefix.1);
        assert_eq!(hit.as_ref().map_or(0, |hit| hit.length), hit_expected);
        assert_eq!(fork, Some(known).filter(|&known| known > hit_expected));
        let mut table = self.pool.share(&[]);
        let mut lease = None;
        if let Some(hit) = hit {
            self.hits += 1;
            for (index, &page) in hit.pages.iter().enumerate() {
                let end = (index + 1) * PAGE_TOKENS;
                assert_eq!(self.pages[&page], (salt, prefix.1[..end].to_vec()));
            }
            let state = (salt, prefix.1[..hit.length].to_vec());
            assert_eq!(self.places[&hit.lease.place()], state);
            table = self.pool.share(&hit.pages);
            lease = Some(self.fetch(hit.lease, &state));
        }
        let short = prefix.1.len().div_ceil(PAGE_TOKENS) - table.pages().len();
        let missing = short.saturating_sub(self.pool.free());
        let evictable = self.cache.evictable(&self.pool);
        let freed = self.cache.evict_pages(&mut self.pool, missing);
        assert_eq!(freed, missing.min(evictable));
        if !self.pool.extend(&mut table, prefix.1.len()) {
            self.pool.release(table);
            lease.into_iter().for_each(|lease| self.cache.unpin(lease));
            return;
        }
        for (index, &page) in table
            .pages()
            .iter()
            .enumerate()
            .skip(hit_expected / PAGE_TOKENS)
        {
            assert!(self.pool.is_sole(page), "it is about to be written");
            let end = prefix.1.len().min((index + 1) * PAGE_TOKENS);
            self.pages.insert(page, (salt, prefix.1[..end].to_vec()));
        }
        self.running.push(Running {
            prefix,
            table,
            lease,
        });
    }

    /// Brings a state to the device if that has a place; it holds the same there.
    fn fetch(&mut self, mut lease: Lease, state: &Prefix) -> Lease {
        if let Some(moves) = self.cache.promote(&mut lease) {
            self.copy(&moves);
            assert!(matches!(lease.place(), Place::Device(_)));
        }
        assert_eq!(&self.places[&lease.place()], state);
        lease
    }

    /// A running sequence enters the cache up to some page, perhaps with a state there.
    fn keep(&mut self, index: usize) {
        let running = &self.running[index];
        let (salt, prompt) = running.prefix.clone();
        let count = self.random.random_range(0..=prompt.len() / PAGE_TOKENS);
        let prefix = (salt, prompt[..count * PAGE_TOKENS].to_vec());
        let pages = running.table.pages()[..count].to_vec();
        if self.random.random_bool(0.9) {
            let held = self.cache.stats().pages;
            let new = self.cache.insert(salt, &prefix.1, &pages, &mut self.pool);
            assert_eq!(self.cache.stats().pages, held + new);
        }
        if self.random.random_bool(0.3) {
            return;
        }
        let Some(mut reservation) = self.cache.reserve_snapshot() else {
            return;
        };
        self.copy(&std::mem::take(&mut reservation.moves));
        let place = Place::Device(reservation.device());
        self.write(place, prefix.clone());
        match self.random.random_bool(0.9) {
            true => drop(self.cache.attach(salt, &prefix.1, reservation)),
            false => self.cache.cancel(reservation),
        }
    }

    fn end(&mut self, index: usize) {
        let running = self.running.swap_remove(index);
        self.pool.release(running.table);
        running
            .lease
            .into_iter()
            .for_each(|lease| self.cache.unpin(lease));
    }

    fn step(&mut self) {
        let any = self.random.random_range(0..self.running.len().max(1));
        let runs = !self.running.is_empty();
        match self.random.random_range(0..100) {
            0..40 => self.admit(),
            40..75 if runs => self.keep(any),
            75..95 if runs => self.end(any),
            95..99 => {
                let wanted = self.random.random_range(0..6);
                let evictable = self.cache.evictable(&self.pool);
                let freed = self.cache.evict_pages(&mut self.pool, wanted);
                assert_eq!(freed, wanted.min(evictable));
            }
            99 if self.random.random_bool(0.2) => self.cache.flush(&mut self.pool),
            _ => {}
        }
        self.cache.audit().expect("a sound cache");
        // With the tables' own holds taken off, the cache's are left.
        let mut holders: HashMap<u32, u32> = HashMap::new();
        let tables = self.running.iter().flat_map(|r| r.table.pages().to_vec());
        for page in tables.chain(self.cache.pages()) {
            *holders.entry(page).or_default() += 1;
        }
        assert_eq!(holders.len(), self.pool.used());
        for (&page, &count) in &holders {
            assert_eq!(self.pool.is_sole(page), count == 1, "page {page}");
        }
    }

    fn finish(mut self) -> usize {
        while !self.running.is_empty() {
            self.end(0);
        }
        self.cache.audit_idle().expect("nothing is in use");
        self.pool
            .audit(self.cache.pages())
            .expect("only cached pages are held");
        let all = self.cache.stats().pages;
        assert_eq!(self.cache.evictable(&self.pool), all);
        match self.random.random_bool(0.5) {
            true => self.cache.flush(&mut self.pool),
            false => assert_eq!(self.cache.evict_pages(&mut self.pool, usize::MAX), all),
        }
        self.pool.audit([]).expect("nothing leaks");
        let stats = self.cache.stats();
        assert_eq!(
            (stats.pages, stats.device_snapshots, stats.host_snapshots),
            (0, 0, 0)
        );
        assert_eq!(self.cache.tree.nodes().count(), 0);
        self.hits
    }
}

#[test]
fn hits_are_the_longest_possible_and_hold_what_they_say() {
    let mut hits = 0;
    for (seed, (device, host, pages)) in [
        (1, 0, 16),
        (3, 2, 24),
        (4, 0, 60),
        (2, 8, 200),
        (0, 4, 30),
        (6, 3, 40),
    ]
    .into_iter()
    .cycle()
    .take(12)
    .enumerate()
    {
        let mut history = History::new(seed as u64, device, host, pages);
        for _ in 0..1500 {
            history.step();
        }
        hits += history.finish();
    }
    assert!(hits > 500, "only {hits} hits: the histories show nothing");
}

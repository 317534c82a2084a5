//! Tables of single behaviours; [`random`] compares long histories with a naive model.

use super::*;

mod random;
mod sizes;

/// Pages of one token each: `tokens(&[1, 2])` is a page of ones, then a page of twos.
fn tokens(pages: &[u32]) -> Vec<u32> {
    let page = |&id: &u32| std::iter::repeat_n(id, PAGE_TOKENS);
    pages.iter().flat_map(page).collect()
}

/// The same and one token more: a prompt that may use all of its whole pages.
fn prompt(pages: &[u32]) -> Vec<u32> {
    let mut prompt = tokens(pages);
    prompt.push(0);
    prompt
}

struct Fixture {
    cache: PrefixCache,
    pool: KvPool,
}

impl Fixture {
    fn new(device: usize, host: usize) -> Self {
        Fixture {
            cache: PrefixCache::new(device, host),
            pool: KvPool::new(64),
        }
    }

    /// A prefix is computed, enters the cache and its sequence ends.
    fn insert(&mut self, salt: Option<&str>, pages: &[u32]) -> usize {
        let tokens = tokens(pages);
        let table = self.pool.reserve(tokens.len()).expect("pages are free");
        let cache = &mut self.cache;
        let new = cache.insert(salt, &tokens, table.pages(), &mut self.pool);
        self.pool.release(table);
        self.cache.audit().expect("a sound cache");
        new
    }

    /// Keeps a snapshot behind a prefix.
    fn snapshot(&mut self, salt: Option<&str>, pages: &[u32]) -> Vec<Move> {
        let mut reservation = self.cache.reserve_snapshot().expect("a place");
        let moves = std::mem::take(&mut reservation.moves);
        assert!(self.cache.attach(salt, &tokens(pages), reservation));
        self.cache.audit().expect("a sound cache");
        moves
    }

    /// Lengths of hit and fork in pages.
    fn lengths(&mut self, salt: Option<&str>, prompt: &[u32]) -> (usize, Option<usize>) {
        let Lookup { hit, fork } = self.cache.lookup(salt, prompt);
        let length = hit.map_or(0, |hit| {
            assert_eq!(hit.length, hit.pages.len() * PAGE_TOKENS);
            self.cache.unpin(hit.lease);
            hit.pages.len()
        });
        (length, fork.map(|fork| fork / PAGE_TOKENS))
    }

    fn place(&mut self, pages: &[u32]) -> Option<Place> {
        let lease = self.cache.lookup(None, &prompt(pages)).hit?.lease;
        let place = lease.place();
        self.cache.unpin(lease);
        Some(place)
    }

    fn flush(mut self) {
        self.cache.flush(&mut self.pool);
        self.cache.audit_idle().expect("nothing is in use");
        self.pool.audit([]).expect("nothing leaks");
        let stats = self.cache.stats();
        let left = (stats.pages, stats.device_snapshots, stats.host_snapshots);
        assert_eq!(left, (0, 0, 0));
    }
}

#[test]
fn a_hit_ends_at_a_snapshot_before_the_last_token() {
    let mut fixture = Fixture::new(4, 0);
    assert_eq!(fixture.lengths(None, &[]), (0, None));
    assert_eq!(fixture.insert(None, &[1, 2, 3, 4]), 4);
    assert_eq!(fixture.lengths(None, &prompt(&[1, 2, 3])), (0, Some(3)));
    fixture.snapshot(None, &[1, 2]);
    fixture.snapshot(None, &[1, 2, 3, 4]);
    type Case = (Vec<u32>, (usize, Option<usize>));
    let mut near = tokens(&[1, 2, 3, 4]);
    near[191] = 9;
    let table: [Case; 9] = [
        (prompt(&[1, 2, 3, 4]), (4, None)),
        (tokens(&[1, 2, 3, 4]), (2, Some(3))),
        (prompt(&[1, 2, 3, 4, 5]), (4, None)),
        (prompt(&[1, 2, 3, 5]), (2, Some(3))),
        (prompt(&[1, 2]), (2, None)),
        (tokens(&[1, 2]), (0, Some(1))),
        (prompt(&[2, 2, 3, 4]), (0, None)),
        (near, (2, None)),
        (vec![1; 63], (0, None)),
    ];
    for (prompt, expected) in table {
        assert_eq!(fixture.lengths(None, &prompt), expected, "{prompt:?}");
    }
    fixture.flush();
}

#[test]
fn the_third_prompt_with_a_common_beginning_resumes_behind_it() {
    let mut fixture = Fixture::new(4, 0);
    let first = [7, 7, 7, 1];
    fixture.insert(None, &first);
    fixture.snapshot(None, &first);
    let (length, fork) = fixture.lengths(None, &prompt(&[7, 7, 7, 2]));
    assert_eq!((length, fork), (0, Some(3)));
    fixture.insert(None, &[7, 7, 7]);
    fixture.snapshot(None, &[7, 7, 7]);
    assert_eq!(
        fixture.insert(None, &[7, 7, 7, 2]),
        1,
        "three pages are known"
    );
    assert_eq!(fixture.lengths(None, &prompt(&[7, 7, 7, 3])), (3, None));
    assert_eq!(fixture.lengths(None, &prompt(&first)), (4, None));
    fixture.flush();
}

#[test]
fn salts_never_meet() {
    let mut fixture = Fixture::new(4, 0);
    for salt in [None, Some("a"), Some("b")] {
        assert_eq!(fixture.insert(salt, &[1, 2]), 2);
        fixture.snapshot(salt, &[1, 2]);
    }
    let prompt = prompt(&[1, 2]);
    let pages = |fixture: &mut Fixture, salt: Option<&str>| {
        let hit = fixture.cache.lookup(salt, &prompt).hit.expect("a hit");
        fixture.cache.unpin(hit.lease);
        hit.pages
    };
    let found = [None, Some("a"), Some("b")].map(|salt| pages(&mut fixture, salt));
    assert!(found[0] != found[1] && found[1] != found[2] && found[0] != found[2]);
    assert_eq!(
        pages(&mut fixture, Some("")),
        found[0],
        "an empty salt is none"
    );
    assert_eq!(fixture.lengths(Some("c"), &prompt), (0, None));
    fixture.flush();
}

#[test]
fn known_pages_stay_and_duplicates_remain_the_sequences() {
    let mut fixture = Fixture::new(2, 0);
    fixture.insert(None, &[1, 2]);
    let kept: Vec<u32> = fixture.cache.pages().collect();
    let own = fixture
        .pool
        .reserve(3 * PAGE_TOKENS)
        .expect("pages are free");
    let (cache, pool) = (&mut fixture.cache, &mut fixture.pool);
    assert_eq!(
        cache.insert(None, &tokens(&[1, 2, 3]), own.pages(), pool),
        1
    );
    let now: Vec<u32> = fixture.cache.pages().collect();
    assert_eq!(now, [kept, own.pages()[2..].to_vec()].concat());
    let sole: Vec<bool> = own
        .pages()
        .iter()
        .map(|&p| fixture.pool.is_sole(p))
        .collect();
    assert_eq!(sole, [true, true, false]);
    fixture.pool.release(own);
    fixture
        .pool
        .audit(fixture.cache.pages())
        .expect("three pages are held");
    fixture.flush();
}

#[test]
fn a_state_is_attached_only_where_its_pages_are_and_once() {
    let mut fixture = Fixture::new(2, 0);
    fixture.insert(None, &[1, 2]);
    for missing in [&[1, 2, 3][..], &[2], &[]] {
        let reservation = fixture.cache.reserve_snapshot().expect("a place");
        assert!(!fixture.cache.attach(None, &tokens(missing), reservation));
    }
    fixture.snapshot(None, &[1, 2]);
    let place = fixture.place(&[1, 2]);
    let reservation = fixture.cache.reserve_snapshot().expect("a place");
    assert!(!fixture.cache.attach(None, &tokens(&[1, 2]), reservation));
    assert_eq!(fixture.place(&[1, 2]), place);
    let one = fixture.cache.reserve_snapshot().expect("a free place");
    let two = fixture
        .cache
        .reserve_snapshot()
        .expect("the other snapshot's");
    assert!(
        fixture.cache.reserve_snapshot().is_none(),
        "both are reserved"
    );
    assert_eq!(fixture.place(&[1, 2]), None);
    assert!(fixture.cache.audit_idle().is_err());
    fixture.cache.cancel(one);
    fixture.cache.cancel(two);
    fixture.flush();
}

#[test]
fn a_pinned_snapshot_keeps_its_place() {
    let mut fixture = Fixture::new(1, 1);
    fixture.insert(None, &[1]);
    fixture.snapshot(None, &[1]);
    let hit = fixture
        .cache
        .lookup(None, &prompt(&[1]))
        .hit
        .expect("a hit");
    assert!(fixture.cache.reserve_snapshot().is_none());
    let pool = &mut fixture.pool;
    assert_eq!(
        (
            fixture.cache.evictable(pool),
            fixture.cache.evict_pages(pool, 9)
        ),
        (0, 0)
    );
    fixture.cache.flush(pool);
    assert!(
        fixture.cache.reserve_snapshot().is_none(),
        "forgotten, but still read"
    );
    fixture.cache.unpin(hit.lease);
    let reservation = fixture.cache.reserve_snapshot().expect("the place is free");
    assert!(reservation.moves.is_empty());
    fixture.cache.cancel(reservation);
    fixture.flush();
}

#[test]
fn the_least_recently_used_snapshot_goes_to_the_host_and_comes_back() {
    let mut fixture = Fixture::new(2, 2);
    for page in 1..=4 {
        fixture.insert(None, &[page]);
    }
    assert!(fixture.snapshot(None, &[1]).is_empty() && fixture.snapshot(None, &[2]).is_empty());
    assert_eq!(
        fixture.place(&[1]),
        Some(Place::Device(0)),
        "now 2 is older"
    );
    let offload = |device, host| Move::Offload { device, host };
    assert_eq!(fixture.snapshot(None, &[3]), [offload(1, 0)]);
    assert_eq!(fixture.snapshot(None, &[4]), [offload(0, 1)]);
    let mut lease = fixture
        .cache
        .lookup(None, &prompt(&[2]))
        .hit
        .expect("a hit")
        .lease;
    assert_eq!(lease.place(), Place::Host(0));
    // Both memories are full and the pinned place on the host cannot take 3: 1 is older.
    let moves = fixture.cache.promote(&mut lease).expect("a place");
    assert_eq!(moves, [offload(1, 1), Move::Fetch { host: 0, device: 1 }]);
    assert_eq!(
        fixture.cache.promote(&mut lease),
        Some(Vec::new()),
        "it is there"
    );
    fixture.cache.audit().expect("a sound cache");
    fixture.cache.unpin(lease);
    let places = [1, 2, 3, 4].map(|page| fixture.place(&[page]));
    let expected = [
        None,
        Some(Place::Device(1)),
        Some(Place::Host(1)),
        Some(Place::Device(0)),
    ];
    assert_eq!(places, expected);
    assert_eq!(fixture.cache.stats().snapshots_evicted, 1);
    fixture.flush();
}

#[test]
fn two_leases_of_a_host_snapshot_both_reach_the_device() {
    let mut fixture = Fixture::new(2, 1);
    for page in 1..=3 {
        fixture.insert(None, &[page]);
        fixture.snapshot(None, &[page]);
    }
    let mut lease = || {
        fixture
            .cache
            .lookup(None, &prompt(&[1]))
            .hit
            .expect("a hit")
            .lease
    };
    let mut leases = [lease(), lease()];
    let places: Vec<usize> = leases
        .iter_mut()
        .map(|lease| {
            let moves = fixture.cache.promote(lease).expect("a place");
            let Some(&Move::Fetch { host: 0, device }) = moves.last() else {
                panic!("it lies on the host: {moves:?}")
            };
            fixture.cache.audit().expect("a sound cache");
            device
        })
        .collect();
    assert_ne!(places[0], places[1]);
    leases
        .into_iter()
        .for_each(|lease| fixture.cache.unpin(lease));
    fixture.cache.audit_idle().expect("nothing is pinned");
    assert_eq!(fixture.place(&[1]), Some(Place::Device(places[0])));
    fixture.flush();
}

#[test]
fn passed_snapshots_of_a_long_prompt_go_before_older_ones() {
    let mut fixture = Fixture::new(3, 0);
    fixture.insert(None, &[9]);
    fixture.snapshot(None, &[9]);
    let long = [1, 2, 3, 4, 5, 6];
    for end in 1..=long.len() {
        fixture.insert(None, &long[..end]);
        fixture.snapshot(None, &long[..end]);
    }
    assert_eq!(
        fixture.place(&[9]),
        Some(Place::Device(0)),
        "it survived six newer ones"
    );
    assert_eq!(fixture.lengths(None, &prompt(&long)), (6, None));
    assert_eq!(fixture.lengths(None, &prompt(&long[..5])), (5, None));
    assert_eq!(fixture.lengths(None, &prompt(&long[..4])), (0, Some(4)));
    fixture.flush();
}

#[test]
fn unreachable_ends_are_evicted_first_then_the_oldest_leaves() {
    let mut fixture = Fixture::new(3, 0);
    fixture.insert(None, &[1, 2]);
    fixture.snapshot(None, &[1, 2]);
    fixture.insert(None, &[3, 4]);
    fixture.snapshot(None, &[3, 4]);
    fixture.insert(None, &[1, 2, 5, 6]);
    let evict = |fixture: &mut Fixture, wanted| {
        let freed = fixture.cache.evict_pages(&mut fixture.pool, wanted);
        fixture.cache.audit().expect("a sound cache");
        freed
    };
    assert_eq!(fixture.cache.evictable(&fixture.pool), 6);
    assert_eq!(evict(&mut fixture, 1), 1);
    assert_eq!(fixture.lengths(None, &prompt(&[1, 2, 5, 6])), (2, Some(3)));
    assert_eq!(fixture.lengths(None, &prompt(&[3, 4])), (2, None));
    assert_eq!(fixture.lengths(None, &prompt(&[1, 2])), (2, None));
    assert_eq!(
        evict(&mut fixture, 2),
        2,
        "the other end, then the last page of 3, 4"
    );
    assert_eq!(fixture.lengths(None, &prompt(&[3, 4])), (0, Some(1)));
    assert_eq!(fixture.lengths(None, &prompt(&[1, 2, 5])), (2, None));
    assert_eq!(evict(&mut fixture, 99), 3);
    let stats = fixture.cache.stats();
    assert_eq!(
        (stats.pages, stats.pages_evicted, stats.snapshots_evicted),
        (0, 6, 2)
    );
    assert!(
        fixture.cache.tree.roots().is_empty(),
        "a salt leaves nothing behind"
    );
    fixture.flush();
}

#[test]
fn what_a_sequence_holds_is_not_evicted() {
    let mut fixture = Fixture::new(2, 0);
    fixture.insert(None, &[1, 2, 3]);
    fixture.snapshot(None, &[1, 2]);
    let hit = fixture
        .cache
        .lookup(None, &prompt(&[1, 2]))
        .hit
        .expect("a hit");
    let table = fixture.pool.share(&hit.pages);
    fixture.cache.unpin(hit.lease);
    assert_eq!(fixture.cache.evictable(&fixture.pool), 1);
    assert_eq!(fixture.cache.evict_pages(&mut fixture.pool, 9), 1);
    assert_eq!(fixture.lengths(None, &prompt(&[1, 2])), (2, None));
    fixture.cache.flush(&mut fixture.pool);
    assert_eq!(fixture.pool.used(), 2, "the sequence still has them");
    fixture.pool.release(table);
    fixture.flush();
}

#[test]
fn totals_count_what_was_admitted() {
    let mut fixture = Fixture::new(1, 0);
    fixture.cache.count(100, 64);
    fixture.cache.count(50, 0);
    let stats = fixture.cache.stats();
    assert_eq!((stats.query_tokens, stats.hit_tokens), (150, 64));
}

#[test]
fn pages_behind_which_a_sequence_holds_others_are_freed_for_whoever_must_go_on() {
    let mut fixture = Fixture::new(1, 0);
    assert_eq!(fixture.insert(None, &[1, 2]), 2);
    // It computes them once more, and goes on.
    let table = fixture.pool.reserve(tokens(&[1, 2, 3, 4]).len());
    let table = table.expect("pages are free");
    let (cache, pool) = (&mut fixture.cache, &mut fixture.pool);
    assert_eq!(
        cache.insert(None, &tokens(&[1, 2, 3, 4]), table.pages(), pool),
        2
    );
    let mut reservation = cache.reserve_snapshot().expect("a place");
    reservation.moves.clear();
    assert!(cache.attach(None, &tokens(&[1, 2, 3, 4]), reservation));
    assert_eq!((pool.only_cached(), cache.evict_pages(pool, 5)), (2, 0));
    assert_eq!(cache.evict_blocked(pool, 1), 1);
    cache.audit().expect("a sound cache");
    assert_eq!(
        (cache.stats().pages, cache.stats().device_snapshots),
        (1, 0)
    );
    assert_eq!(
        cache.evict_blocked(pool, 5),
        1,
        "no more are the cache's alone"
    );
    cache.audit_idle().expect("a sound cache");
    pool.release(table);
    pool.audit([]).expect("nothing leaks");
}

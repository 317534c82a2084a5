//! The pages of the KV pool and how often each is held.

use ops::PAGE_TOKENS;

/// The pages of one sequence, in order of position. Not `Clone`: it holds each of its pages once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlockTable {
    pages: Vec<u32>,
}

impl BlockTable {
    /// Page of each 64 tokens.
    pub(crate) fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Cache indices the pages hold.
    pub(crate) fn tokens(&self) -> usize {
        self.pages.len() * PAGE_TOKENS
    }
}

/// All pages of the pool. Block tables and the prefix cache hold pages; one that several hold is
/// never written again, and one that nobody holds is free.
#[derive(Debug)]
pub(crate) struct KvPool {
    free: Vec<u32>,
    /// Holders of each page.
    holders: Vec<u32>,
    /// Whether the prefix cache is one of them.
    cached: Vec<bool>,
    /// Pages that it alone holds.
    only_cached: usize,
}

impl KvPool {
    /// A pool of `total` free pages.
    pub(crate) fn new(total: usize) -> Self {
        let count = u32::try_from(total).expect("page numbers are u32");
        KvPool {
            free: (0..count).rev().collect(),
            holders: vec![0; total],
            cached: vec![false; total],
            only_cached: 0,
        }
    }

    /// Pages that are held.
    pub(crate) fn used(&self) -> usize {
        self.holders.len() - self.free.len()
    }

    /// Pages that nobody holds.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages for this many tokens, or `None` while too few are free.
    pub(crate) fn reserve(&mut self, tokens: usize) -> Option<BlockTable> {
        let mut table = BlockTable { pages: Vec::new() };
        self.extend(&mut table, tokens).then_some(table)
    }

    /// Grows a table until it holds this many tokens; `false`, and nothing has changed, while too
    /// few pages are free. The new pages are the table's alone.
    pub(crate) fn extend(&mut self, table: &mut BlockTable, tokens: usize) -> bool {
        let wanted = tokens.div_ceil(PAGE_TOKENS);
        let count = wanted.saturating_sub(table.pages.len());
        let Some(rest) = self.free.len().checked_sub(count) else {
            return false;
        };
        for page in self.free.drain(rest..).rev() {
            self.holders[page as usize] = 1;
            table.pages.push(page);
        }
        true
    }

    /// A table that begins with pages which others hold too.
    pub(crate) fn share(&mut self, pages: &[u32]) -> BlockTable {
        for &page in pages {
            self.retain(page);
        }
        BlockTable {
            pages: pages.to_vec(),
        }
    }

    /// Ends a table's hold on its pages.
    pub(crate) fn release(&mut self, table: BlockTable) {
        for page in table.pages.into_iter().rev() {
            self.release_page(page);
        }
    }

    /// Pages that the prefix cache alone holds.
    pub(crate) fn only_cached(&self) -> usize {
        self.only_cached
    }

    /// The prefix cache holds a page, too, that somebody holds already.
    pub(crate) fn cache(&mut self, page: u32) {
        self.retain(page);
        let cached = &mut self.cached[page as usize];
        assert!(!*cached, "KV page {page} is in the prefix cache already");
        *cached = true;
    }

    /// The prefix cache lets go of a page.
    pub(crate) fn uncache(&mut self, page: u32) {
        let cached = &mut self.cached[page as usize];
        assert!(*cached, "KV page {page} is not in the prefix cache");
        *cached = false;
        self.only_cached -= usize::from(self.holders[page as usize] == 1);
        self.drop_holder(page);
    }

    fn retain(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        assert!(*holders > 0, "KV page {page} is free and cannot be shared");
        self.only_cached -= usize::from(*holders == 1 && self.cached[page as usize]);
        *holders += 1;
    }

    fn release_page(&mut self, page: u32) {
        self.drop_holder(page);
        let last = self.holders[page as usize] == 1 && self.cached[page as usize];
        self.only_cached += usize::from(last);
    }

    /// One holder less; the last one frees the page.
    fn drop_holder(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        assert!(*holders > 0, "KV page {page} is released but was free");
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    /// Whether a page has exactly one holder: who holds it may write it, or frees it by release.
    pub(crate) fn is_sole(&self, page: u32) -> bool {
        self.holders[page as usize] == 1
    }

    /// With no sequence left exactly the pages in `cached` must be held, once each, and all others
    /// be free; says what is wrong otherwise.
    pub(crate) fn audit(&self, cached: impl IntoIterator<Item = u32>) -> Result<(), String> {
        self.audit_with([], cached)
    }

    /// The same while tables hold pages, too: `tables` has each page as often as they do.
    pub(crate) fn audit_with(
        &self,
        tables: impl IntoIterator<Item = u32>,
        cached: impl IntoIterator<Item = u32>,
    ) -> Result<(), String> {
        let count = |pages: &mut dyn Iterator<Item = u32>| {
            let mut counts = vec![0u32; self.holders.len()];
            pages.for_each(|page| counts[page as usize] += 1);
            counts
        };
        let tables = count(&mut tables.into_iter());
        let cached = count(&mut cached.into_iter());
        let free = count(&mut self.free.iter().copied());
        let mut only_cached = 0;
        for (page, &holders) in self.holders.iter().enumerate() {
            let (tables, cached, free) = (tables[page], cached[page], free[page]);
            if free != u32::from(holders == 0) {
                return Err(format!(
                    "KV page {page} has {holders} holders and is {free} times in the free list"
                ));
            }
            if self.cached[page] != (cached == 1) {
                return Err(format!(
                    "KV page {page} is taken for one of the prefix cache"
                ));
            }
            if holders != tables + cached || cached > 1 {
                return Err(format!(
                    "KV page {page} has {holders} holders, but sequences hold it {tables} times \
                     and the prefix cache {cached} times, which may hold it once"
                ));
            }
            only_cached += usize::from(holders == 1 && cached == 1);
        }
        match self.only_cached == only_cached {
            true => Ok(()),
            false => Err(format!(
                "{} pages count as the prefix cache's, {only_cached} are",
                self.only_cached
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn reserves_whole_pages_and_refuses_what_is_not_free() {
        let mut pool = KvPool::new(4);
        let one = pool.reserve(1).expect("four pages are free");
        let two = pool.reserve(65).expect("three pages are free");
        assert_eq!((one.tokens(), two.tokens(), pool.used()), (64, 128, 3));
        assert!(pool.reserve(65).is_none());
        assert_eq!(pool.used(), 3, "a refusal takes nothing");
        let last = pool.reserve(64).expect("one page is free");
        assert!(pool.audit([]).is_err());
        for table in [two, last, one] {
            pool.release(table);
        }
        pool.audit([]).expect("all pages are back");
    }

    #[test]
    fn tables_grow_behind_what_they_hold() {
        let mut pool = KvPool::new(5);
        let mut table = pool.reserve(100).expect("five pages are free");
        let before = table.pages().to_vec();
        assert!(pool.extend(&mut table, 128) && pool.extend(&mut table, 3));
        assert_eq!(table.pages(), before, "it was large enough");
        assert!(pool.extend(&mut table, 129));
        assert_eq!((table.tokens(), &table.pages()[..2]), (192, &before[..]));
        let grown = table.pages().to_vec();
        assert!(!pool.extend(&mut table, 400));
        assert_eq!((table.pages(), pool.free()), (&grown[..], 2));
        pool.release(table);
        pool.audit([]).expect("all pages are back");
    }

    #[test]
    fn a_shared_page_is_free_after_its_last_holder() {
        let mut pool = KvPool::new(4);
        let first = pool.reserve(128).expect("four pages are free");
        let pages = first.pages().to_vec();
        pool.cache(pages[0]);
        let mut second = pool.share(&pages[..1]);
        assert!(pool.extend(&mut second, 100));
        assert!(!pool.is_sole(pages[0]) && pool.is_sole(pages[1]));
        assert!(pool.is_sole(second.pages()[1]));
        assert_eq!(pool.used(), 3);
        pool.release(first);
        pool.release(second);
        assert_eq!((pool.used(), pool.only_cached()), (1, 1));
        assert!(pool.audit([]).is_err());
        pool.audit([pages[0]]).expect("the cache holds one page");
        pool.uncache(pages[0]);
        assert!(pool.audit([pages[0]]).is_err());
        pool.audit([]).expect("all pages are back");
    }

    #[test]
    fn holders_are_counted_and_new_pages_are_nobody_elses() {
        let mut random = rand_pcg::Pcg64::seed_from_u64(3);
        let mut pool = KvPool::new(40);
        let mut held: Vec<BlockTable> = Vec::new();
        for _ in 0..4000 {
            let tokens = random.random_range(1..700);
            match random.random_range(0..4) {
                0 => held.extend(pool.reserve(tokens)),
                1 if !held.is_empty() => {
                    let from = &held[random.random_range(0..held.len())];
                    let count = random.random_range(0..=from.pages().len());
                    let pages = from.pages()[..count].to_vec();
                    held.push(pool.share(&pages));
                }
                2 if !held.is_empty() => {
                    let index = random.random_range(0..held.len());
                    let before = held[index].pages().len();
                    pool.extend(&mut held[index], tokens);
                    assert!(
                        held[index].pages()[before..]
                            .iter()
                            .all(|&p| pool.is_sole(p))
                    );
                }
                _ if !held.is_empty() => {
                    pool.release(held.swap_remove(random.random_range(0..held.len())));
                }
                _ => {}
            }
            let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
            for &page in held.iter().flat_map(BlockTable::pages) {
                *counts.entry(page).or_default() += 1;
            }
            assert_eq!((counts.len(), pool.used() + pool.free()), (pool.used(), 40));
            for (&page, &count) in &counts {
                assert_eq!(pool.holders[page as usize], count);
            }
        }
        held.into_iter().for_each(|table| pool.release(table));
        pool.audit([]).expect("all pages are back");
    }

    #[test]
    fn audit_finds_a_page_that_is_free_twice() {
        let mut pool = KvPool::new(2);
        pool.free = vec![1, 1];
        assert!(pool.audit([]).is_err_and(|text| text.contains("page 0")));
        pool.free = vec![0, 1, 1];
        assert!(pool.audit([]).is_err_and(|text| text.contains("page 1")));
    }

    #[test]
    #[should_panic(expected = "was free")]
    fn a_free_page_cannot_be_released() {
        KvPool::new(2).release_page(1);
    }
}

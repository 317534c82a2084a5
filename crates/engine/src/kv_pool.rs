//! The pages of the KV pool and who owns them.

use ops::PAGE_TOKENS;

/// The pages of one sequence, in order of position. Not `Clone`: a page has one owner.
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

/// All pages of the pool. A sequence takes what it may ever need at admission, so a running one
/// never waits for a page.
#[derive(Debug)]
pub(crate) struct KvPool {
    free: Vec<u32>,
    total: usize,
}

impl KvPool {
    /// A pool of `total` free pages.
    pub(crate) fn new(total: usize) -> Self {
        let count = u32::try_from(total).expect("page numbers are u32");
        KvPool {
            free: (0..count).rev().collect(),
            total,
        }
    }

    /// Pages that are owned.
    pub(crate) fn used(&self) -> usize {
        self.total - self.free.len()
    }

    /// Pages for this many tokens, or `None` while too few are free.
    pub(crate) fn reserve(&mut self, tokens: usize) -> Option<BlockTable> {
        let count = tokens.div_ceil(PAGE_TOKENS);
        let rest = self.free.len().checked_sub(count)?;
        let mut pages = self.free.split_off(rest);
        pages.reverse();
        Some(BlockTable { pages })
    }

    /// Takes the pages back.
    pub(crate) fn release(&mut self, table: BlockTable) {
        self.free.extend(table.pages.into_iter().rev());
    }

    /// With no sequence left every page must be free exactly once; says what is wrong otherwise.
    pub(crate) fn audit(&self) -> Result<(), String> {
        if self.free.len() != self.total {
            let (free, total) = (self.free.len(), self.total);
            return Err(format!("{free} of {total} KV pages are free while idle"));
        }
        let mut seen = vec![false; self.total];
        for &page in &self.free {
            if std::mem::replace(&mut seen[page as usize], true) {
                return Err(format!("KV page {page} is free twice"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
        assert!(pool.audit().is_err());
        for table in [two, last, one] {
            pool.release(table);
        }
        pool.audit().expect("all pages are back");
    }

    #[test]
    fn owners_never_share_a_page() {
        let mut random = rand_pcg::Pcg64::seed_from_u64(3);
        let mut pool = KvPool::new(40);
        let mut held: Vec<BlockTable> = Vec::new();
        for _ in 0..2000 {
            if random.random_bool(0.5) {
                held.extend(pool.reserve(random.random_range(1..700)));
            } else if !held.is_empty() {
                pool.release(held.swap_remove(random.random_range(0..held.len())));
            }
            let owned: Vec<u32> = held.iter().flat_map(|t| t.pages().to_vec()).collect();
            let distinct: BTreeSet<u32> = owned.iter().copied().collect();
            assert_eq!(distinct.len(), owned.len());
            assert_eq!(owned.len(), pool.used());
            assert!(owned.iter().all(|&page| page < 40));
        }
    }

    #[test]
    fn audit_finds_a_page_that_is_free_twice() {
        let mut pool = KvPool::new(2);
        pool.free = vec![1, 1];
        assert!(pool.audit().is_err_and(|text| text.contains("page 1")));
    }
}

//! What the stub's pages and snapshots hold: every row knows all tokens up to its own.

use std::collections::BTreeMap;

use ops::PAGE_TOKENS;

use super::stub_runner::mix;

/// Digests of the rows of a page; 0: a draft that was not accepted, or never written.
pub(super) type PageRows = [u64; PAGE_TOKENS];

/// Rows of all pages, and what was kept of sequences.
#[derive(Default)]
pub(super) struct Memory {
    rows: Vec<PageRows>,
    /// Pages that were written since somebody looked.
    touched: Vec<bool>,
    pub(super) snapshots: Places,
    pub(super) host: Places,
    /// Slot, rows and forwards behind which a place waits for a state.
    begun: BTreeMap<usize, (usize, usize, usize)>,
}

/// Snapshots.
#[derive(Default)]
pub(super) struct Places {
    held: BTreeMap<usize, Kept>,
    /// Times that a place was filled.
    pub(super) filled: u64,
}

/// The tokens that a snapshot covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) length: usize,
    /// Of all of them.
    pub(super) digest: u64,
}

/// `digests[p]` stands for the tokens at positions `0 ..= p`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Digests(Vec<u64>);

/// The digest of some tokens and one more.
pub(super) fn digest(before: u64, token: u32) -> u64 {
    mix(before, u64::from(token) + 1)
}

impl Digests {
    pub(super) fn of<'a>(tokens: impl Iterator<Item = &'a u32>) -> Self {
        let mut digests = Digests::default();
        tokens.for_each(|&token| digests.push(token));
        digests
    }

    pub(super) fn push(&mut self, token: u32) {
        self.0.push(digest(self.all(), token));
    }

    /// Of the tokens up to `length`.
    fn up_to(&self, length: usize) -> u64 {
        length.checked_sub(1).map_or(0, |last| self.0[last])
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn all(&self) -> u64 {
        self.0.last().copied().unwrap_or_default()
    }

    pub(super) fn kept(&self) -> Kept {
        Kept {
            length: self.len(),
            digest: self.all(),
        }
    }
}

impl Places {
    pub(super) fn keep(&mut self, place: usize, most: usize, kept: Kept) {
        assert!(place < most, "snapshot place {place} of {most}");
        self.held.insert(place, kept);
        self.filled += 1;
    }

    pub(super) fn get(&self, place: usize) -> Kept {
        let held = self.held.get(&place);
        *held.unwrap_or_else(|| panic!("snapshot place {place} holds nothing"))
    }
}

/// A row's page and place within it.
fn row(pages: &[u32], position: usize) -> (usize, usize) {
    let page = pages.get(position / PAGE_TOKENS);
    let page = *page.unwrap_or_else(|| panic!("row {position} without a page"));
    (page as usize, position % PAGE_TOKENS)
}

/// The pieces of rows `from .. to` that lie within a page: first row, page, place and length.
fn pieces(
    pages: &[u32],
    from: usize,
    to: usize,
) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let mut at = from;
    std::iter::from_fn(move || {
        if at >= to {
            return None;
        }
        let (page, place) = row(pages, at);
        let count = (PAGE_TOKENS - place).min(to - at);
        at += count;
        Some((at - count, page, place, count))
    })
}

impl Memory {
    /// A place waits for a state that the next forward passes.
    pub(super) fn begin(&mut self, place: usize, most: usize, stands: (usize, usize, usize)) {
        assert!(place < most, "snapshot place {place} of {most}");
        self.snapshots.held.remove(&place);
        self.begun.insert(place, stands);
    }

    /// Keeps the state behind so many rows of a slot, which that forward has passed.
    pub(super) fn finish(
        &mut self,
        place: usize,
        most: usize,
        (slot, length, forwards): (usize, usize, usize),
        rows: &Digests,
    ) {
        let begun = self.begun.remove(&place);
        let begun = begun.unwrap_or_else(|| panic!("snapshot place {place} was not begun"));
        assert_eq!((begun.0, begun.2 + 1), (slot, forwards), "kept too late");
        assert!(
            length.is_multiple_of(PAGE_TOKENS) && (begun.1 + 1..=rows.len()).contains(&length),
            "{length} rows were not passed"
        );
        let digest = rows.up_to(length);
        self.snapshots.keep(place, most, Kept { length, digest });
    }

    /// What a page holds.
    pub(super) fn page(&mut self, page: usize) -> &mut PageRows {
        if page >= self.rows.len() {
            self.rows.resize(page + 1, [0; PAGE_TOKENS]);
            self.touched.resize(page + 1, false);
        }
        &mut self.rows[page]
    }

    /// Pages that were written since the last call.
    pub(super) fn take_touched(&mut self) -> Vec<bool> {
        let none = vec![false; self.touched.len()];
        std::mem::replace(&mut self.touched, none)
    }

    fn write_piece(&mut self, page: usize) -> &mut PageRows {
        self.page(page);
        self.touched[page] = true;
        &mut self.rows[page]
    }

    /// Writes rows of drafts.
    pub(super) fn draft(&mut self, pages: &[u32], from: usize, rows: usize) {
        for (_, page, place, count) in pieces(pages, from, from + rows) {
            self.write_piece(page)[place..place + count].fill(0);
        }
    }

    /// Writes the rows of a sequence from `from` on.
    pub(super) fn write(&mut self, pages: &[u32], digests: &Digests, from: usize) {
        for (at, page, place, count) in pieces(pages, from, digests.len()) {
            let new = &digests.0[at..at + count];
            self.write_piece(page)[place..place + count].copy_from_slice(new);
        }
    }

    /// Fails unless the pages hold all rows of a sequence.
    pub(super) fn check(&mut self, pages: &[u32], digests: &Digests) {
        for (at, page, place, count) in pieces(pages, 0, digests.len()) {
            let held = &self.page(page)[place..place + count];
            let wanted = &digests.0[at..at + count];
            if held != wanted {
                let same = held.iter().zip(wanted).take_while(|(a, b)| a == b).count();
                panic!("row {} is another sequence's", at + same);
            }
        }
    }
}

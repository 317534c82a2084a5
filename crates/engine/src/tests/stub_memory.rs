//! What the stub's pages and snapshots hold: every row knows all tokens up to its own.

use std::collections::BTreeMap;

use ops::PAGE_TOKENS;

use super::stub_runner::mix;

/// Rows of all pages, and what was kept of sequences.
#[derive(Default)]
pub(super) struct Memory {
    /// Digest of the tokens up to a row, by page and place within it; nothing: a draft that was
    /// not accepted, or never written.
    rows: BTreeMap<(u32, usize), u64>,
    pub(super) snapshots: Places,
    pub(super) host: Places,
    /// Slot, rows and forwards behind which a place waits for a state.
    begun: BTreeMap<usize, (usize, usize, usize)>,
}

/// Snapshots: digests of the tokens that they cover.
#[derive(Default)]
pub(super) struct Places(BTreeMap<usize, Digests>);

/// `digests[p]` stands for the tokens at positions `0 ..= p`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Digests(Vec<u64>);

impl Digests {
    pub(super) fn of<'a>(tokens: impl Iterator<Item = &'a u32>) -> Self {
        let mut digests = Digests::default();
        tokens.for_each(|&token| digests.push(token));
        digests
    }

    pub(super) fn push(&mut self, token: u32) {
        let before = self.0.last().copied().unwrap_or_default();
        self.0.push(mix(before, u64::from(token) + 1));
    }

    fn first(mut self, count: usize) -> Self {
        self.0.truncate(count);
        self
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Places {
    pub(super) fn keep(&mut self, place: usize, most: usize, digests: Digests) {
        assert!(place < most, "snapshot place {place} of {most}");
        self.0.insert(place, digests);
    }

    pub(super) fn get(&self, place: usize) -> &Digests {
        let held = self.0.get(&place);
        held.unwrap_or_else(|| panic!("snapshot place {place} holds nothing"))
    }
}

impl Memory {
    fn row(pages: &[u32], position: usize) -> (u32, usize) {
        let page = pages.get(position / PAGE_TOKENS);
        let page = *page.unwrap_or_else(|| panic!("row {position} without a page"));
        (page, position % PAGE_TOKENS)
    }

    /// A place waits for a state that the next forward passes.
    pub(super) fn begin(&mut self, place: usize, most: usize, stands: (usize, usize, usize)) {
        assert!(place < most, "snapshot place {place} of {most}");
        self.snapshots.0.remove(&place);
        self.begun.insert(place, stands);
    }

    /// Keeps the state behind so many rows of a slot, which that forward has passed.
    pub(super) fn finish(
        &mut self,
        place: usize,
        most: usize,
        (slot, length, forwards): (usize, usize, usize),
        rows: Digests,
    ) {
        let begun = self.begun.remove(&place);
        let begun = begun.unwrap_or_else(|| panic!("snapshot place {place} was not begun"));
        assert_eq!((begun.0, begun.2 + 1), (slot, forwards), "kept too late");
        assert!(
            length.is_multiple_of(PAGE_TOKENS) && (begun.1 + 1..=rows.len()).contains(&length),
            "{length} rows were not passed"
        );
        self.snapshots.keep(place, most, rows.first(length));
    }

    /// Writes rows of drafts.
    pub(super) fn draft(&mut self, pages: &[u32], from: usize, rows: usize) {
        for position in from..from + rows {
            self.rows.remove(&Self::row(pages, position));
        }
    }

    /// Writes the rows of a sequence from `from` on.
    pub(super) fn write(&mut self, pages: &[u32], digests: &Digests, from: usize) {
        for (position, &digest) in digests.0.iter().enumerate().skip(from) {
            self.rows.insert(Self::row(pages, position), digest);
        }
    }

    /// Fails unless the pages hold all rows of a sequence.
    pub(super) fn check(&self, pages: &[u32], digests: &Digests) {
        for (position, digest) in digests.0.iter().enumerate() {
            assert_eq!(
                self.rows.get(&Self::row(pages, position)),
                Some(digest),
                "row {position} is another sequence's"
            );
        }
    }
}

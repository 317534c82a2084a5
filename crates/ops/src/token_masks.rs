//! The tokens that a row may choose, where somebody else than the sampling options decides it.

use crate::{Backend, Cpu, OpsError};

/// Allowed tokens of the rows of a batch, made on the host: one bit for each id.
pub struct TokenMasks<B: Backend> {
    /// Rows the tables can hold.
    pub rows_max: usize,
    /// Words of a mask: `ceil(vocab_rows / 32)`.
    pub words_per_row: usize,
    /// `[rows_max]` 1 = the row has a mask; the others may choose any token.
    pub masked: B::Buf<u32>,
    /// `[rows_max, words_per_row]` bit `id % 32` of word `id / 32` set: the token is allowed. Bits
    /// of ids that name no token are not looked at, nor are the words of a row without a mask.
    pub words: B::Buf<u32>,
}

impl<B: Backend> TokenMasks<B> {
    /// Tables in which no row has a mask.
    pub fn new(backend: &B, rows_max: usize, vocab_rows: usize) -> Result<Self, OpsError> {
        let words_per_row = Self::words_for(vocab_rows);
        Ok(TokenMasks {
            rows_max,
            words_per_row,
            masked: backend.alloc(rows_max)?,
            words: backend.alloc(rows_max * words_per_row)?,
        })
    }

    /// Words of a mask over a head of `vocab_rows` rows.
    pub fn words_for(vocab_rows: usize) -> usize {
        vocab_rows.div_ceil(32)
    }

    /// Bytes of the tables.
    pub fn bytes(rows_max: usize, vocab_rows: usize) -> usize {
        4 * rows_max * (1 + Self::words_for(vocab_rows))
    }

    /// Fails if an op over `rows` rows of logits would read past the tables.
    pub(crate) fn assert_fits(&self, rows: usize, vocab_rows: usize) {
        assert!(
            rows <= self.rows_max && self.words_per_row == Self::words_for(vocab_rows),
            "{rows} rows of {vocab_rows} ids with masks for {} rows of {} words",
            self.rows_max,
            self.words_per_row
        );
    }
}

impl TokenMasks<Cpu> {
    /// The mask of a row that has one.
    pub(crate) fn row(&self, row: usize) -> Option<&[u32]> {
        let words = &self.words[row * self.words_per_row..][..self.words_per_row];
        (self.masked[row] != 0).then_some(words)
    }
}

/// Whether a mask allows `id`; ids beyond it are banned.
pub fn is_allowed(mask: &[u32], id: u32) -> bool {
    let word = mask.get(id as usize / 32);
    word.is_some_and(|word| word >> (id % 32) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_name_ids_and_ids_beyond_are_banned() {
        let mask = [1 << 31, 1 | 1 << 7];
        let allowed: Vec<u32> = (0..200).filter(|&id| is_allowed(&mask, id)).collect();
        assert_eq!(allowed, [31, 32, 39]);
    }

    #[test]
    fn tables_hold_the_bytes_they_say() {
        let cpu = Cpu::default();
        for (rows, vocab) in [(1, 32), (5, 33), (64, 150)] {
            let before = cpu.allocated_bytes();
            let masks = TokenMasks::new(&cpu, rows, vocab).unwrap();
            let bytes = cpu.allocated_bytes() - before;
            assert_eq!(bytes, TokenMasks::<Cpu>::bytes(rows, vocab) as u64);
            assert!(masks.masked.iter().all(|&masked| masked == 0));
        }
    }
}

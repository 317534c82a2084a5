//! Masks of tokens: bit `id % 32` of word `id / 32`.

/// Sets the bit of a token.
pub(super) fn allow(words: &mut [u32], id: u32) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word |= 1 << (id % 32);
    }
}

/// Clears the bit of a token.
pub(super) fn ban(words: &mut [u32], id: u32) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word &= !(1 << (id % 32));
    }
}

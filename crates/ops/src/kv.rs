//! Keys and values of one attention layer, in pages.

use crate::{Backend, Cpu, Dtype, NONE, OpsError, PAGE_TOKENS, Slots, Storage};

/// One layer's pool: `[pages, PAGE_TOKENS, heads, head_dim]` for keys and for values. Index `t` of
/// a sequence lives in page `block_table[slot, t / 64]` at offset `t % 64`.
pub struct KvLayer<B: Backend> {
    /// Normed, rotated keys.
    pub keys: Storage<B>,
    /// Values.
    pub values: Storage<B>,
    /// KV heads.
    pub heads: usize,
    /// Values per head.
    pub head_dim: usize,
}

impl<B: Backend> KvLayer<B> {
    /// A zeroed pool.
    pub fn new(
        backend: &B,
        dtype: Dtype,
        pages: usize,
        heads: usize,
        head_dim: usize,
    ) -> Result<Self, OpsError> {
        let len = pages * PAGE_TOKENS * heads * head_dim;
        Ok(KvLayer {
            keys: Storage::zeros(backend, dtype, len)?,
            values: Storage::zeros(backend, dtype, len)?,
            heads,
            head_dim,
        })
    }

    /// Bytes of a pool of `pages` pages, keys and values.
    pub fn bytes(dtype: Dtype, pages: usize, heads: usize, head_dim: usize) -> usize {
        2 * pages * PAGE_TOKENS * heads * head_dim * dtype.bytes()
    }
}

impl KvLayer<Cpu> {
    /// Where index `t` of a slot starts in `keys` and `values`: its head 0.
    pub(crate) fn offset(&self, slots: &Slots<Cpu>, slot: usize, t: usize) -> usize {
        let number = t / PAGE_TOKENS;
        assert!(
            number < slots.pages_max,
            "cache index {t} of slot {slot} needs page {number} of {}",
            slots.pages_max
        );
        let page = slots.block_table[slot * slots.pages_max + number];
        assert!(
            page != NONE,
            "cache index {t} of slot {slot} has no page; give the slot pages for every row"
        );
        (page as usize * PAGE_TOKENS + t % PAGE_TOKENS) * self.heads * self.head_dim
    }
}

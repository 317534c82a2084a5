//! Keys and values of one attention layer, in pages.

use crate::{Backend, Dtype, OpsError, PAGE_TOKENS, Storage};

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

//! Per-head norm, rotation and cache write of q, k and v.

use crate::{Backend, Batch, ContextRows, Cpu, KvLayer, Rows, Slots};

/// Queries to norm and rotate.
pub struct QuerySource<'a, B: Backend> {
    /// Query heads.
    pub heads: usize,
    /// `[rows, heads, stride]`: a head's query is its first `head_dim` values. The target's stride
    /// is `2 * head_dim` (the gate follows the query), the drafter's is `head_dim`.
    pub x: &'a B::Buf<f32>,
    /// See `x`.
    pub stride: usize,
    /// `[head_dim]` norm factor.
    pub weight: &'a B::Buf<f32>,
    /// `[rows, heads, head_dim]`.
    pub out: &'a mut B::Buf<f32>,
}

/// Where rotated keys and values go, and what gives a row its position.
pub enum KvTarget<'a, B: Backend> {
    /// Rows of a forward: position `length[slot] + depth`, cache index `length[slot] + i`.
    Pages {
        /// Segments.
        batch: &'a Batch<B>,
        /// Lengths and block tables.
        slots: &'a Slots<B>,
        /// The layer's pool.
        cache: &'a mut KvLayer<B>,
    },
    /// Context rows of the drafter: position and cache index are listed.
    Listed {
        /// Slot and position of each row.
        context: &'a ContextRows<B>,
        /// Block tables.
        slots: &'a Slots<B>,
        /// The layer's pool.
        cache: &'a mut KvLayer<B>,
    },
    /// Block rows of the drafter: position `length[slot] + i`, kept beside the block only.
    Block {
        /// Segments.
        batch: &'a Batch<B>,
        /// Lengths.
        slots: &'a Slots<B>,
        /// `[rows, kv_heads, head_dim]`.
        keys: &'a mut B::Buf<f32>,
        /// `[rows, kv_heads, head_dim]`.
        values: &'a mut B::Buf<f32>,
    },
}

/// q and k: `rms over head_dim * weight`, then rotation of the first `rotary` values in pairs
/// `(j, j + rotary / 2)` by `position * frequency[j]`; v: as it is. Angles in f32.
pub struct NormRope<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Values per head.
    pub head_dim: usize,
    /// Rotated values per head, even, at most `head_dim`.
    pub rotary: usize,
    /// `[rotary / 2]` = `theta^(-2 j / rotary)`.
    pub frequency: &'a B::Buf<f32>,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Absent where only keys and values are wanted.
    pub query: Option<QuerySource<'a, B>>,
    /// KV heads.
    pub kv_heads: usize,
    /// `[rows, 2, kv_heads, head_dim]`: keys, then values of a row.
    pub kv: &'a B::Buf<f32>,
    /// `[head_dim]` norm factor of the keys.
    pub key_weight: &'a B::Buf<f32>,
    /// Where k and v go.
    pub target: KvTarget<'a, B>,
}

pub(crate) fn cpu(_op: NormRope<'_, Cpu>) {
    todo!()
}

//! One step of the recurrence on a slice of a head's columns.
//!
//! Columns of the state never mix, so a slice of them is scanned alone. Within a column the key
//! dimension is summed in order; every step of every mode is this one function, which is why a
//! tree, a replay, a chunk and plain decoding give the same bits.

use crate::vector::{LANES, Vector};

/// Vectors in a slice.
const VECTORS: usize = 4;
/// Columns in a slice: 32 x 128 values of f32 are 16 KiB.
pub(super) const TILE: usize = VECTORS * LANES;

/// `TILE` values of one key row, or of v, u or o.
pub(super) type TileRow = [[f32; LANES]; VECTORS];

/// The zero row.
pub(super) const ZERO: TileRow = [[0.0; LANES]; VECTORS];

/// What one row brings to a head.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    /// `[key_dim]` normalised.
    pub key: &'a [f32],
    /// Columns of v.
    pub value: TileRow,
    /// `e^g`.
    pub decay: f32,
    /// Strength of the write.
    pub beta: f32,
}

/// `S <- e^g S; u = beta (v - St k); S <- S + k ut`.
#[inline(always)]
pub(super) fn advance<V: Vector>(state: &mut [TileRow], token: Token<'_>) {
    let u = decay_and_error::<V>(state, token);
    for (row, &k) in state.iter_mut().zip(token.key) {
        let k = V::splat(k);
        for (s, &u) in row.iter_mut().zip(&u) {
            V::load(s).mul_add(k, u).store(s);
        }
    }
}

/// [`advance`], then `o = St q`.
#[inline(always)]
pub(super) fn advance_and_read<V: Vector>(
    state: &mut [TileRow],
    token: Token<'_>,
    query: &[f32],
) -> TileRow {
    let u = decay_and_error::<V>(state, token);
    let mut o = [V::splat(0.0); VECTORS];
    for ((row, &k), &q) in state.iter_mut().zip(token.key).zip(query) {
        let (k, q) = (V::splat(k), V::splat(q));
        for ((s, &u), o) in row.iter_mut().zip(&u).zip(&mut o) {
            let new = V::load(s).mul_add(k, u);
            new.store(s);
            *o = o.mul_add(new, q);
        }
    }
    stored(o)
}

/// Decays the state and returns u.
#[inline(always)]
fn decay_and_error<V: Vector>(state: &mut [TileRow], token: Token<'_>) -> [V; VECTORS] {
    let decay = V::splat(token.decay);
    let mut dot = [V::splat(0.0); VECTORS];
    for (row, &k) in state.iter_mut().zip(token.key) {
        let k = V::splat(k);
        for (s, dot) in row.iter_mut().zip(&mut dot) {
            let decayed = V::load(s).mul(decay);
            decayed.store(s);
            *dot = dot.mul_add(decayed, k);
        }
    }
    let beta = V::splat(token.beta);
    for (dot, value) in dot.iter_mut().zip(&token.value) {
        *dot = V::load(value).sub(*dot).mul(beta);
    }
    dot
}

#[inline(always)]
fn stored<V: Vector>(values: [V; VECTORS]) -> TileRow {
    let mut row = ZERO;
    for (to, value) in row.iter_mut().zip(values) {
        value.store(to);
    }
    row
}

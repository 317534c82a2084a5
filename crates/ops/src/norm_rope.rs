//! Per-head norm, rotation and cache write of q, k and v.

use crate::rms_norm::inverse_rms;
use crate::segment::place;
use crate::{Backend, Batch, ContextRows, Cpu, KvLayer, Rows, Slots, parallel};

/// Queries to norm and rotate.
pub struct QuerySource<'a, B: Backend> {
    /// Query heads.
    pub heads: usize,
    /// Head h starts at column `h * head_stride` of a row: `2 * head_dim` in the target (the gate
    /// follows the query), `head_dim` in the drafter.
    pub head_stride: usize,
    /// `[head_dim]` norm factor.
    pub weight: &'a B::Buf<f32>,
    /// `[rows, heads, head_dim]`.
    pub out: &'a mut B::Buf<B::Act>,
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
        keys: &'a mut B::Buf<B::Act>,
        /// `[rows, kv_heads, head_dim]`.
        values: &'a mut B::Buf<B::Act>,
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
    /// `[rows, row_stride]`: what the projection of a layer gave, queries in front.
    pub x: &'a B::Buf<B::Act>,
    /// Values per row of `x`.
    pub row_stride: usize,
    /// Absent where only keys and values are wanted.
    pub query: Option<QuerySource<'a, B>>,
    /// KV heads.
    pub kv_heads: usize,
    /// Column of the first key head in `x`; the values follow the `kv_heads * head_dim` keys.
    pub kv_offset: usize,
    /// `[head_dim]` norm factor of the keys.
    pub key_weight: &'a B::Buf<f32>,
    /// Where k and v go.
    pub target: KvTarget<'a, B>,
}

pub(crate) fn cpu(op: NormRope<'_, Cpu>) {
    assert!(
        op.rotary.is_multiple_of(2) && op.rotary <= op.head_dim,
        "{} rotated of {} values per head",
        op.rotary,
        op.head_dim
    );
    let places: Vec<Option<Place>> = (0..op.rows.count())
        .map(|row| Place::of(&op.target, row))
        .collect();
    let rotation = Rotation::new(&places, &op.frequency[..op.rotary / 2]);
    if let Some(query) = op.query {
        let width = query.heads * op.head_dim;
        let live = places.len() * width;
        parallel::chunks(&mut query.out[..live], width, 4 * live, |row, out| {
            if places[row].is_none() {
                return;
            }
            for (head, out) in out.chunks_mut(op.head_dim).enumerate() {
                let column = head * query.head_stride;
                let x = &op.x[row * op.row_stride + column..][..op.head_dim];
                norm_rotate(x, query.weight, op.eps, rotation.row(row), out);
            }
        });
    }
    let width = op.kv_heads * op.head_dim;
    let mut target = op.target;
    let mut keys = vec![0.0; width];
    for (row, place) in places.iter().enumerate() {
        let Some(place) = place else { continue };
        let (x, values) = op.x[row * op.row_stride + op.kv_offset..][..2 * width].split_at(width);
        let heads = x.chunks(op.head_dim).zip(keys.chunks_mut(op.head_dim));
        for (x, out) in heads {
            norm_rotate(x, op.key_weight, op.eps, rotation.row(row), out);
        }
        target.write(place, row, &keys, values);
    }
}

/// Where a row stands.
struct Place {
    slot: usize,
    position: u32,
    cache_index: usize,
}

impl Place {
    /// `None` for padding.
    fn of(target: &KvTarget<'_, Cpu>, row: usize) -> Option<Place> {
        let (slot, position, cache_index) = match target {
            KvTarget::Pages { batch, slots, .. } => {
                let (slot, number) = place(batch, row)?;
                let length = slots.length[slot];
                (slot, length + batch.depth[row], length as usize + number)
            }
            KvTarget::Listed { context, .. } => {
                let position = context.position[row];
                (context.slot[row] as usize, position, position as usize)
            }
            KvTarget::Block { batch, slots, .. } => {
                let (slot, number) = place(batch, row)?;
                let position = slots.length[slot] + number as u32;
                (slot, position, position as usize)
            }
        };
        Some(Place {
            slot,
            position,
            cache_index,
        })
    }
}

impl KvTarget<'_, Cpu> {
    fn write(&mut self, place: &Place, row: usize, k: &[f32], v: &[f32]) {
        match self {
            KvTarget::Pages { slots, cache, .. } | KvTarget::Listed { slots, cache, .. } => {
                let offset = cache.offset(slots, place.slot, place.cache_index);
                cache.keys.narrow_from(offset, k);
                cache.values.narrow_from(offset, v);
            }
            KvTarget::Block { keys, values, .. } => {
                keys[row * k.len()..][..k.len()].copy_from_slice(k);
                values[row * v.len()..][..v.len()].copy_from_slice(v);
            }
        }
    }
}

/// `[rows, pairs]` cosine and sine of every row's angles.
struct Rotation {
    pairs: usize,
    angles: Vec<(f32, f32)>,
}

impl Rotation {
    fn new(places: &[Option<Place>], frequency: &[f32]) -> Self {
        let mut angles = Vec::with_capacity(places.len() * frequency.len());
        for place in places {
            let position = place.as_ref().map_or(0, |place| place.position) as f32;
            angles.extend(frequency.iter().map(|frequency| {
                let (sin, cos) = (position * frequency).sin_cos();
                (cos, sin)
            }));
        }
        Rotation {
            pairs: frequency.len(),
            angles,
        }
    }

    fn row(&self, row: usize) -> &[(f32, f32)] {
        &self.angles[row * self.pairs..][..self.pairs]
    }
}

fn norm_rotate(x: &[f32], weight: &[f32], eps: f32, rotation: &[(f32, f32)], out: &mut [f32]) {
    let inverse = inverse_rms(x, eps);
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * inverse * weight;
    }
    let (first, rest) = out.split_at_mut(rotation.len());
    for ((a, b), &(cos, sin)) in first.iter_mut().zip(rest).zip(rotation) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(test)]
mod tests;

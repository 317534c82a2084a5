//! From processed logits to a token.

use crate::SamplingRow;
use crate::activation::exp;
use crate::topk::descending;

/// Ids summed together before they are added to the running sum.
const TILE: usize = 64;

/// The largest logit, ties to the lower id. Where no logit exceeds -inf: the lowest id that is not
/// banned (a NaN), else 0.
pub(super) fn most_likely(logits: &[f32]) -> u32 {
    let (mut best, mut largest) = (None, f32::NEG_INFINITY);
    for (id, &z) in logits.iter().enumerate() {
        if z > largest {
            (best, largest) = (Some(id), z);
        }
    }
    best.or_else(|| logits.iter().position(|z| z.is_nan()))
        .unwrap_or(0) as u32
}

/// Draws with the uniform number `u`; `logits` becomes scratch. Where no logit exceeds -inf the
/// result is that of [`most_likely`].
pub(super) fn draw(logits: &mut [f32], options: &SamplingRow, u: f32) -> u32 {
    let fallback = most_likely(logits);
    weigh(logits, options);
    pick(logits, u).unwrap_or(fallback)
}

/// Replaces logits by unnormalised probabilities, the largest 1, and those that the options drop
/// by 0. All are 0 if no logit exceeds -inf.
pub(super) fn weigh(logits: &mut [f32], options: &SamplingRow) {
    for z in logits.iter_mut() {
        *z = if z.is_nan() {
            f32::NEG_INFINITY
        } else {
            *z / options.temperature
        };
    }
    if options.top_k > 0 {
        keep_top_k(logits, options.top_k as usize);
    }
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        logits.fill(0.0);
        return;
    }
    let order = (options.top_p < 1.0).then(|| top_p(logits, largest, options.top_p));
    for z in logits.iter_mut() {
        *z = weight(*z, largest);
        if *z < options.min_p {
            *z = 0.0;
        }
    }
    if let Some(kept) = order {
        let mut keep = kept.into_iter().peekable();
        for (id, w) in logits.iter_mut().enumerate() {
            if keep.next_if_eq(&(id as u32)).is_none() {
                *w = 0.0;
            }
        }
    }
}

/// `e^(z - largest)`; 1 for the largest even if it is infinite.
fn weight(z: f32, largest: f32) -> f32 {
    if z == largest { 1.0 } else { exp(z - largest) }
}

/// Bans all but the `k` largest, ties to the lower id.
fn keep_top_k(logits: &mut [f32], k: usize) {
    if k >= logits.len() {
        return;
    }
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.select_nth_unstable_by(k, by_logit(logits));
    for &id in &ids[k..] {
        logits[id as usize] = f32::NEG_INFINITY;
    }
}

/// A weight in units of 2^-44, rounded down. Sums of fewer than 2^20 are exact, so they do not
/// depend on the order in which a device adds.
fn mass(weight: f32) -> u64 {
    (weight * (1u64 << 44) as f32) as u64
}

/// Ids, ascending, of the smallest set in descending order (ties: lower id first) whose mass
/// reaches `top_p` of the whole; at least one. Masses are compared in f32, in which `top_p` is
/// given.
fn top_p(logits: &[f32], largest: f32, top_p: f32) -> Vec<u32> {
    let mass = |id: &u32| mass(weight(logits[*id as usize], largest));
    let mut ids: Vec<u32> = (0..logits.len() as u32)
        .filter(|&id| logits[id as usize] > f32::NEG_INFINITY)
        .collect();
    let needed = top_p * ids.iter().map(mass).sum::<u64>() as f32;
    // Sorted pieces that grow, because a small set is what most rows keep.
    let (mut sorted, mut piece, mut sum) = (0, 128, 0);
    while sorted < ids.len() {
        let rest = &mut ids[sorted..];
        let count = piece.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count, by_logit(logits));
        }
        rest[..count].sort_unstable_by(by_logit(logits));
        for (n, id) in rest[..count].iter().enumerate() {
            sum += mass(id);
            if sum as f32 >= needed {
                ids.truncate(sorted + n + 1);
                ids.sort_unstable();
                return ids;
            }
        }
        sorted += count;
        piece *= 4;
    }
    ids.sort_unstable();
    ids
}

fn by_logit(logits: &[f32]) -> impl Fn(&u32, &u32) -> std::cmp::Ordering {
    |a, b| descending(logits[*a as usize], logits[*b as usize]).then(a.cmp(b))
}

/// The smallest id whose cumulative weight exceeds `u * total`; none if the total is 0. The
/// cumulative weight of an id is the running sum of the tiles before its own, plus the running sum
/// within its tile. Because `u <= 1 - 2^-24`, `u * total` rounds to less than the total.
fn pick(weights: &[f32], u: f32) -> Option<u32> {
    let total: f32 = weights
        .chunks(TILE)
        .map(|tile| tile.iter().sum::<f32>())
        .sum();
    let threshold = u * total;
    let mut before = 0.0;
    for (number, tile) in weights.chunks(TILE).enumerate() {
        let through = before + tile.iter().sum::<f32>();
        if through > threshold {
            let mut within = 0.0;
            let place = tile.iter().position(|w| {
                within += w;
                before + within > threshold
            });
            return place.map(|place| (number * TILE + place) as u32);
        }
        before = through;
    }
    None
}

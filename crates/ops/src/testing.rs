//! What the tests of several ops share: values, batches, slots, errors, ways to run.

use half::{bf16, f16};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use rayon::ThreadPoolBuilder;

use crate::limits::DEPTH_MAX;
use crate::vector::tests::portable;
use crate::{Batch, Cpu, Dtype, NONE, Slots};

pub(crate) const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

pub(crate) fn rng(seed: u64) -> Pcg64 {
    Pcg64::seed_from_u64(seed)
}

/// Values in -1..1.
pub(crate) fn floats(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = rng(seed);
    (0..len)
        .map(|_| (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// A number in `0..end`.
pub(crate) fn below(rng: &mut Pcg64, end: usize) -> usize {
    (rng.next_u64() % end as u64) as usize
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The number that storage of `dtype` holds for `value`.
pub(crate) fn rounded(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::F32 => value,
        Dtype::F16 => f16::from_f32(value).to_f32(),
        Dtype::Bf16 => bf16::from_f32(value).to_f32(),
    }
}

/// `sum (a - b)^2 / sum b^2`. One rounding of f32 is about 1e-15.
pub(crate) fn normalised_error(values: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(values.len(), exact.len());
    let error: f64 = values
        .iter()
        .zip(exact)
        .map(|(&value, exact)| (f64::from(value) - exact).powi(2))
        .sum();
    error / exact.iter().map(|exact| exact * exact).sum::<f64>()
}

/// Fails unless [`normalised_error`] is below `bound`; NaN fails.
#[track_caller]
pub(crate) fn assert_close(values: &[f32], exact: &[f64], bound: f64, what: &str) {
    let error = normalised_error(values, exact);
    assert!(error < bound, "{what}: normalised error {error:e}");
}

/// The result of `run` on one thread, once two threads and portable vectors gave the same bits.
pub(crate) fn on_every_path(run: impl Fn() -> Vec<f32> + Sync) -> Vec<f32> {
    let pool = |threads| {
        let builder = ThreadPoolBuilder::new().num_threads(threads);
        builder.build().expect("threads")
    };
    let one = pool(1).install(&run);
    let two = pool(2).install(&run);
    assert_eq!(bits(&one), bits(&two), "one thread and two");
    let plain = pool(1).install(|| portable(&run));
    assert_eq!(
        bits(&one),
        bits(&plain),
        "vectors of the machine and portable"
    );
    one
}

/// `live` of [`crate::Rows`] for `rows` rows.
pub(crate) fn live(rows: usize) -> Box<[u32]> {
    vec![rows as u32, 1].into()
}

/// One sequence of a batch.
pub(crate) struct Segment<'a> {
    pub slot: u32,
    /// `[rows]` token ids.
    pub token: &'a [u32],
    /// `[rows]` parents within the segment, -1 for row 0.
    pub parent: &'a [i32],
}

/// A batch of `segments` with two padding rows and one unused sequence entry behind them.
pub(crate) fn batch(segments: &[Segment<'_>]) -> Batch<Cpu> {
    let rows: usize = segments.iter().map(|segment| segment.parent.len()).sum();
    let mut batch = Batch::new(&Cpu::default(), rows + 2, segments.len() + 1).expect("host memory");
    batch
        .live
        .copy_from_slice(&[rows as u32, segments.len() as u32]);
    batch.row_sequence.fill(NONE);
    let mut start = 0;
    for (sequence, segment) in segments.iter().enumerate() {
        batch.sequence_slot[sequence] = segment.slot;
        batch.sequence_start[sequence] = start as u32;
        batch.sequence_rows[sequence] = segment.parent.len() as u32;
        for (i, &parent) in segment.parent.iter().enumerate() {
            batch.row_sequence[start + i] = sequence as u32;
            batch.token[start + i] = segment.token[i];
            batch.parent[start + i] = parent;
            if parent >= 0 {
                batch.depth[start + i] = batch.depth[start + parent as usize] + 1;
            }
        }
        start += segment.parent.len();
    }
    batch
}

/// A [`batch`] of trees in slots 0, 1, ..., all tokens 0.
pub(crate) fn tree_batch(trees: &[&[i32]]) -> Batch<Cpu> {
    let token = vec![0; trees.iter().map(|tree| tree.len()).max().unwrap_or(0)];
    let segments: Vec<_> = (trees.iter().enumerate())
        .map(|(slot, parent)| Segment {
            slot: slot as u32,
            token: &token[..parent.len()],
            parent,
        })
        .collect();
    batch(&segments)
}

/// Parents of a chain.
pub(crate) fn chain(rows: usize) -> Vec<i32> {
    (0..rows as i32).map(|row| row - 1).collect()
}

/// Parents of a tree of any shape, at most `DEPTH_MAX` deep.
pub(crate) fn random_tree(seed: u64, rows: usize) -> Vec<i32> {
    let mut rng = rng(seed);
    let (mut parents, mut depth) = (vec![-1], vec![0]);
    while parents.len() < rows {
        // Half of the rows hang on one of the last two, so that trees grow deep as well as wide.
        let recent = parents.len().saturating_sub(2) * below(&mut rng, 2);
        let parent = recent + below(&mut rng, parents.len() - recent);
        if depth[parent] < DEPTH_MAX {
            depth.push(depth[parent] + 1);
            parents.push(parent as i32);
        }
    }
    parents
}

/// Row 0, ..., `row`.
pub(crate) fn path_to(parents: &[i32], row: usize) -> Vec<usize> {
    let mut path = vec![row];
    while let Ok(parent) = usize::try_from(parents[path[path.len() - 1]]) {
        path.push(parent);
    }
    path.reverse();
    path
}

/// Rows `rows` of `values`, `width` values each.
pub(crate) fn take_rows(values: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    rows.iter()
        .flat_map(|row| &values[row * width..(row + 1) * width])
        .copied()
        .collect()
}

/// `count` slots of two pages each for ids `0..vocab_used` in rows of `vocab_used + 3`, with no
/// limits in force.
pub(crate) fn slots(count: usize, vocab_used: usize) -> Slots<Cpu> {
    let mut slots =
        Slots::new(&Cpu::default(), count, 2, vocab_used + 3, vocab_used).expect("host memory");
    for row in slots.sampling.iter_mut() {
        row.top_p = 1.0;
        row.repetition_penalty = 1.0;
        row.tokens_max = u32::MAX;
        row.context_max = u32::MAX;
    }
    for (page, entry) in slots.block_table.iter_mut().enumerate() {
        *entry = page as u32;
    }
    slots
}

/// Slots with the given lengths and `pages` pages each, the last page of the pool first.
pub(crate) fn paged_slots(lengths: &[usize], pages: usize) -> Slots<Cpu> {
    let mut slots = Slots::new(&Cpu::default(), lengths.len(), pages, 8, 8).expect("host memory");
    for (to, &length) in slots.length.iter_mut().zip(lengths) {
        *to = length as u32;
    }
    let last = (slots.block_table.len() - 1) as u32;
    for (number, entry) in slots.block_table.iter_mut().enumerate() {
        *entry = last - number as u32;
    }
    slots
}

//! What the tests of several ops share: values, batches, oracles' error.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::{Backend, Batch, Cpu, NONE, Slots, TreeTables};

pub(crate) fn rng(seed: u64) -> Pcg64 {
    Pcg64::seed_from_u64(seed)
}

/// Values in -1..1.
pub(crate) fn floats(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = rng(seed);
    (0..len).map(|_| uniform(&mut rng)).collect()
}

/// A value in -1..1.
pub(crate) fn uniform(rng: &mut Pcg64) -> f32 {
    (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// A number in `0..end`.
pub(crate) fn below(rng: &mut Pcg64, end: usize) -> usize {
    (rng.next_u64() % end as u64) as usize
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub(crate) fn live(rows: usize, sequences: usize) -> Box<[u32]> {
    vec![rows as u32, sequences as u32].into()
}

/// `sum (a - b)^2 / sum b^2`.
pub(crate) fn normalised_error(values: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(values.len(), exact.len());
    let error: f64 = values
        .iter()
        .zip(exact)
        .map(|(&value, exact)| (f64::from(value) - exact).powi(2))
        .sum();
    error / exact.iter().map(|exact| exact * exact).sum::<f64>()
}

//! Stand-in weights: values of a given law, made where they are needed.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::{Backend, Cpu, Element, Storage, philox};

/// Where values are written.
pub enum FillTarget<'a, B: Backend> {
    /// 32-bit IEEE values.
    F32(&'a mut B::Buf<f32>),
    /// 16-bit IEEE values. The CPU only.
    F16(&'a mut B::Buf<f16>),
    /// 16-bit brain-float values.
    Bf16(&'a mut B::Buf<bf16>),
}

impl<'a, B: Backend> From<&'a mut Storage<B>> for FillTarget<'a, B> {
    fn from(storage: &'a mut Storage<B>) -> Self {
        match storage {
            Storage::F32(values) => FillTarget::F32(values),
            Storage::F16(values) => FillTarget::F16(values),
            Storage::Bf16(values) => FillTarget::Bf16(values),
        }
    }
}

/// What the values are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FillLaw {
    /// All the same.
    Constant(f32),
    /// Normally distributed.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        deviation: f32,
    },
    /// The logarithm of a number that is uniform in `low .. high`.
    LogUniform {
        /// Lower bound, above 0.
        low: f32,
        /// Upper bound.
        high: f32,
    },
}

/// Every value of a buffer from a law, the same on every device up to rounding: value i depends on
/// the seed, the name and i.
///
/// Values 4g .. 4g + 4 come from one Philox 4x32-10 block of key = seed and counter = (g, FNV-1a
/// hash of the name), low words first; x >> 8 counts as 24 bits of a fraction. Normal numbers are
/// made in pairs by Box and Muller: radius `sqrt(-2 ln u)`, `u = ((x_0 >> 8) + 1) 2^-24`, angle
/// `2 pi (x_1 >> 8) 2^-24`; cosine first, then sine; then the same with x_2 and x_3.
pub struct Fill<'a, B: Backend> {
    /// The buffer.
    pub values: FillTarget<'a, B>,
    /// What to fill it with.
    pub law: FillLaw,
    /// Key of the random numbers.
    pub seed: u64,
    /// Tells buffers of one seed apart: the tensor's name.
    pub name: &'a str,
}

/// Values per thread at a time; a multiple of four.
const CHUNK: usize = 1 << 14;

pub(crate) fn cpu(op: Fill<'_, Cpu>) {
    let random = Random {
        law: op.law,
        seed: op.seed,
        name: name_hash(op.name),
    };
    match op.values {
        FillTarget::F32(values) => random.write(values, |value| value),
        FillTarget::F16(values) => random.write(values, f16::from_f32),
        FillTarget::Bf16(values) => random.write(values, bf16::from_f32),
    }
}

/// FNV-1a, 64 bits.
pub(crate) fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// The values of one buffer.
struct Random {
    law: FillLaw,
    seed: u64,
    name: u64,
}

impl Random {
    fn write<T: Element>(&self, values: &mut [T], round: impl Fn(f32) -> T + Sync) {
        let chunks = values.par_chunks_mut(CHUNK).enumerate();
        chunks.for_each(|(chunk, values)| {
            for (group, values) in values.chunks_mut(4).enumerate() {
                let group = (chunk * (CHUNK / 4) + group) as u64;
                for (to, value) in values.iter_mut().zip(self.group(group)) {
                    *to = round(value);
                }
            }
        });
    }

    /// Values 4g .. 4g + 4. Functions are taken in f64, so that what is left of the exact value is
    /// one rounding.
    fn group(&self, group: u64) -> [f32; 4] {
        let words = |value: u64| [value as u32, (value >> 32) as u32];
        let ([g0, g1], [n0, n1]) = (words(group), words(self.name));
        let x = || philox::block([g0, g1, n0, n1], words(self.seed)).map(|word| word >> 8);
        let unit = |bits: u32| f64::from(bits) / f64::from(1 << 24);
        match self.law {
            FillLaw::Constant(value) => [value; 4],
            FillLaw::Normal { mean, deviation } => {
                let [r0, a0, r1, a1] = x();
                let pair = |r: u32, a: u32| {
                    let radius = (-2.0 * unit(r + 1).ln()).sqrt();
                    let (sine, cosine) = (std::f64::consts::TAU * unit(a)).sin_cos();
                    [radius * cosine, radius * sine]
                };
                let [[a, b], [c, d]] = [pair(r0, a0), pair(r1, a1)];
                let (mean, deviation) = (f64::from(mean), f64::from(deviation));
                [a, b, c, d].map(|normal| (mean + deviation * normal) as f32)
            }
            FillLaw::LogUniform { low, high } => {
                let (low, high) = (f64::from(low), f64::from(high));
                x().map(|bits| (low + (high - low) * unit(bits)).ln() as f32)
            }
        }
    }
}

#[cfg(test)]
mod tests;

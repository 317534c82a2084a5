//! Eight f32 lanes, and the choice of instruction set once per op.
//!
//! An inner loop is written once, generic over [`Vector`], and compiled twice: for AVX2 with fused
//! multiply-add and for any machine. Both round alike, operation by operation, so the two give the
//! same bits.

use half::{bf16, f16};

use crate::Element;

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Eight lanes of f32.
pub(crate) trait Vector: Copy {
    /// All lanes `value`.
    fn splat(value: f32) -> Self;
    fn load(values: &[f32; LANES]) -> Self;
    /// Widened, which is exact.
    fn load_f16(values: &[f16; LANES]) -> Self;
    /// Widened, which is exact.
    fn load_bf16(values: &[bf16; LANES]) -> Self;
    fn store(self, values: &mut [f32; LANES]);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// `self + a * b`, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Balanced tree: lane j with j + 4, then with j + 2, then with j + 1.
    fn sum(self) -> f32;
}

/// A number as it is stored, widened when it is loaded.
pub(crate) trait Lane: Element {
    fn load<V: Vector>(values: &[Self; LANES]) -> V;
}

impl Lane for f32 {
    #[inline(always)]
    fn load<V: Vector>(values: &[f32; LANES]) -> V {
        V::load(values)
    }
}

impl Lane for f16 {
    #[inline(always)]
    fn load<V: Vector>(values: &[f16; LANES]) -> V {
        V::load_f16(values)
    }
}

impl Lane for bf16 {
    #[inline(always)]
    fn load<V: Vector>(values: &[bf16; LANES]) -> V {
        V::load_bf16(values)
    }
}

/// A loop nest to be compiled per instruction set. `run` must be `#[inline(always)]`, and so must
/// everything generic over [`Vector`] that it calls.
pub(crate) trait Kernel {
    type Output;
    fn run<V: Vector>(self) -> Self::Output;
}

/// Runs `kernel` with the best vectors of this machine.
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(test)]
    if tests::IS_PORTABLE.get() {
        return kernel.run::<Portable>();
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
    {
        // SAFETY: the machine has AVX2, FMA and F16C.
        return unsafe { run_avx2(kernel) };
    }
    kernel.run::<Portable>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx2::Avx2>()
}

/// Plain arrays. Without a fused instruction `f32::mul_add` is a call, slow but rounded once.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

impl Vector for Portable {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Portable([value; LANES])
    }
    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self {
        Portable(*values)
    }
    #[inline(always)]
    fn load_f16(values: &[f16; LANES]) -> Self {
        Portable(values.map(f16::to_f32))
    }
    #[inline(always)]
    fn load_bf16(values: &[bf16; LANES]) -> Self {
        Portable(values.map(|v| f32::from_bits(u32::from(v.to_bits()) << 16)))
    }
    #[inline(always)]
    fn store(self, values: &mut [f32; LANES]) {
        *values = self.0;
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Portable(std::array::from_fn(|j| self.0[j] + other.0[j]))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Portable(std::array::from_fn(|j| self.0[j] - other.0[j]))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Portable(std::array::from_fn(|j| self.0[j] * other.0[j]))
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        Portable(std::array::from_fn(|j| a.0[j].mul_add(b.0[j], self.0[j])))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let v = self.0;
        let half = [v[0] + v[4], v[1] + v[5], v[2] + v[6], v[3] + v[7]];
        (half[0] + half[2]) + (half[1] + half[3])
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use half::{bf16, f16};

    use super::{LANES, Vector};

    /// One 256-bit register. Values of this type exist only inside `run_avx2`.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(__m256);

    impl Vector for Avx2 {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: only reached from `run_avx2`, that is with AVX2.
            Avx2(unsafe { _mm256_set1_ps(value) })
        }
        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Self {
            // SAFETY: AVX2 as above; the reference covers the eight values read.
            Avx2(unsafe { _mm256_loadu_ps(values.as_ptr()) })
        }
        #[inline(always)]
        fn load_f16(values: &[f16; LANES]) -> Self {
            // SAFETY: AVX2 as above, and F16C, which `dispatch` checks too; the reference covers
            // the sixteen bytes read.
            Avx2(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(values.as_ptr().cast())) })
        }
        #[inline(always)]
        fn load_bf16(values: &[bf16; LANES]) -> Self {
            // SAFETY: AVX2 as above; the reference covers the sixteen bytes read.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(values.as_ptr().cast()));
                Avx2(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
            }
        }
        #[inline(always)]
        fn store(self, values: &mut [f32; LANES]) {
            // SAFETY: AVX2 as above; the reference covers the eight values written.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: AVX2 as above.
            Avx2(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: AVX2 as above.
            Avx2(unsafe { _mm256_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: AVX2 as above.
            Avx2(unsafe { _mm256_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul_add(self, a: Self, b: Self) -> Self {
            // SAFETY: AVX2 as above, and FMA, which `dispatch` checks too.
            Avx2(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
        }
        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: AVX2 as above.
            unsafe {
                let low = _mm256_castps256_ps128(self.0);
                let four = _mm_add_ps(low, _mm256_extractf128_ps::<1>(self.0));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::testing::{bits, rng};

    thread_local! {
        pub(super) static IS_PORTABLE: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `run` with portable vectors wherever it dispatches on this thread.
    pub(crate) fn portable<T>(run: impl FnOnce() -> T) -> T {
        IS_PORTABLE.set(true);
        let result = run();
        IS_PORTABLE.set(false);
        result
    }

    /// Every operation of a vector on three vectors.
    struct Operations([[f32; LANES]; 3]);

    impl Kernel for Operations {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<V: Vector>(self) -> Vec<f32> {
            let [a, b, c] = self.0.map(|v| V::load(&v));
            let mut results = Vec::new();
            for v in [
                a.add(b),
                a.sub(b),
                a.mul(b),
                a.mul_add(b, c),
                V::splat(self.0[0][0]),
            ] {
                let mut lanes = [0.0; LANES];
                v.store(&mut lanes);
                results.extend(lanes);
            }
            results.push(a.sum());
            results
        }
    }

    /// A number of any finite exponent, subnormal ones included.
    fn wide(rng: &mut impl rand::Rng) -> f32 {
        let value = f32::from_bits(rng.next_u32());
        if value.is_finite() { value } else { 1.0 }
    }

    #[test]
    fn portable_vectors_and_those_of_the_machine_give_the_same_bits() {
        let mut rng = rng(1);
        for case in 0..20_000 {
            let mut values: [[f32; LANES]; 3] =
                std::array::from_fn(|_| std::array::from_fn(|_| wide(&mut rng)));
            if case % 2 == 0 {
                // Sums that cancel show a second rounding.
                for j in 0..LANES {
                    values[0][j] = -(values[1][j] * values[2][j]);
                }
            }
            // Lanes of infinity and zero times infinity are NaN on both; signs of NaN may differ.
            let one = |run: Vec<f32>| -> Vec<u32> {
                bits(
                    &run.iter()
                        .map(|&v| if v.is_nan() { f32::NAN } else { v })
                        .collect::<Vec<_>>(),
                )
            };
            let machine = one(dispatch(Operations(values)));
            assert_eq!(
                machine,
                one(Operations(values).run::<Portable>()),
                "{values:?}"
            );
        }
    }

    struct Widened([u16; LANES]);

    impl Kernel for Widened {
        type Output = [f32; 2 * LANES];

        #[inline(always)]
        fn run<V: Vector>(self) -> [f32; 2 * LANES] {
            let mut lanes = [[0.0; LANES]; 2];
            V::load_f16(&self.0.map(f16::from_bits)).store(&mut lanes[0]);
            V::load_bf16(&self.0.map(bf16::from_bits)).store(&mut lanes[1]);
            std::array::from_fn(|j| lanes[j / LANES][j % LANES])
        }
    }

    #[test]
    fn every_half_number_is_widened_exactly() {
        for first in (0..=u16::MAX).step_by(LANES) {
            let numbers = std::array::from_fn(|j| first + j as u16);
            for wide in [
                dispatch(Widened(numbers)),
                Widened(numbers).run::<Portable>(),
            ] {
                for (j, number) in numbers.into_iter().enumerate() {
                    for (found, exact) in [
                        (wide[j], f16::from_bits(number).to_f32()),
                        (wide[LANES + j], bf16::from_bits(number).to_f32()),
                    ] {
                        let same = found.to_bits() == exact.to_bits();
                        assert!(same || found.is_nan() && exact.is_nan(), "{number:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_multiply_add_rounds_once_and_lanes_are_summed_as_a_tree() {
        let lanes = |v: f32| [v; LANES];
        // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, whose last term a rounded product loses.
        let a = 1.0 + 2f32.powi(-12);
        let results = dispatch(Operations([
            lanes(-1.0 - 2f32.powi(-11)),
            lanes(a),
            lanes(a),
        ]));
        assert_eq!(results[3 * LANES], 2f32.powi(-24));
        // 2^24 + 1 rounds to 2^24: only the pairing j with j + 4 keeps the ones.
        let big = 2f32.powi(24);
        let values = [big, 1.0, 0.0, 0.0, -big, 1.0, 0.0, 0.0];
        let results = dispatch(Operations([values, lanes(0.0), lanes(0.0)]));
        assert_eq!(results[5 * LANES], 2.0);
    }
}

//! Eight f32 lanes, and the choice of instruction set once per op.
//!
//! An inner loop is written once, generic over [`Vector`], and compiled twice: for AVX2 with fused
//! multiply-add and for any machine. Which of the two runs depends on the machine only, so within
//! a process a sum is always formed by the same instructions.

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Eight lanes of f32.
pub(crate) trait Vector: Copy {
    /// All lanes `value`.
    fn splat(value: f32) -> Self;
    fn load(values: &[f32; LANES]) -> Self;
    fn store(self, values: &mut [f32; LANES]);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// `self + a * b`, rounded once or twice as the machine does it.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Balanced tree: lane j with j + 4, then with j + 2, then with j + 1.
    fn sum(self) -> f32;
}

/// A loop nest to be compiled per instruction set. `run` must be `#[inline(always)]`, and so must
/// everything generic over [`Vector`] that it calls.
pub(crate) trait Kernel {
    type Output;
    fn run<V: Vector>(self) -> Self::Output;
}

/// Runs `kernel` with the best vectors of this machine.
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the machine has AVX2 and FMA.
        return unsafe { run_avx2(kernel) };
    }
    kernel.run::<Portable>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx2::Avx2>()
}

/// Plain arrays; product and sum are rounded separately.
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
        self.add(a.mul(b))
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

//! The exponential and what is made of it, in f32.
//!
//! Additions and multiplications only, without branches: loops over these functions vectorise, and
//! give the same bits whatever instructions they are compiled to.

use std::f32::consts::LOG2_E;

/// `e^x` with a relative error below 2e-7; 0 below the smallest subnormal, infinity above the
/// largest finite value, NaN for NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 = LN2_HIGH + LN2_LOW; the high part has 9 significant bits, so n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = (std::f64::consts::LN_2 - LN2_HIGH as f64) as f32;
    let x = x.clamp(-104.0, 89.0);
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    // x = n ln 2 + r, |r| <= ln 2 / 2; the first omitted term r^8 / 8! is below 6e-9.
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut series = 1.0 / 5040.0;
    for factor in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        series = series * r + factor;
    }
    // 2^n in two factors, since n can lie outside the range of normal exponents.
    let half = exponent >> 1;
    series * power_of_two(half) * power_of_two(exponent - half)
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `ln(1 + e^x)`, `x` itself above 20.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { exp(x).ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_f64_over_its_whole_range() {
        let mut worst = 0f64;
        let mut x = -87.0f32;
        while x < 88.7 {
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
            x += 0.0137;
        }
        assert!(worst < 2e-7, "relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        let subnormal = exp(-100.0);
        assert!((f64::from(subnormal) / (-100f64).exp() - 1.0).abs() < 0.02);
    }

    #[test]
    fn sigmoid_silu_and_softplus_agree_with_f64() {
        for i in -4000..4000 {
            let x = i as f32 * 0.01;
            let wide = f64::from(x);
            let sigmoid_exact = 1.0 / (1.0 + (-wide).exp());
            let error = |value: f32, exact: f64| (f64::from(value) - exact).abs() / exact.abs();
            assert!(error(sigmoid(x), sigmoid_exact) < 4e-7, "sigmoid({x})");
            if i != 0 {
                assert!(error(silu(x), wide * sigmoid_exact) < 4e-7, "silu({x})");
            }
            assert!(
                error(softplus(x), wide.exp().ln_1p()) < 4e-7,
                "softplus({x})"
            );
        }
        assert_eq!(silu(0.0), 0.0);
    }
}

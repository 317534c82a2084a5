//! Counter-based random numbers: the same draw for the same output position, however tokens were
//! grouped into steps.

/// The uniform number in `[0, 1)` that decides output token `index` of answer `choice` under
/// `seed`: Philox 4x32-10 with key = seed (low word first) and counter = (index, choice, 0, 0),
/// first word, top 24 bits, so that every value is exact in f32.
pub fn uniform(seed: u64, index: u32, choice: u32) -> f32 {
    let key = [seed as u32, (seed >> 32) as u32];
    let word = block([index, choice, 0, 0], key)[0];
    (word >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// Philox 4x32 with ten rounds (Salmon et al., SC 2011). A round multiplies the even words by the
/// two multipliers and mixes the high halves into the odd words and the key; the key advances by
/// the Weyl constants (golden ratio and sqrt 3 - 1) between rounds.
pub(crate) fn block(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let wide = [
            u64::from(MULTIPLIER[0]) * u64::from(counter[0]),
            u64::from(MULTIPLIER[1]) * u64::from(counter[2]),
        ];
        counter = [
            (wide[1] >> 32) as u32 ^ counter[1] ^ key[0],
            wide[1] as u32,
            (wide[0] >> 32) as u32 ^ counter[3] ^ key[1],
            wide[0] as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the generator: zeros, ones, digits of pi.
    #[test]
    fn known_answers() {
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(block(counter, key), expected);
        }
    }

    #[test]
    fn uniform_is_the_top_24_bits_of_the_first_word() {
        assert_eq!(uniform(0, 0, 0), 0x66_27e8 as f32 / 16_777_216.0);
        let (seed, index, choice) = (0x299f_31d0_a409_3822, 7, 3);
        let word = block([index, choice, 0, 0], [0xa409_3822, 0x299f_31d0])[0];
        assert_eq!(
            f64::from(uniform(seed, index, choice)),
            f64::from(word >> 8) / 16_777_216.0
        );
    }

    #[test]
    fn every_argument_and_the_high_word_of_the_seed_matter() {
        let base = uniform(5, 6, 7);
        assert_ne!(base, uniform(5 | 1 << 32, 6, 7));
        assert_ne!(base, uniform(4, 6, 7));
        assert_ne!(base, uniform(5, 7, 7));
        assert_ne!(base, uniform(5, 6, 8));
        assert_ne!(uniform(5, 6, 7), uniform(5, 7, 6));
    }

    /// Mean 1/2 and variance 1/12 within five standard errors, and never 1.
    #[test]
    fn uniform_is_uniform() {
        let n = 100_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for index in 0..n {
            let u = f64::from(uniform(11, index, 0));
            assert!((0.0..1.0).contains(&u));
            sum += u;
            squares += (u - 0.5) * (u - 0.5);
        }
        let n = f64::from(n);
        assert!((sum / n - 0.5).abs() < 5.0 * (1.0 / 12.0 / n).sqrt());
        assert!((squares / n - 1.0 / 12.0).abs() < 5.0 * (1.0 / 180.0 / n).sqrt());
    }
}

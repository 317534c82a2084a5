use super::*;
use crate::testing::bits;

fn filled(law: FillLaw, seed: u64, name: &str, len: usize) -> Vec<f32> {
    let mut values: Box<[f32]> = vec![f32::NAN; len].into();
    let op = Fill {
        values: FillTarget::F32(&mut values),
        law,
        seed,
        name,
    };
    Cpu::default().fill(op).unwrap();
    values.into()
}

const STANDARD: FillLaw = FillLaw::Normal {
    mean: 0.0,
    deviation: 1.0,
};

#[test]
fn names_hash_as_published() {
    // Test vectors of the FNV authors.
    assert_eq!(name_hash(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(name_hash("a"), 0xaf63_dc4c_8601_ec8c);
    assert_eq!(name_hash("foobar"), 0x8594_4171_f739_67e8);
}

#[test]
fn seed_name_and_place_decide_a_value_and_nothing_else() {
    let all = filled(STANDARD, 3, "w", 40_000);
    for len in [0, 1, 2, 3, 5, 16_387] {
        assert_eq!(bits(&filled(STANDARD, 3, "w", len)), bits(&all[..len]));
    }
    for other in [
        filled(STANDARD, 4, "w", 40_000),
        filled(STANDARD, 3 | 1 << 32, "w", 40_000),
        filled(STANDARD, 3, "v", 40_000),
    ] {
        let same = all.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 10, "{same} equal values");
    }
    let mut sorted = bits(&all);
    sorted.sort_unstable();
    sorted.dedup();
    assert!(sorted.len() > 39_900, "values repeat: {}", sorted.len());
}

#[test]
fn narrow_values_are_the_rounded_ones() {
    let exact = filled(STANDARD, 5, "w", 1001);
    for dtype in crate::testing::DTYPES {
        let mut storage = Storage::zeros(&Cpu::default(), dtype, 1001).unwrap();
        let op = Fill {
            values: (&mut storage).into(),
            law: STANDARD,
            seed: 5,
            name: "w",
        };
        Cpu::default().fill(op).unwrap();
        let mut found = vec![0.0; 1001];
        storage.widen_to(0, &mut found);
        let rounded: Vec<f32> = exact
            .iter()
            .map(|&value| crate::testing::rounded(dtype, value))
            .collect();
        assert_eq!(bits(&found), bits(&rounded), "{dtype:?}");
    }
}

/// Mean, variance, third and fourth moment within five standard errors; neighbours uncorrelated.
#[test]
fn normal_numbers_are_normal() {
    let n = 400_000;
    let values = filled(
        FillLaw::Normal {
            mean: -1.0,
            deviation: 0.5,
        },
        7,
        "layers.0.weight",
        n,
    );
    let z: Vec<f64> = values
        .iter()
        .map(|&value| (f64::from(value) + 1.0) / 0.5)
        .collect();
    let mean = |f: &dyn Fn(f64) -> f64| z.iter().map(|&z| f(z)).sum::<f64>() / n as f64;
    let error = |variance: f64| 5.0 * (variance / n as f64).sqrt();
    assert!(mean(&|z| z).abs() < error(1.0));
    assert!((mean(&|z| z * z) - 1.0).abs() < error(2.0));
    assert!(mean(&|z| z.powi(3)).abs() < error(15.0));
    assert!((mean(&|z| z.powi(4)) - 3.0).abs() < error(96.0));
    for lag in 1..5 {
        let sum: f64 = z.iter().zip(&z[lag..]).map(|(a, b)| a * b).sum();
        assert!((sum / n as f64).abs() < error(1.0), "lag {lag}");
    }
    assert!(z.iter().all(|z| z.abs() < 5.8));
}

#[test]
fn logarithms_of_uniform_numbers() {
    let n = 100_000;
    let law = FillLaw::LogUniform {
        low: 1.0,
        high: 16.0,
    };
    let values = filled(law, 7, "a_log", n);
    assert!(values.iter().all(|&v| (0.0..=16f32.ln()).contains(&v)));
    let uniform: Vec<f64> = values.iter().map(|&v| f64::from(v).exp()).collect();
    let mean = uniform.iter().sum::<f64>() / n as f64;
    let deviation = 15.0 / 12f64.sqrt();
    assert!((mean - 8.5).abs() < 5.0 * deviation / (n as f64).sqrt());
    assert_eq!(filled(FillLaw::Constant(1.25), 7, "norm", 9), [1.25; 9]);
}

//! Stand-in weights against the CPU's.

use half::bf16;

use super::{cases, get, gpu, poisoned};
use crate::testing::bits;
use crate::{Backend, Cpu, Fill, FillLaw, FillTarget};

const LAWS: [FillLaw; 4] = [
    FillLaw::Constant(1.25),
    FillLaw::Normal {
        mean: 0.0,
        deviation: 1.0,
    },
    FillLaw::Normal {
        mean: -1.0,
        deviation: 1.0,
    },
    FillLaw::LogUniform {
        low: 1.0,
        high: 16.0,
    },
];

fn exact(law: FillLaw, len: usize) -> Box<[f32]> {
    let mut values = vec![f32::NAN; len].into();
    let op = Fill {
        values: FillTarget::F32(&mut values),
        law,
        seed: 0x1234_5678_9ABC_DEF0,
        name: "model.layers.17.weight",
    };
    Cpu::default().fill(op).unwrap();
    values
}

#[test]
fn values_are_those_of_the_reference() {
    let Some(cuda) = gpu() else { return };
    for law in LAWS {
        for &len in cases(&[0, 1, 7, 8, 2049, 1 << 20], 5) {
            let exact = exact(law, len);
            let fill = |values| {
                let op = Fill {
                    values,
                    law,
                    seed: 0x1234_5678_9ABC_DEF0,
                    name: "model.layers.17.weight",
                };
                cuda.fill(op).unwrap();
            };
            let (mut wide, mut half) = (poisoned(&cuda, len), poisoned::<bf16>(&cuda, len));
            fill(FillTarget::F32(&mut wide));
            fill(FillTarget::Bf16(&mut half));
            let wide = get(&cuda, &wide);
            let mut worst = 0.0f32;
            for (&found, &exact) in wide.iter().zip(&exact) {
                let error = (found - exact).abs() / exact.abs().max(1.0);
                assert!(error <= 1e-6, "{law:?}: {found} is not {exact}");
                worst = worst.max(error);
            }
            println!("{law:?}, {len} values: largest error {worst:e}");
            let rounded: Vec<f32> = wide
                .iter()
                .map(|&value| bf16::from_f32(value).to_f32())
                .collect();
            let half: Vec<f32> = get(&cuda, &half)
                .iter()
                .map(|value| value.to_f32())
                .collect();
            assert_eq!(bits(&half), bits(&rounded), "{law:?}");
        }
    }
}

//! Embedding, copies and norms.

use half::bf16;

use super::{get, gpu, narrow, poisoned, put, put_batch, wide};
use crate::testing::{Segment, assert_close, batch, bits, chain, floats, live};
use crate::{
    Backend, CopyColumns, Cpu, Cuda, Dtype, Embed, GatherRows, NONE, RmsNorm, Rows, Tensor,
};

fn halves(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

const POISON_16: u16 = 0xABAB;
const POISON_32: u32 = 0xABAB_ABAB;

#[test]
fn token_rows_are_those_of_the_table() {
    let Some(cuda) = gpu() else { return };
    for (vocab, hidden, capacity) in [
        (300, 5120, 16),
        (2048, 192, 1),
        (11, 8, 64),
        (50, 5128, 200),
    ] {
        let values = wide(&narrow(&floats(1, vocab * hidden)));
        let mut token: Vec<u32> = (0..capacity as u32).map(|i| i * 7 % vocab as u32).collect();
        token[0] = vocab as u32 - 1;
        let mut batch = batch(&[Segment {
            slot: 0,
            token: &token,
            parent: &chain(capacity),
        }]);
        if capacity > 8 {
            batch.row_sequence[5] = NONE;
            batch.live[0] = capacity as u32 - 2;
        }
        let table = Tensor::from_f32(&Cpu::default(), Dtype::Bf16, vocab, hidden, &values).unwrap();
        let len = batch.rows_max * hidden;
        let mut expected = vec![f32::from_bits(POISON_32); len].into();
        let op = Embed {
            rows: batch.rows(capacity),
            batch: &batch,
            table: &table,
            out: &mut expected,
        };
        Cpu::default().embed(op).unwrap();
        let on_gpu = put_batch(&cuda, &batch);
        let mut found = poisoned(&cuda, len);
        let op = Embed {
            rows: on_gpu.rows(capacity),
            batch: &on_gpu,
            table: &Tensor::from_f32(&cuda, Dtype::Bf16, vocab, hidden, &values).unwrap(),
            out: &mut found,
        };
        cuda.embed(op).unwrap();
        assert_eq!(
            bits(&get(&cuda, &found)),
            bits(&expected),
            "{hidden} values"
        );
    }
}

/// A token that the table does not have shows up as NaN, and reads nothing.
#[test]
fn a_token_beyond_the_table_gives_not_a_number() {
    let Some(cuda) = gpu() else { return };
    let batch = batch(&[Segment {
        slot: 0,
        token: &[10, 11, u32::MAX],
        parent: &chain(3),
    }]);
    let table = Tensor::from_f32(&cuda, Dtype::Bf16, 11, 8, &[0.5; 88]).unwrap();
    let on_gpu = put_batch(&cuda, &batch);
    let mut found = poisoned(&cuda, 24);
    let op = Embed {
        rows: on_gpu.rows(3),
        batch: &on_gpu,
        table: &table,
        out: &mut found,
    };
    cuda.embed(op).unwrap();
    let found: Vec<f32> = get(&cuda, &found);
    assert_eq!(found[..8], [0.5; 8]);
    assert!(found[8..].iter().all(|value| value.is_nan()));
}

#[test]
fn listed_rows_are_gathered() {
    let Some(cuda) = gpu() else { return };
    for (dim, capacity, count) in [(5120, 16, 9), (25_600, 3, 3), (192, 64, 0), (8, 64, 64)] {
        let x = narrow(&floats(2, 70 * dim));
        let mut source: Vec<u32> = (0..capacity as u32).map(|i| i * 31 % 70).collect();
        source[count..].fill(69);
        let mut found = poisoned::<bf16>(&cuda, (capacity + 1) * dim);
        let op = GatherRows {
            rows: Rows {
                capacity,
                live: &put(&cuda, &live(count)),
                prompt: false,
            },
            source: &put(&cuda, &source),
            dim,
            x: &put(&cuda, &x),
            out: &mut found,
        };
        cuda.gather_rows(op).unwrap();
        let mut expected = vec![bf16::from_bits(POISON_16); (capacity + 1) * dim];
        for (to, &row) in expected.chunks_mut(dim).zip(&source[..count]) {
            to.copy_from_slice(&x[row as usize * dim..][..dim]);
        }
        assert_eq!(
            halves(&get(&cuda, &found)),
            halves(&expected),
            "{dim} values"
        );
    }
}

#[test]
fn taps_stand_side_by_side() {
    let Some(cuda) = gpu() else { return };
    for (dim, taps, capacity, count) in [(5120, 5, 16, 16), (192, 2, 64, 33), (8, 3, 5, 0)] {
        let out_dim = taps * dim + 16;
        let mut found = poisoned::<bf16>(&cuda, capacity * out_dim);
        let mut expected = vec![bf16::from_bits(POISON_16); capacity * out_dim];
        for tap in 0..taps {
            let x = floats(3 + tap as u64, capacity * dim);
            let offset = 8 + tap * dim;
            let op = CopyColumns {
                rows: Rows {
                    capacity,
                    live: &put(&cuda, &live(count)),
                    prompt: false,
                },
                dim,
                x: &put(&cuda, &x),
                offset,
                out_dim,
                out: &mut found,
            };
            cuda.copy_columns(op).unwrap();
            for (to, x) in expected.chunks_mut(out_dim).zip(x.chunks(dim)).take(count) {
                to[offset..offset + dim].copy_from_slice(&narrow(x));
            }
        }
        assert_eq!(
            halves(&get(&cuda, &found)),
            halves(&expected),
            "{dim} values"
        );
    }
}

fn normed(cuda: &Cuda, x: &[f32], weight: &[f32], eps: f32, capacity: usize) -> Vec<bf16> {
    let dim = weight.len();
    let mut out = poisoned(cuda, (capacity + 1) * dim);
    let op = RmsNorm {
        rows: Rows {
            capacity,
            live: &put(cuda, &live(x.len() / dim)),
            prompt: false,
        },
        dim,
        eps,
        x: &put(cuda, &[x, &vec![f32::NAN; capacity * dim]].concat()),
        weight: &put(cuda, weight),
        out: &mut out,
    };
    cuda.rms_norm(op).unwrap();
    get(cuda, &out)
}

#[test]
fn norms_agree_with_the_reference() {
    let Some(cuda) = gpu() else { return };
    for (dim, rows) in [(5120, 17), (192, 64), (4, 3), (1028, 5), (8192, 2)] {
        let x: Vec<f32> = floats(5, rows * dim).iter().map(|v| 3.0 * v).collect();
        let weight = floats(6, dim);
        let mut exact = vec![0.0; rows * dim].into();
        let op = RmsNorm {
            rows: Rows {
                capacity: rows,
                live: &live(rows),
                prompt: false,
            },
            dim,
            eps: 1e-6,
            x: &x.clone().into(),
            weight: &weight.clone().into(),
            out: &mut exact,
        };
        Cpu::default().rms_norm(op).unwrap();
        let found = normed(&cuda, &x, &weight, 1e-6, rows + 2);
        let (found, rest) = found.split_at(rows * dim);
        let exact: Vec<f64> = exact.iter().map(|&value| f64::from(value)).collect();
        assert_close(&wide(found), &exact, 5e-6, &format!("{dim} values"));
        assert!(
            rest.iter().all(|value| value.to_bits() == POISON_16),
            "padding rows"
        );
        // One rounding: next to all values are the reference's own, rounded.
        let rounded = narrow(&exact.iter().map(|&value| value as f32).collect::<Vec<_>>());
        let other = found.iter().zip(&rounded).filter(|(a, b)| a != b).count();
        assert!(
            other * 200 <= found.len(),
            "{other} of {} differ",
            found.len()
        );
        for count in [1, rows / 2 + 1] {
            let some = normed(&cuda, &x[(rows - count) * dim..], &weight, 1e-6, count);
            assert_eq!(
                halves(&some[..count * dim]),
                halves(&found[(rows - count) * dim..])
            );
        }
    }
}

#[test]
fn zeros_stay_zero_and_not_a_number_stays_in_its_row() {
    let Some(cuda) = gpu() else { return };
    let mut x = floats(7, 3 * 64);
    x[..64].fill(0.0);
    x[64] = f32::NAN;
    let out = normed(&cuda, &x, &floats(8, 64), 1e-6, 3);
    assert!(out[..64].iter().all(|value| value.to_f32() == 0.0));
    assert!(out[64..128].iter().all(|value| value.is_nan()));
    assert!(out[128..192].iter().all(|value| value.is_finite()));
}

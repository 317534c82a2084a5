//! Accepted keys and values in all layers at once.

use half::bf16;

use super::{get, gpu, narrow, put, put_batch, put_slots, put_walk};
use crate::testing::{chain, floats, paged_slots, tree_batch};
use crate::{Backend, CompactKv, Cpu, Cuda, EMIT_MAX, KvLayer, PAGE_TOKENS, Storage, Walk};

/// Paths as a walk; what lies behind them means nothing.
fn walk_of(paths: &[&[u32]]) -> Walk<Cpu> {
    let mut walk = Walk::new(&Cpu::default(), paths.len() + 1).unwrap();
    walk.path.fill(99);
    for (sequence, path) in paths.iter().enumerate() {
        walk.path_rows[sequence] = path.len() as u32;
        walk.path[sequence * EMIT_MAX..][..path.len()].copy_from_slice(path);
    }
    walk
}

fn bf16_of<B: Backend>(storage: &Storage<B>) -> &B::Buf<bf16> {
    match storage {
        Storage::Bf16(values) => values,
        other => panic!("{:?}", other.dtype()),
    }
}

#[test]
fn every_layer_holds_the_path_and_nothing_else_moved() {
    let Some(cuda) = gpu() else { return };
    let paths: [&[u32]; 7] = [
        &[0, 2, 5, 7, 40],
        &[0, 1, 2],
        &[0, 63],
        &[0],
        &[],
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 48],
        &[0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60],
    ];
    let tree = chain(64);
    let batch = tree_batch(&[&tree[..]; 7]);
    let walk = walk_of(&paths);
    // Heads and head size of the 27B target, of the tiny one, and widths that leave threads idle
    // or need several turns.
    for (layers, heads, head_dim) in [(16, 4, 256), (2, 1, 256), (64, 1, 8), (1, 9, 128)] {
        for length in [1, 60, 64] {
            let slots = paged_slots(&[length; 7], 3);
            let values = 3 * 7 * PAGE_TOKENS * heads * head_dim;
            let mut expected = Vec::new();
            let mut found = Vec::new();
            for layer in 0..layers {
                let pool = |seed: usize| narrow(&floats((2 * layer + seed) as u64, values));
                let kv = |keys: Storage<Cpu>, values| KvLayer {
                    keys,
                    values,
                    heads,
                    head_dim,
                };
                found.push(KvLayer::<Cuda> {
                    keys: Storage::Bf16(put(&cuda, &pool(0))),
                    values: Storage::Bf16(put(&cuda, &pool(1))),
                    heads,
                    head_dim,
                });
                expected.push(kv(
                    Storage::Bf16(pool(0).into()),
                    Storage::Bf16(pool(1).into()),
                ));
            }
            let op = CompactKv {
                batch: &batch,
                slots: &slots,
                walk: &walk,
                layers: &mut expected,
            };
            Cpu::default().compact_kv(op).unwrap();
            let op = CompactKv {
                batch: &put_batch(&cuda, &batch),
                slots: &put_slots(&cuda, &slots),
                walk: &put_walk(&cuda, &walk),
                layers: &mut found,
            };
            cuda.compact_kv(op).unwrap();
            for (layer, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let same = |found, expected: &[bf16]| get(&cuda, bf16_of(found)) == expected;
                let what = format!("layer {layer} of {layers}, length {length}");
                assert!(same(&found.keys, bf16_of(&expected.keys)), "keys, {what}");
                assert!(
                    same(&found.values, bf16_of(&expected.values)),
                    "values, {what}"
                );
            }
        }
    }
}

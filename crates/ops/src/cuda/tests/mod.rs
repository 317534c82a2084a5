//! Every kernel against the CPU op on the same cases.

use half::bf16;

use super::{Cuda, CudaBuf};
use crate::Element;

mod accept_walk;
mod attention_inputs;
mod build_tree;
mod compact_kv;
mod copies;
mod core;
mod draft_attention;
mod fill;
mod gdn;
mod gdn_chunk;
mod linear;
mod norm_rope;
mod rows;
mod sample;
mod side;
mod simulate_acceptance;
mod token_logprobs;
mod topk;
mod tree_attention;
mod tree_tables;
mod upload;

use copies::{get, put, put_batch, put_slots, put_tree, put_walk, tree_tables_of};
use side::{Side, round_floats};

/// The GPU, or `None` on a machine without one: the test then says so and ends. With
/// `REQUIRE_GPU=1` a missing GPU is a failure.
pub(super) fn gpu() -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(cuda) => Some(cuda),
        Err(error) if std::env::var("REQUIRE_GPU").is_ok_and(|value| value == "1") => {
            panic!("REQUIRE_GPU=1: {error}")
        }
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Whether only small cases are to run, as `SPINNEY_TEST_SMALL=1` asks: under a sanitizer the
/// large ones take hours and show nothing that the small ones do not.
fn only_small() -> bool {
    std::env::var("SPINNEY_TEST_SMALL").is_ok_and(|value| value == "1")
}

/// All cases, or the first `few` where only small ones are to run.
fn cases<T>(all: &[T], few: usize) -> &[T] {
    match only_small() {
        true => &all[..few],
        false => all,
    }
}

/// A buffer in which every byte is 0xAB: an unwritten output shows.
pub(super) fn poisoned<T: Element>(cuda: &Cuda, len: usize) -> CudaBuf<T> {
    let bytes = vec![0xABu8; len * size_of::<T>()];
    put(
        cuda,
        &bytes
            .chunks(size_of::<T>())
            .map(bytemuck::pod_read_unaligned)
            .collect::<Vec<T>>(),
    )
}

/// Rounded to bf16: what both sides start from.
pub(super) fn narrow(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&value| bf16::from_f32(value)).collect()
}

/// Widened; exact.
pub(super) fn wide(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

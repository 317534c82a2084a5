//! Every kernel against the CPU op on the same cases.

use half::bf16;

use super::{Cuda, CudaBuf};
use crate::{Backend, Batch, Cpu, Element, Slots, TreeTables, Walk};

mod accept_walk;
mod build_tree;
mod compact_kv;
mod core;
mod fill;
mod gdn_chunk;
mod linear;
mod rows;
mod sample;
mod sampling_times;
mod simulate_acceptance;
mod table_times;
mod token_logprobs;
mod topk;
mod tree_tables;
mod upload;

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

/// `values` on the device.
pub(super) fn put<T: Element>(cuda: &Cuda, values: &[T]) -> CudaBuf<T> {
    let mut buf = cuda.alloc(values.len()).unwrap();
    cuda.upload(values, &mut buf, 0).unwrap();
    buf
}

/// All values of a buffer.
pub(super) fn get<T: Element>(cuda: &Cuda, buf: &CudaBuf<T>) -> Vec<T> {
    let mut values = vec![T::zeroed(); cuda.len(buf)];
    cuda.download(buf, 0, &mut values).unwrap();
    values
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

/// The same tables on the device.
pub(super) fn put_batch(cuda: &Cuda, batch: &Batch<Cpu>) -> Batch<Cuda> {
    let mut copy = Batch::new(cuda, batch.rows_max, batch.sequence_slot.len()).unwrap();
    copy.cover(batch.sequences_max);
    copy.live = put(cuda, &batch.live);
    copy.row_sequence = put(cuda, &batch.row_sequence);
    copy.token = put(cuda, &batch.token);
    copy.parent = put(cuda, &batch.parent);
    copy.depth = put(cuda, &batch.depth);
    copy.sequence_slot = put(cuda, &batch.sequence_slot);
    copy.sequence_start = put(cuda, &batch.sequence_start);
    copy.sequence_rows = put(cuda, &batch.sequence_rows);
    copy
}

/// The same tables on the device.
pub(super) fn put_slots(cuda: &Cuda, slots: &Slots<Cpu>) -> Slots<Cuda> {
    Slots {
        count: slots.count,
        pages_max: slots.pages_max,
        vocab_rows: slots.vocab_rows,
        vocab_used: slots.vocab_used,
        length: put(cuda, &slots.length),
        root: put(cuda, &slots.root),
        emitted: put(cuda, &slots.emitted),
        pending: put(cuda, &slots.pending),
        block_table: put(cuda, &slots.block_table),
        sampling: put(cuda, &slots.sampling),
        stop_ids: put(cuda, &slots.stop_ids),
        bias_ids: put(cuda, &slots.bias_ids),
        bias_values: put(cuda, &slots.bias_values),
        prompt_seen: put(cuda, &slots.prompt_seen),
        generated: put(cuda, &slots.generated),
    }
}

/// The same tables on the device.
pub(super) fn put_tree(cuda: &Cuda, tree: &TreeTables<Cpu>) -> TreeTables<Cuda> {
    TreeTables {
        rows_max: tree.rows_max,
        ancestors: put(cuda, &tree.ancestors),
        first_child: put(cuda, &tree.first_child),
        next_sibling: put(cuda, &tree.next_sibling),
        conv_source: put(cuda, &tree.conv_source),
        scan_order: put(cuda, &tree.scan_order),
        scan_restore: put(cuda, &tree.scan_restore),
        scan_save: put(cuda, &tree.scan_save),
    }
}

/// The same tables on the device.
pub(super) fn put_walk(cuda: &Cuda, walk: &Walk<Cpu>) -> Walk<Cuda> {
    Walk {
        sequences_max: walk.sequences_max,
        path_rows: put(cuda, &walk.path_rows),
        path: put(cuda, &walk.path),
        emitted: put(cuda, &walk.emitted),
        tokens: put(cuda, &walk.tokens),
        reason: put(cuda, &walk.reason),
    }
}

//! Gate and up projections whose activation is taken from the sums.

use half::bf16;

use super::device::Cuda;
use super::linear::Product;
use super::linear::plan::{Limits, Store};
use crate::{LinearSwiglu, OpsError};

/// Outputs of one kind that lie together in the weight.
const GROUP: usize = 8;

pub(super) fn linear_swiglu(cuda: &Cuda, op: LinearSwiglu<'_, Cuda>) -> Result<(), OpsError> {
    let outputs = op.weight.rows;
    if !outputs.is_multiple_of(2 * GROUP) {
        return Err(OpsError::Device(format!(
            "an MLP on CUDA needs a multiple of {GROUP} intermediate values, this one has {}",
            outputs / 2
        )));
    }
    let intermediate = outputs / 2;
    let product = Product {
        rows: op.rows,
        x: op.x,
        weight: op.weight,
        slices: 1,
        store: Store::Swiglu,
        out: op.out.range(0, op.rows.capacity * intermediate),
        out_row: intermediate,
        scratch_used: 0,
        // All of it: a route that keeps gates and ups in f32 takes two rows' place for one.
        room: (
            op.gate_up.range(0, op.gate_up.len()),
            op.gate_up.len() * size_of::<bf16>(),
        ),
    };
    product.enqueue(cuda, &Limits::of(cuda)?)
}

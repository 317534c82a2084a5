//! Launch of `kernels/gdn_commit.cu`: one for all layers.

use super::Cuda;
use super::buf::DevicePtr;
use super::gdn_sizes::GdnSizes;
use super::kernel::{Entry, Grid};
use super::tables::{BatchTable, WalkTable};
use crate::{GdnCommit, GdnJournal, GdnState, OpsError};

const GDN_COMMIT: Entry = Entry {
    module: "gdn_commit",
    name: "gdn_commit",
};

const THREADS: u32 = 256;
/// Blocks that share the rows of one layer: as many as one sequence can have work for.
const ROW_BLOCKS: u32 = 16;

#[derive(Clone, Copy)]
#[repr(C)]
struct GdnCommitParams {
    batch: BatchTable,
    walk: WalkTable,
    layers: DevicePtr,
    sizes: GdnSizes,
}

pub(super) fn gdn_commit(cuda: &Cuda, op: GdnCommit<'_, Cuda>) -> Result<(), OpsError> {
    assert_eq!(
        op.journals.len(),
        op.states.len(),
        "one journal per GDN layer"
    );
    let Some(first) = op.states.first() else {
        return Ok(());
    };
    assert!(
        op.states.iter().all(|state| state.shape == first.shape),
        "GDN layers of one shape"
    );
    let params = GdnCommitParams {
        batch: BatchTable::of(op.batch),
        walk: WalkTable::of(op.walk),
        layers: layers(cuda, op.journals, op.states)?,
        sizes: GdnSizes::of(first.shape),
    };
    let grid = Grid {
        blocks: [op.states.len() as u32, ROW_BLOCKS, 1],
        threads: THREADS,
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/gdn_commit.cu; the table has one entry per layer.
    unsafe { cuda.run(&GDN_COMMIT, grid, params) }
}

/// The table of `struct GdnLayer`. The buffers of a model stay where they are, so the table is made
/// once; another set of buffers gets a table of its own.
fn layers(
    cuda: &Cuda,
    journals: &[GdnJournal<Cuda>],
    states: &[GdnState<Cuda>],
) -> Result<DevicePtr, OpsError> {
    let pointers: Vec<u64> = journals
        .iter()
        .zip(states)
        .flat_map(|(journal, state)| {
            [
                journal.mixed.ptr(),
                journal.qkv.ptr(),
                journal.gate.ptr(),
                journal.scale.ptr(),
                state.conv.ptr(),
                state.pending_kv.ptr(),
                state.pending_gate.ptr(),
                state.pending_scale.ptr(),
            ]
        })
        .map(|pointer| pointer.0)
        .collect();
    cuda.layer_table(pointers)
}

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
/// Layers whose buffers fit the kernel's parameters.
pub(super) const LAYERS_MAX: usize = 60;

/// `struct GdnLayer`.
#[derive(Clone, Copy)]
#[repr(C)]
struct GdnLayer {
    mixed: DevicePtr,
    qkv: DevicePtr,
    gate: DevicePtr,
    scale: DevicePtr,
    conv: DevicePtr,
    pending_kv: DevicePtr,
    pending_gate: DevicePtr,
    pending_scale: DevicePtr,
}

impl GdnLayer {
    const NONE: GdnLayer = GdnLayer {
        mixed: DevicePtr::NULL,
        qkv: DevicePtr::NULL,
        gate: DevicePtr::NULL,
        scale: DevicePtr::NULL,
        conv: DevicePtr::NULL,
        pending_kv: DevicePtr::NULL,
        pending_gate: DevicePtr::NULL,
        pending_scale: DevicePtr::NULL,
    };

    fn of(journal: &GdnJournal<Cuda>, state: &GdnState<Cuda>) -> Self {
        GdnLayer {
            mixed: journal.mixed.ptr(),
            qkv: journal.qkv.ptr(),
            gate: journal.gate.ptr(),
            scale: journal.scale.ptr(),
            conv: state.conv.ptr(),
            pending_kv: state.pending_kv.ptr(),
            pending_gate: state.pending_gate.ptr(),
            pending_scale: state.pending_scale.ptr(),
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GdnCommitParams {
    batch: BatchTable,
    walk: WalkTable,
    sizes: GdnSizes,
    layers: [GdnLayer; LAYERS_MAX],
}

/// # Panics
/// If layers differ in shape or there are more than 60.
pub(super) fn gdn_commit(cuda: &Cuda, op: GdnCommit<'_, Cuda>) -> Result<(), OpsError> {
    let count = op.states.len();
    assert_eq!(op.journals.len(), count, "one journal per GDN layer");
    assert!(
        count <= LAYERS_MAX,
        "{count} GDN layers; CUDA takes {LAYERS_MAX}"
    );
    let Some(first) = op.states.first() else {
        return Ok(());
    };
    let mut layers = [GdnLayer::NONE; LAYERS_MAX];
    for (layer, (journal, state)) in layers.iter_mut().zip(op.journals.iter().zip(&*op.states)) {
        assert_eq!(state.shape, first.shape, "shape of a GDN layer");
        *layer = GdnLayer::of(journal, state);
    }
    let params = GdnCommitParams {
        batch: BatchTable::of(op.batch),
        walk: WalkTable::of(op.walk),
        sizes: GdnSizes::of(first.shape),
        layers,
    };
    let grid = Grid {
        blocks: [count as u32, ROW_BLOCKS, 1],
        threads: THREADS,
        shared: 0,
    };
    // SAFETY: mirrors the struct in kernels/gdn_commit.cu, which has a block in x for each layer;
    // slots and rows of the batch lie within its buffers.
    unsafe { cuda.run(&GDN_COMMIT, grid, params) }
}

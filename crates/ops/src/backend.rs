//! The trait that a device implements: memory and ops.

use crate::{
    AcceptWalk, Advance, Attention, BuildTree, CompactKv, ConvTree, CopyColumns, DraftAttention,
    DraftBlocks, Dtype, Element, Embed, Fill, GatedNorm, GatherRows, GdnCommit, GdnScan, Linear,
    LinearAddNorm, LinearSwiglu, ModelSizes, NormRope, OpsError, Piece, RmsNorm, Sample,
    SimulateAcceptance, StepResult, Storage, TokenLogprobs, TopK, TreeTablesFrom,
};

/// Sizes from which a device derives the scratch memory that its ops share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchNeeds {
    /// Rows of the largest forward over trees, blocks or listed rows.
    pub rows: usize,
    /// Rows of the largest prefill.
    pub prefill_rows: usize,
    /// Sequences of one batch.
    pub sequences: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads of the target.
    pub heads: usize,
    /// Values per head of the target.
    pub head_dim: usize,
    /// Value heads of a GDN layer.
    pub value_heads: usize,
    /// Query heads of the drafter; 0 without one.
    pub draft_heads: usize,
    /// Values per head of the drafter; 0 without one.
    pub draft_head_dim: usize,
    /// Rows of the head.
    pub vocab_rows: usize,
    /// Longest context of one sequence.
    pub context_max: usize,
}

/// Memory of a device, as the system sees it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that can still be allocated.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Memory and ops of one device. Ops are enqueued in call order; [`Backend::download`] waits for
/// what it reads.
#[allow(missing_docs, reason = "each op is documented at its argument struct")]
pub trait Backend: Sized + 'static {
    /// Device memory holding values of type `T`, of fixed length.
    type Buf<T: Element>: 'static;

    /// Activations between products. The residual stream, logits, recurrent state and gates are
    /// f32 everywhere.
    type Act: Element;

    /// A recorded sequence of ops.
    type Graph: 'static;

    /// Host memory that the device reads and writes at full speed, of fixed length.
    type HostBuf<T: Element>: 'static;

    /// Host memory through which weights go to the device.
    type Stages;

    /// Storage of weights and KV where nobody asks for another.
    const DTYPE: Dtype;

    /// The memory is the device's own: what is free is there to be used.
    const OWN_MEMORY: bool;

    /// Tokens of the longest context that its ops take.
    const CONTEXT_MAX: usize;

    /// Device name for people.
    fn name(&self) -> String;

    /// Bytes of all buffers allocated since the backend was opened.
    fn allocated_bytes(&self) -> u64;

    /// A zeroed buffer of `len` values.
    fn alloc<T: Element>(&self, len: usize) -> Result<Self::Buf<T>, OpsError>;

    /// Values a buffer holds.
    fn len<T: Element>(&self, buf: &Self::Buf<T>) -> usize;

    /// Writes `values` from `offset` on.
    ///
    /// # Panics
    /// If they do not fit.
    fn upload<T: Element>(
        &self,
        values: &[T],
        buf: &mut Self::Buf<T>,
        offset: usize,
    ) -> Result<(), OpsError>;

    /// Reads from `offset` on until `values` is full.
    ///
    /// # Panics
    /// If the buffer ends before.
    fn download<T: Element>(
        &self,
        buf: &Self::Buf<T>,
        offset: usize,
        values: &mut [T],
    ) -> Result<(), OpsError>;

    /// Sets `len` values from `offset` on to zero.
    fn zero<T: Element>(
        &self,
        buf: &mut Self::Buf<T>,
        offset: usize,
        len: usize,
    ) -> Result<(), OpsError>;

    /// Enqueues a copy of `len` values from `from` on in `source` to `to` on in `target`.
    ///
    /// # Panics
    /// If one of the buffers ends before.
    fn copy<T: Element>(
        &self,
        source: &Self::Buf<T>,
        from: usize,
        target: &mut Self::Buf<T>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError>;

    /// `len` zeros in host memory, which the system has really given. They are no part of
    /// [`Backend::allocated_bytes`].
    fn alloc_host<T: Element>(&self, len: usize) -> Result<Self::HostBuf<T>, OpsError>;

    /// Copies `len` values from `from` on in `source` to `to` on in `target`; waits until they are
    /// there.
    ///
    /// # Panics
    /// If one of the buffers ends before.
    fn copy_to_host<T: Element>(
        &self,
        source: &Self::Buf<T>,
        from: usize,
        target: &mut Self::HostBuf<T>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError>;

    /// The reverse of [`Backend::copy_to_host`]; waits as well.
    ///
    /// # Panics
    /// If one of the buffers ends before.
    fn copy_from_host<T: Element>(
        &self,
        source: &Self::HostBuf<T>,
        from: usize,
        target: &mut Self::Buf<T>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError>;

    /// Waits for all enqueued ops and reports what went wrong in them.
    fn wait(&self) -> Result<(), OpsError>;

    /// Bytes per second, read and written ones together, of copies of `bytes` bytes within the
    /// device's memory: the ruler for everything that moves memory.
    fn copy_rate(&self, bytes: usize) -> Result<f64, OpsError>;

    /// What the device has and what is free of it; `None` where nobody knows.
    fn memory(&self) -> Result<Option<DeviceMemory>, OpsError>;

    /// Fails with the first size that the device's ops do not take.
    fn check_sizes(&self, sizes: &ModelSizes) -> Result<(), OpsError>;

    /// Memory for [`Backend::load`], of a size that does not depend on the weights.
    fn stages(&self) -> Result<Self::Stages, OpsError>;

    /// Fills `storage` with `pieces`, one behind the other, each converted to the type of the
    /// storage. When it returns, the pieces have been read; ops that are enqueued from then on see
    /// the new values.
    ///
    /// # Panics
    /// If the pieces have another number of values than the storage.
    fn load(
        &self,
        stages: &mut Self::Stages,
        pieces: &[Piece<'_>],
        storage: &mut Storage<Self>,
    ) -> Result<(), OpsError>;

    /// Runs `enqueue` and, where the device can, records the ops that it enqueues instead of
    /// running them. `None`: the device has no graphs, `enqueue` was not called and nothing ran.
    ///
    /// What is recorded are buffers and capacities: [`Backend::launch`] reads whatever the buffers
    /// hold then. `enqueue` must neither upload nor download.
    fn record(
        &self,
        enqueue: &mut dyn FnMut() -> Result<(), OpsError>,
    ) -> Result<Option<Self::Graph>, OpsError>;

    /// Enqueues a recorded sequence. The buffers that it names must still exist.
    fn launch(&self, graph: &Self::Graph) -> Result<(), OpsError>;

    /// Allocates the scratch memory that ops share; called once, before the first op.
    fn reserve(&self, needs: &ScratchNeeds) -> Result<(), OpsError>;

    /// Bytes that [`Backend::reserve`] allocates.
    fn scratch_bytes(&self, needs: &ScratchNeeds) -> u64;

    fn fill(&self, op: Fill<'_, Self>) -> Result<(), OpsError>;
    fn embed(&self, op: Embed<'_, Self>) -> Result<(), OpsError>;
    fn rms_norm(&self, op: RmsNorm<'_, Self>) -> Result<(), OpsError>;
    fn linear(&self, op: Linear<'_, Self>) -> Result<(), OpsError>;
    fn linear_swiglu(&self, op: LinearSwiglu<'_, Self>) -> Result<(), OpsError>;
    fn linear_add_norm(&self, op: LinearAddNorm<'_, Self>) -> Result<(), OpsError>;
    fn gather_rows(&self, op: GatherRows<'_, Self>) -> Result<(), OpsError>;
    fn copy_columns(&self, op: CopyColumns<'_, Self>) -> Result<(), OpsError>;
    fn conv_tree(&self, op: ConvTree<'_, Self>) -> Result<(), OpsError>;
    fn gdn_scan(&self, op: GdnScan<'_, Self>) -> Result<(), OpsError>;
    fn gated_norm(&self, op: GatedNorm<'_, Self>) -> Result<(), OpsError>;
    fn norm_rope(&self, op: NormRope<'_, Self>) -> Result<(), OpsError>;
    fn tree_attention(&self, op: Attention<'_, Self>) -> Result<(), OpsError>;
    fn prefill_attention(&self, op: Attention<'_, Self>) -> Result<(), OpsError>;
    fn draft_attention(&self, op: DraftAttention<'_, Self>) -> Result<(), OpsError>;
    fn draft_blocks(&self, op: DraftBlocks<'_, Self>) -> Result<(), OpsError>;
    fn topk_logprobs(&self, op: TopK<'_, Self>) -> Result<(), OpsError>;
    fn build_tree(&self, op: BuildTree<'_, Self>) -> Result<(), OpsError>;
    fn tree_tables(&self, op: TreeTablesFrom<'_, Self>) -> Result<(), OpsError>;
    fn sample(&self, op: Sample<'_, Self>) -> Result<(), OpsError>;
    fn simulate_acceptance(&self, op: SimulateAcceptance<'_, Self>) -> Result<(), OpsError>;
    fn accept_walk(&self, op: AcceptWalk<'_, Self>) -> Result<(), OpsError>;
    fn compact_kv(&self, op: CompactKv<'_, Self>) -> Result<(), OpsError>;
    fn gdn_commit(&self, op: GdnCommit<'_, Self>) -> Result<(), OpsError>;
    fn advance(&self, op: Advance<'_, Self>) -> Result<(), OpsError>;
    fn token_logprobs(&self, op: TokenLogprobs<'_, Self>) -> Result<(), OpsError>;
    fn step_result(&self, op: StepResult<'_, Self>) -> Result<(), OpsError>;
}

#[cfg(test)]
pub(crate) mod tests;

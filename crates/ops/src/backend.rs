//! The trait that a device implements: memory and ops.

use crate::{
    AcceptWalk, Advance, Attention, BuildTree, CompactKv, ConvTree, CopyColumns, DraftAttention,
    Element, Embed, GatedNorm, GatherRows, GdnCommit, GdnScan, Linear, NormRope, OpsError, RmsNorm,
    Sample, Swiglu, TokenLogprobs, TopK, TreeTablesFrom,
};

/// Memory and ops of one device. Ops are enqueued in call order; [`Backend::download`] waits for
/// what it reads.
#[allow(missing_docs, reason = "each op is documented at its argument struct")]
pub trait Backend: Sized + 'static {
    /// Device memory holding values of type `T`, of fixed length.
    type Buf<T: Element>: 'static;

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

    fn embed(&self, op: Embed<'_, Self>) -> Result<(), OpsError>;
    fn rms_norm(&self, op: RmsNorm<'_, Self>) -> Result<(), OpsError>;
    fn linear(&self, op: Linear<'_, Self>) -> Result<(), OpsError>;
    fn swiglu(&self, op: Swiglu<'_, Self>) -> Result<(), OpsError>;
    fn gather_rows(&self, op: GatherRows<'_, Self>) -> Result<(), OpsError>;
    fn copy_columns(&self, op: CopyColumns<'_, Self>) -> Result<(), OpsError>;
    fn conv_tree(&self, op: ConvTree<'_, Self>) -> Result<(), OpsError>;
    fn gdn_scan(&self, op: GdnScan<'_, Self>) -> Result<(), OpsError>;
    fn gated_norm(&self, op: GatedNorm<'_, Self>) -> Result<(), OpsError>;
    fn norm_rope(&self, op: NormRope<'_, Self>) -> Result<(), OpsError>;
    fn tree_attention(&self, op: Attention<'_, Self>) -> Result<(), OpsError>;
    fn prefill_attention(&self, op: Attention<'_, Self>) -> Result<(), OpsError>;
    fn draft_attention(&self, op: DraftAttention<'_, Self>) -> Result<(), OpsError>;
    fn topk_logprobs(&self, op: TopK<'_, Self>) -> Result<(), OpsError>;
    fn build_tree(&self, op: BuildTree<'_, Self>) -> Result<(), OpsError>;
    fn tree_tables(&self, op: TreeTablesFrom<'_, Self>) -> Result<(), OpsError>;
    fn sample(&self, op: Sample<'_, Self>) -> Result<(), OpsError>;
    fn accept_walk(&self, op: AcceptWalk<'_, Self>) -> Result<(), OpsError>;
    fn compact_kv(&self, op: CompactKv<'_, Self>) -> Result<(), OpsError>;
    fn gdn_commit(&self, op: GdnCommit<'_, Self>) -> Result<(), OpsError>;
    fn advance(&self, op: Advance<'_, Self>) -> Result<(), OpsError>;
    fn token_logprobs(&self, op: TokenLogprobs<'_, Self>) -> Result<(), OpsError>;
}

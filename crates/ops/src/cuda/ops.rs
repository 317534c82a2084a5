//! The ops of the backend, each in a file of its own.

use std::sync::atomic::Ordering;

use half::bf16;

use super::memory::PinnedBuf;
use super::{Cuda, CudaBuf, CudaGraph, Stages};
use crate::*;

macro_rules! ops {
    ($($name:ident: $args:ident => $function:path;)*) => {
        $(fn $name(&self, op: $args<'_, Self>) -> Result<(), OpsError> {
            $function(self, op)
        })*
    };
}

impl Backend for Cuda {
    type Buf<T: Element> = CudaBuf<T>;
    type Act = bf16;
    type Graph = CudaGraph;
    type HostBuf<T: Element> = PinnedBuf<T>;
    type Stages = Stages;

    const DTYPE: Dtype = Dtype::Bf16;
    const OWN_MEMORY: bool = true;
    const CONTEXT_MAX: usize = super::splits::CONTEXT_MAX;

    fn name(&self) -> String {
        self.device_name()
    }

    fn allocated_bytes(&self) -> u64 {
        self.device.allocated_bytes.load(Ordering::Relaxed)
    }

    fn alloc<T: Element>(&self, len: usize) -> Result<CudaBuf<T>, OpsError> {
        CudaBuf::zeroed(&self.device, len)
    }

    fn len<T: Element>(&self, buf: &CudaBuf<T>) -> usize {
        buf.len()
    }

    fn upload<T: Element>(
        &self,
        values: &[T],
        buf: &mut CudaBuf<T>,
        offset: usize,
    ) -> Result<(), OpsError> {
        self.copy_in(values, buf, offset)
    }

    fn download<T: Element>(
        &self,
        buf: &CudaBuf<T>,
        offset: usize,
        values: &mut [T],
    ) -> Result<(), OpsError> {
        self.copy_out(buf, offset, values)
    }

    fn zero<T: Element>(
        &self,
        buf: &mut CudaBuf<T>,
        offset: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        self.fill_zero(buf, offset, len)
    }

    fn copy<T: Element>(
        &self,
        source: &CudaBuf<T>,
        from: usize,
        target: &mut CudaBuf<T>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        self.copy_within_device(source, from, target, to, len)
    }

    fn alloc_host<T: Element>(&self, len: usize) -> Result<PinnedBuf<T>, OpsError> {
        PinnedBuf::zeroed(&self.device, len)
    }

    fn copy_to_host<T: Element>(
        &self,
        source: &CudaBuf<T>,
        from: usize,
        target: &mut PinnedBuf<T>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        self.read_pinned(source, from, &mut target.values_mut()[to..to + len])
    }

    fn copy_from_host<T: Element>(
        &self,
        source: &PinnedBuf<T>,
        from: usize,
        target: &mut CudaBuf<T>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        self.copy_in(&source.values()[from..from + len], target, to)?;
        // The driver reads page-locked memory when it gets there.
        self.synchronize()
    }

    fn wait(&self) -> Result<(), OpsError> {
        self.synchronize()
    }

    fn copy_rate(&self, bytes: usize) -> Result<f64, OpsError> {
        self.measured_copy_rate(bytes)
    }

    fn memory(&self) -> Result<Option<DeviceMemory>, OpsError> {
        let (free, total) = self.memory_info()?;
        Ok(Some(DeviceMemory { free, total }))
    }

    fn check_sizes(&self, sizes: &ModelSizes) -> Result<(), OpsError> {
        self.refuse_sizes(sizes)
    }

    fn stages(&self) -> Result<Stages, OpsError> {
        self.new_stages()
    }

    fn load(
        &self,
        stages: &mut Stages,
        pieces: &[Piece<'_>],
        storage: &mut Storage<Self>,
    ) -> Result<(), OpsError> {
        self.load_pieces(stages, pieces, storage)
    }

    fn record(
        &self,
        enqueue: &mut dyn FnMut() -> Result<(), OpsError>,
    ) -> Result<Option<CudaGraph>, OpsError> {
        self.capture(enqueue).map(Some)
    }

    fn launch(&self, graph: &CudaGraph) -> Result<(), OpsError> {
        self.replay(graph)
    }

    fn reserve(&self, needs: &ScratchNeeds) -> Result<(), OpsError> {
        self.reserve_bytes(super::scratch::bytes(self, needs))
    }

    fn scratch_bytes(&self, needs: &ScratchNeeds) -> u64 {
        super::scratch::bytes(self, needs) as u64
    }

    ops! {
        fill: Fill => super::fill::fill;
        embed: Embed => super::embed::embed;
        rms_norm: RmsNorm => super::rms_norm::rms_norm;
        linear: Linear => super::linear::linear;
        linear_swiglu: LinearSwiglu => super::linear_swiglu::linear_swiglu;
        linear_add_norm: LinearAddNorm => super::linear_add_norm::linear_add_norm;
        gather_rows: GatherRows => super::rows::gather_rows;
        copy_columns: CopyColumns => super::rows::copy_columns;
        conv_tree: ConvTree => super::conv_tree::conv_tree;
        gdn_scan: GdnScan => super::gdn_scan::gdn_scan;
        gated_norm: GatedNorm => super::gated_norm::gated_norm;
        norm_rope: NormRope => super::norm_rope::norm_rope;
        tree_attention: Attention => super::tree_attention::tree_attention;
        prefill_attention: Attention => super::prefill_attention::prefill_attention;
        draft_attention: DraftAttention => super::draft_attention::draft_attention;
        draft_blocks: DraftBlocks => super::draft_blocks::draft_blocks;
        topk_logprobs: TopK => super::topk::topk_logprobs;
        build_tree: BuildTree => super::build_tree::build_tree;
        tree_tables: TreeTablesFrom => super::tree_tables::tree_tables;
        sample: Sample => super::sample::sample;
        simulate_acceptance: SimulateAcceptance => super::simulate_acceptance::simulate_acceptance;
        accept_walk: AcceptWalk => super::accept_walk::accept_walk;
        compact_kv: CompactKv => super::compact_kv::compact_kv;
        gdn_commit: GdnCommit => super::gdn_commit::gdn_commit;
        advance: Advance => super::advance::advance;
        token_logprobs: TokenLogprobs => super::token_logprobs::token_logprobs;
        step_result: StepResult => super::step_result::step_result;
    }
}

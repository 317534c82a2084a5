//! The CPU backend: every op as its readable reference, in f32, with a fixed order of summation.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::host_memory::host_memory;
use crate::pieces::load_cpu;
use crate::{
    AcceptWalk, Advance, Attention, Backend, BuildTree, CompactKv, ConvTree, CopyColumns,
    DeviceMemory, DraftAttention, DraftBlocks, Dtype, Element, Embed, Fill, GatedNorm, GatherRows,
    GdnCommit, GdnScan, Linear, LinearAddNorm, LinearSwiglu, ModelSizes, NormRope, OpsError, Piece,
    RmsNorm, Sample, ScratchNeeds, SimulateAcceptance, StepResult, Storage, TokenLogprobs, TopK,
    TreeTablesFrom,
};

/// Host memory and the calling thread, with the rayon pool for large ops. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    allocated_bytes: Arc<AtomicU64>,
    uploads: Arc<AtomicU64>,
    downloads: Arc<AtomicU64>,
}

impl Cpu {
    /// Calls to [`Backend::upload`] and [`Backend::zero`] so far, and to [`Backend::download`]:
    /// what would keep a sequence of ops from being recorded, or make the host wait.
    pub fn transfers(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.uploads), count(&self.downloads))
    }
}

fn zeros<T: Element>(len: usize) -> Result<Box<[T]>, OpsError> {
    bytemuck::allocation::try_zeroed_slice_box(len).map_err(|()| OpsError::OutOfMemory {
        bytes: len.saturating_mul(size_of::<T>()),
        reason: "the system refused".to_owned(),
    })
}

macro_rules! ops {
    ($($name:ident: $args:ident => $function:path;)*) => {
        $(fn $name(&self, op: $args<'_, Self>) -> Result<(), OpsError> {
            $function(op);
            Ok(())
        })*
    };
}

impl Backend for Cpu {
    type Buf<T: Element> = Box<[T]>;
    type Act = f32;
    type Graph = Infallible;
    type HostBuf<T: Element> = Box<[T]>;
    type Stages = ();

    const DTYPE: Dtype = Dtype::F32;
    const OWN_MEMORY: bool = false;
    const CONTEXT_MAX: usize = usize::MAX;

    fn name(&self) -> String {
        "cpu".into()
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }

    fn alloc<T: Element>(&self, len: usize) -> Result<Box<[T]>, OpsError> {
        // Zero pages of the system: a pool takes memory as it is used.
        let values = zeros(len)?;
        self.allocated_bytes
            .fetch_add(size_of_val(&*values) as u64, Ordering::Relaxed);
        Ok(values)
    }

    fn len<T: Element>(&self, buf: &Box<[T]>) -> usize {
        buf.len()
    }

    fn upload<T: Element>(
        &self,
        values: &[T],
        buf: &mut Box<[T]>,
        offset: usize,
    ) -> Result<(), OpsError> {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        buf[offset..offset + values.len()].copy_from_slice(values);
        Ok(())
    }

    fn download<T: Element>(
        &self,
        buf: &Box<[T]>,
        offset: usize,
        values: &mut [T],
    ) -> Result<(), OpsError> {
        self.downloads.fetch_add(1, Ordering::Relaxed);
        values.copy_from_slice(&buf[offset..offset + values.len()]);
        Ok(())
    }

    fn zero<T: Element>(
        &self,
        buf: &mut Box<[T]>,
        offset: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        buf[offset..offset + len].fill(T::zeroed());
        Ok(())
    }

    fn copy<T: Element>(
        &self,
        source: &Box<[T]>,
        from: usize,
        target: &mut Box<[T]>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        target[to..to + len].copy_from_slice(&source[from..from + len]);
        Ok(())
    }

    fn alloc_host<T: Element>(&self, len: usize) -> Result<Box<[T]>, OpsError> {
        let mut values = zeros(len)?;
        // The system gives a page when it is written.
        std::hint::black_box(&mut values).fill(T::zeroed());
        Ok(values)
    }

    fn copy_to_host<T: Element>(
        &self,
        source: &Box<[T]>,
        from: usize,
        target: &mut Box<[T]>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        self.copy(source, from, target, to, len)
    }

    fn copy_from_host<T: Element>(
        &self,
        source: &Box<[T]>,
        from: usize,
        target: &mut Box<[T]>,
        to: usize,
        len: usize,
    ) -> Result<(), OpsError> {
        self.copy(source, from, target, to, len)
    }

    fn wait(&self) -> Result<(), OpsError> {
        Ok(())
    }

    fn copy_rate(&self, bytes: usize) -> Result<f64, OpsError> {
        let from: Box<[u8]> = vec![1; bytes].into();
        let mut to: Box<[u8]> = self.alloc(bytes)?;
        to.copy_from_slice(&from);
        let began = std::time::Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        Ok(2.0 * bytes as f64 / began.elapsed().as_secs_f64())
    }

    fn memory(&self) -> Result<Option<DeviceMemory>, OpsError> {
        Ok(host_memory())
    }

    fn check_sizes(&self, _: &ModelSizes) -> Result<(), OpsError> {
        Ok(())
    }

    fn stages(&self) -> Result<(), OpsError> {
        Ok(())
    }

    fn load(
        &self,
        (): &mut (),
        pieces: &[Piece<'_>],
        storage: &mut Storage<Cpu>,
    ) -> Result<(), OpsError> {
        load_cpu(pieces, storage)
    }

    fn record(
        &self,
        _enqueue: &mut dyn FnMut() -> Result<(), OpsError>,
    ) -> Result<Option<Infallible>, OpsError> {
        Ok(None)
    }

    fn launch(&self, graph: &Infallible) -> Result<(), OpsError> {
        match *graph {}
    }

    fn reserve(&self, _needs: &ScratchNeeds) -> Result<(), OpsError> {
        Ok(())
    }

    fn scratch_bytes(&self, _needs: &ScratchNeeds) -> u64 {
        0
    }

    ops! {
        fill: Fill => crate::fill::cpu;
        embed: Embed => crate::embed::cpu;
        rms_norm: RmsNorm => crate::rms_norm::cpu;
        linear: Linear => crate::linear::cpu;
        linear_swiglu: LinearSwiglu => crate::linear_swiglu::cpu;
        linear_add_norm: LinearAddNorm => crate::linear_add_norm::cpu;
        gather_rows: GatherRows => crate::rows::gather_cpu;
        copy_columns: CopyColumns => crate::rows::copy_columns_cpu;
        conv_tree: ConvTree => crate::conv_tree::cpu;
        gdn_scan: GdnScan => crate::gdn::cpu;
        gated_norm: GatedNorm => crate::gated_norm::cpu;
        norm_rope: NormRope => crate::norm_rope::cpu;
        tree_attention: Attention => crate::attention::tree_cpu;
        prefill_attention: Attention => crate::attention::prefill_cpu;
        draft_attention: DraftAttention => crate::draft_attention::cpu;
        draft_blocks: DraftBlocks => crate::draft_blocks::cpu;
        topk_logprobs: TopK => crate::topk::cpu;
        build_tree: BuildTree => crate::draft_tree::cpu;
        tree_tables: TreeTablesFrom => crate::tree_tables::cpu;
        sample: Sample => crate::sample::cpu;
        simulate_acceptance: SimulateAcceptance => crate::simulate_acceptance::cpu;
        accept_walk: AcceptWalk => crate::accept_walk::cpu;
        compact_kv: CompactKv => crate::commit::compact_kv_cpu;
        gdn_commit: GdnCommit => crate::commit::gdn_cpu;
        advance: Advance => crate::advance::cpu;
        token_logprobs: TokenLogprobs => crate::logprobs::cpu;
        step_result: StepResult => crate::step_result::cpu;
    }
}

//! The CUDA device of builds without the `cuda` feature: it exists so that callers need no `cfg`,
//! and says why it cannot be opened.

use half::bf16;

use crate::*;

/// An opened GPU; uninhabited in builds without CUDA.
#[derive(Clone, Debug)]
pub enum Cuda {}

impl Cuda {
    /// Opens GPU `ordinal`.
    pub fn open(_ordinal: usize) -> Result<Self, OpsError> {
        Err(OpsError::Absent(
            "this build has no CUDA backend; use --device cpu or a build with the cuda feature"
                .into(),
        ))
    }
}

macro_rules! ops {
    ($($name:ident: $args:ident;)*) => {
        $(fn $name(&self, _: $args<'_, Self>) -> Result<(), OpsError> {
            match *self {}
        })*
    };
}

impl Backend for Cuda {
    type Buf<T: Element> = Box<[T]>;
    type Act = bf16;
    type Graph = std::convert::Infallible;
    type HostBuf<T: Element> = Box<[T]>;
    type Stages = std::convert::Infallible;

    const DTYPE: Dtype = Dtype::Bf16;
    const OWN_MEMORY: bool = true;
    const CONTEXT_MAX: usize = usize::MAX;

    fn name(&self) -> String {
        match *self {}
    }

    fn allocated_bytes(&self) -> u64 {
        match *self {}
    }

    fn alloc<T: Element>(&self, _: usize) -> Result<Box<[T]>, OpsError> {
        match *self {}
    }

    fn len<T: Element>(&self, _: &Box<[T]>) -> usize {
        match *self {}
    }

    fn upload<T: Element>(&self, _: &[T], _: &mut Box<[T]>, _: usize) -> Result<(), OpsError> {
        match *self {}
    }

    fn download<T: Element>(&self, _: &Box<[T]>, _: usize, _: &mut [T]) -> Result<(), OpsError> {
        match *self {}
    }

    fn zero<T: Element>(&self, _: &mut Box<[T]>, _: usize, _: usize) -> Result<(), OpsError> {
        match *self {}
    }

    fn copy<T: Element>(
        &self,
        _: &Box<[T]>,
        _: usize,
        _: &mut Box<[T]>,
        _: usize,
        _: usize,
    ) -> Result<(), OpsError> {
        match *self {}
    }

    fn alloc_host<T: Element>(&self, _: usize) -> Result<Box<[T]>, OpsError> {
        match *self {}
    }

    fn copy_to_host<T: Element>(
        &self,
        _: &Box<[T]>,
        _: usize,
        _: &mut Box<[T]>,
        _: usize,
        _: usize,
    ) -> Result<(), OpsError> {
        match *self {}
    }

    fn copy_from_host<T: Element>(
        &self,
        _: &Box<[T]>,
        _: usize,
        _: &mut Box<[T]>,
        _: usize,
        _: usize,
    ) -> Result<(), OpsError> {
        match *self {}
    }

    fn wait(&self) -> Result<(), OpsError> {
        match *self {}
    }

    fn copy_rate(&self, _: usize) -> Result<f64, OpsError> {
        match *self {}
    }

    fn memory(&self) -> Result<Option<DeviceMemory>, OpsError> {
        match *self {}
    }

    fn check_sizes(&self, _: &ModelSizes) -> Result<(), OpsError> {
        match *self {}
    }

    fn stages(&self) -> Result<Self::Stages, OpsError> {
        match *self {}
    }

    fn load(
        &self,
        _: &mut Self::Stages,
        _: &[Piece<'_>],
        _: &mut Storage<Self>,
    ) -> Result<(), OpsError> {
        match *self {}
    }

    fn record(
        &self,
        _: &mut dyn FnMut() -> Result<(), OpsError>,
    ) -> Result<Option<Self::Graph>, OpsError> {
        match *self {}
    }

    fn launch(&self, _: &Self::Graph) -> Result<(), OpsError> {
        match *self {}
    }

    fn reserve(&self, _: &ScratchNeeds) -> Result<(), OpsError> {
        match *self {}
    }

    fn scratch_bytes(&self, _: &ScratchNeeds) -> u64 {
        match *self {}
    }

    ops! {
        fill: Fill;
        embed: Embed;
        rms_norm: RmsNorm;
        linear: Linear;
        linear_swiglu: LinearSwiglu;
        linear_add_norm: LinearAddNorm;
        gather_rows: GatherRows;
        copy_columns: CopyColumns;
        conv_tree: ConvTree;
        gdn_scan: GdnScan;
        gated_norm: GatedNorm;
        norm_rope: NormRope;
        tree_attention: Attention;
        prefill_attention: Attention;
        draft_attention: DraftAttention;
        draft_blocks: DraftBlocks;
        topk_logprobs: TopK;
        build_tree: BuildTree;
        tree_tables: TreeTablesFrom;
        sample: Sample;
        simulate_acceptance: SimulateAcceptance;
        accept_walk: AcceptWalk;
        compact_kv: CompactKv;
        gdn_commit: GdnCommit;
        advance: Advance;
        token_logprobs: TokenLogprobs;
        step_result: StepResult;
    }
}

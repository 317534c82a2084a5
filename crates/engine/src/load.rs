//! Starting an engine: what to load, with which limits.

use std::time::Duration;

use model::{
    AcceptanceLaw, CheckpointSource, Dtype, LoadFormat, LoadProgress, MemoryPlan, ModelError,
};
use ops::{DeviceMemory, OpsError};

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The GPU if there is one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
}

/// How drafts are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// No drafts.
    None,
    /// A chain.
    Dflash,
    /// A tree.
    Ddtree,
}

/// Nodes of a draft tree, root not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Chosen per step from start-up timings and running acceptance.
    Auto,
    /// Always this many, 1 to 63.
    Fixed(usize),
}

/// What to load.
#[derive(Clone, Debug)]
pub struct LoadSpec {
    /// The target.
    pub target: CheckpointSource,
    /// The drafter; needed unless the algorithm is `None`.
    pub drafter: Option<CheckpointSource>,
    /// Where their weights come from.
    pub format: LoadFormat,
    /// Where to run.
    pub device: Device,
    /// Storage of weights and KV; `None` = the device's own choice (CPU: f32, GPU: bf16).
    pub dtype: Option<Dtype>,
    /// Ids `0..vocab_used` name tokens.
    pub vocab_used: usize,
    /// Record steps and launch them as a whole, where the device can; off = enqueue op by op.
    pub graphs: bool,
}

/// Limits and modes.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Chain, tree or none.
    pub algorithm: Algorithm,
    /// Drafts of a chain (block size less one); `None` = the drafter's block.
    pub chain_drafts: Option<usize>,
    /// Nodes of a tree.
    pub budget: Budget,
    /// Candidates per depth, 1 to 15; `None` = 8 up to budget 31, else 15.
    pub topk_cap: Option<usize>,
    /// Sequences at once.
    pub running_max: usize,
    /// Requests waiting at most; 0 = no limit.
    pub queue_max: usize,
    /// Longest prompt and output; `None` = the model's, lowered to what the pool holds.
    pub context_length: Option<usize>,
    /// Tokens the KV pool holds; `None` = context length times sequences, on the CPU at most
    /// 65,536 (or one sequence of a longer `context_length`), on a GPU what its memory holds.
    pub tokens_total: Option<usize>,
    /// Share of a GPU's memory that weights, KV pool and everything else may take, above 0 and at
    /// most 1.
    pub memory_fraction: f64,
    /// Tokens of one prefill call: 64, 128, 256, 512, 1,024 or 2,048 (chunks start at its
    /// multiples).
    pub prefill_chunk: usize,
    /// Draft no more when more than this many sequences run; 0 = always draft.
    pub draft_batch_max: usize,
    /// Where several sequences draft, their rows go to the likeliest drafts of all of them; budgets
    /// then are averages.
    pub share_rows: bool,
    /// Skip warm-up and the timing table (`auto` then means budget 15).
    pub skip_warmup: bool,
    /// What is kept of prompts for those that begin alike; `None` = nothing.
    pub prefix_cache: Option<PrefixCacheConfig>,
    /// Draw acceptance from a law instead of the model; for benchmarks only.
    pub simulate: Option<AcceptanceLaw>,
}

/// What is kept of finished prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCacheConfig {
    /// A state is kept every so many tokens of a prompt, a positive multiple of 64, beside those at
    /// the ends of turns.
    pub interval: usize,
    /// States that the device holds; `None` = 32 on a GPU and 16 on the CPU, but no more than a
    /// tenth of the memory that the weights leave; 0 = no prefix cache.
    pub snapshots: Option<usize>,
    /// States that host memory holds beside them.
    pub host_snapshots: usize,
    /// Keep states that decoding made, too. What goes on from such a state need not equal, bit by
    /// bit, what would follow without the cache.
    pub decoded: bool,
}

impl Default for PrefixCacheConfig {
    fn default() -> Self {
        PrefixCacheConfig {
            interval: 4096,
            snapshots: None,
            host_snapshots: 0,
            decoded: false,
        }
    }
}

/// Facts about a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// `model_type` of the config.
    pub model_type: String,
    /// `architectures` of the config.
    pub architectures: Vec<String>,
    /// Rows of the head.
    pub vocab_rows: usize,
    /// Ids that name tokens.
    pub vocab_used: usize,
    /// Longest prompt and output.
    pub context_length: usize,
    /// Tokens the KV pool holds.
    pub tokens_total: usize,
    /// Device in use.
    pub device: String,
    /// What is allocated.
    pub plan: MemoryPlan,
    /// The device's memory before that; `None` = not known.
    pub memory: Option<DeviceMemory>,
    /// Bytes of it that the plan may take: what is free, on a GPU less what
    /// [`EngineConfig::memory_fraction`] leaves to others.
    pub room: Option<u64>,
    /// In effect.
    pub algorithm: Algorithm,
    /// In effect.
    pub budget: Budget,
    /// In effect.
    pub topk: usize,
    /// In effect, for chains.
    pub chain_drafts: usize,
    /// Rows of one sequence in a step at most: 1 + drafts.
    pub tree_rows_max: usize,
}

/// Where the engine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading configurations.
    Init,
    /// Fetching files that are not here yet.
    Download,
    /// Loading weights.
    Weights,
    /// First forwards and timings.
    Warmup,
    /// Taking requests.
    Ready,
    /// Finishing what was taken.
    Draining,
    /// Dead; [`Status::error`] says why.
    Failed,
    /// Ended on request.
    Stopped,
}

/// Loading progress and health.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Where it is.
    pub phase: Phase,
    /// Since it is there.
    pub phase_age: Duration,
    /// The phases before it and how long each took.
    pub phase_times: Vec<(Phase, Duration)>,
    /// Bytes of weights loaded; while it downloads, bytes downloaded.
    pub bytes_done: u64,
    /// Bytes to load or to download in all; 0 = not known yet.
    pub bytes_total: u64,
    /// Since the last sign of life of the engine thread.
    pub heartbeat_age: Duration,
    /// Why it failed.
    pub error: Option<String>,
    /// Whose fault that is.
    pub cause: Option<FailureCause>,
    /// Start-up timings: shape name and milliseconds of one step of one sequence; names that end
    /// in ` x4` are steps of four sequences.
    pub step_times_ms: Vec<(String, f64)>,
}

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// Files of the model are missing, damaged or do not fit together.
    Files,
    /// Files could not be fetched; another try may help.
    Network,
    /// The device, or too little memory on it.
    Device,
    /// The engine's own.
    Engine,
}

impl From<&ModelError> for FailureCause {
    fn from(error: &ModelError) -> Self {
        match error {
            ModelError::Unreachable(_) => FailureCause::Network,
            ModelError::Ops(OpsError::Map { .. } | OpsError::Read { .. }) => FailureCause::Files,
            ModelError::Ops(_) => FailureCause::Device,
            _ => FailureCause::Files,
        }
    }
}

/// Work that comes before loading, on the engine thread: fetching files.
pub type Fetch = Box<dyn FnOnce(&LoadProgress) -> Result<(), ModelError> + Send>;

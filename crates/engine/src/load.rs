//! Starting an engine: what to load, with which limits.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use model::{
    CheckReport, CheckpointSource, DrafterConfig, Dtype, LoadFormat, LoadProgress, MemoryPlan,
    ModelConfig, ModelError, ModelSources, Runner,
};
use ops::{Cpu, Cuda};

use crate::settings::{self, Settings};
use crate::shared::Shared;
use crate::step_runner::StepRunner;
use crate::{EngineError, EngineHandle, StepOutput, step_loop};

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
    /// Storage of weights and KV; `None` = the device's own choice (CPU: f32).
    pub dtype: Option<Dtype>,
    /// Ids `0..vocab_used` name tokens.
    pub vocab_used: usize,
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
    /// 65,536 (or one sequence of a longer `context_length`).
    pub tokens_total: Option<usize>,
    /// Tokens of one prefill call: 64, 128, 256, 512, 1,024 or 2,048 (chunks start at its
    /// multiples).
    pub prefill_chunk: usize,
    /// Draft no more when more than this many sequences run; 0 = always draft.
    pub draft_batch_max: usize,
    /// Skip warm-up and the timing table (`auto` then means budget 15).
    pub skip_warmup: bool,
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
    /// In effect.
    pub algorithm: Algorithm,
    /// In effect.
    pub budget: Budget,
    /// In effect.
    pub topk: usize,
    /// In effect, for chains.
    pub chain_drafts: usize,
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
            ModelError::Ops(_) => FailureCause::Device,
            _ => FailureCause::Files,
        }
    }
}

/// Work that comes before loading, on the engine thread: fetching files.
pub type Fetch = Box<dyn FnOnce(&LoadProgress) -> Result<(), ModelError> + Send>;

/// What `spinney check` prints.
#[derive(Clone, Debug)]
pub struct CheckOutput {
    /// The target's tensors.
    pub target: CheckReport,
    /// The drafter's.
    pub drafter: Option<CheckReport>,
    /// What a server with this configuration would allocate.
    pub info: ModelInfo,
}

/// The engine thread.
#[derive(Debug)]
pub struct Engine {
    /// Commands and counters.
    pub handle: EngineHandle,
    /// One message per step; closed when the thread ends.
    pub outputs: Receiver<StepOutput>,
}

impl Engine {
    /// Reads the configurations (errors come back at once), then loads and warms up on the engine
    /// thread; [`EngineHandle::status`] tells when it is ready or has failed.
    pub fn start(spec: LoadSpec, config: EngineConfig) -> Result<Engine, EngineError> {
        Engine::start_after(None, spec, config)
    }

    /// [`Engine::start`] of a model whose weights `fetch` brings first.
    pub fn start_after(
        fetch: Option<Fetch>,
        spec: LoadSpec,
        config: EngineConfig,
    ) -> Result<Engine, EngineError> {
        let place = Place::of(spec.device)?;
        let (settings, info) = settings_of(&spec, &config, place)?;
        let runner_config = settings.runner.clone();
        let sources = ModelSources {
            target: spec.target.clone(),
            drafter: drafter_of(&spec, &config).cloned(),
            format: spec.format,
        };
        let prepare = move |shared: &Shared| {
            if let Some(fetch) = fetch {
                shared.enter(Phase::Download);
                fetch(&shared.download)?;
                shared.enter(Phase::Weights);
            }
            Ok::<(), ModelError>(())
        };
        match place {
            Place::Cpu => Engine::spawn(settings, info, move |shared| {
                prepare(shared)?;
                Runner::load(Cpu::default(), &sources, runner_config, &shared.progress)
            }),
            // A device belongs to the thread that uses it.
            Place::Cuda(ordinal) => Engine::spawn(settings, info, move |shared| {
                prepare(shared)?;
                let cuda = Cuda::open(ordinal)?;
                Runner::load(cuda, &sources, runner_config, &shared.progress)
            }),
        }
    }

    /// Starts the thread around whatever `load` makes there.
    pub(crate) fn spawn<R: StepRunner>(
        settings: Settings,
        info: ModelInfo,
        load: impl FnOnce(&Shared) -> Result<R, ModelError> + Send + 'static,
    ) -> Result<Engine, EngineError> {
        let runner = &settings.runner;
        let shared = Arc::new(Shared::new(
            info,
            settings.queue_max,
            runner.kv_pages,
            runner.sequences_max,
        ));
        let (commands, received) = mpsc::channel();
        let (sender, outputs) = mpsc::channel();
        let handle = EngineHandle::new(Arc::clone(&shared), commands);
        std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || step_loop::run(settings, shared, received, sender, load))
            .map_err(|error| EngineError::Stopped(format!("no thread for it: {error}")))?;
        Ok(Engine { handle, outputs })
    }
}

/// Verifies every tensor and computes the plan, without starting anything.
pub fn check(spec: &LoadSpec, config: &EngineConfig) -> Result<CheckOutput, EngineError> {
    let (_, info) = settings_of(spec, config, Place::of(spec.device)?)?;
    let (target, drafter) = model::check(&spec.target, drafter_of(spec, config))?;
    Ok(CheckOutput {
        target,
        drafter,
        info,
    })
}

/// The drafter, where the algorithm has a use for it.
pub(crate) fn drafter_of<'a>(
    spec: &'a LoadSpec,
    config: &EngineConfig,
) -> Option<&'a CheckpointSource> {
    spec.drafter
        .as_ref()
        .filter(|_| config.algorithm != Algorithm::None)
}

/// A device that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
}

impl Place {
    pub(crate) fn of(device: Device) -> Result<Self, EngineError> {
        match device {
            Device::Cpu => Ok(Place::Cpu),
            Device::Cuda(ordinal) => {
                Cuda::open(ordinal).map_err(ModelError::Ops)?;
                Ok(Place::Cuda(ordinal))
            }
            Device::Auto => match Cuda::open(0) {
                Ok(_) => Ok(Place::Cuda(0)),
                Err(error) => {
                    tracing::info!(reason = %error, "using the CPU");
                    Ok(Place::Cpu)
                }
            },
        }
    }
}

pub(crate) fn settings_of(
    spec: &LoadSpec,
    config: &EngineConfig,
    place: Place,
) -> Result<(Settings, ModelInfo), EngineError> {
    let target = ModelConfig::read(&spec.target)?;
    let drafter = drafter_of(spec, config)
        .map(|source| DrafterConfig::read(source, &target))
        .transpose()?;
    match place {
        Place::Cpu => settings::resolve(spec, config, &target, drafter.as_ref(), &Cpu::default()),
        Place::Cuda(ordinal) => {
            let dtype = spec.dtype.unwrap_or(Dtype::Bf16);
            if dtype != Dtype::Bf16 {
                return Err(EngineError::Config(format!(
                    "weights and KV as {dtype:?} on a GPU; it takes bf16 only: leave --dtype out, \
                     or use --device cpu"
                )));
            }
            let spec = LoadSpec {
                dtype: Some(dtype),
                ..spec.clone()
            };
            let cuda = Cuda::open(ordinal).map_err(ModelError::Ops)?;
            settings::resolve(&spec, config, &target, drafter.as_ref(), &cuda)
        }
    }
}

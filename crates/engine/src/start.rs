//! From a specification to an engine thread: choosing the device, loading, the loop.

use std::sync::Arc;
use std::sync::mpsc;

use model::{
    CheckReport, CheckpointSource, DrafterConfig, ModelConfig, ModelError, ModelSources, Runner,
};
use ops::{Backend, Cpu, Cuda, OpsError};

use crate::handle::Command;
use crate::settings::{self, Settings};
use crate::shared::Shared;
use crate::step_runner::StepRunner;
use crate::{
    Algorithm, Device, EngineConfig, EngineError, EngineHandle, Fetch, LoadFormat, LoadSpec,
    ModelInfo, Phase, StepOutput, step_loop,
};

/// What `spinney check` prints.
#[derive(Clone, Debug)]
pub struct CheckOutput {
    /// The target's tensors; `None` = dummies.
    pub target: Option<CheckReport>,
    /// The drafter's.
    pub drafter: Option<CheckReport>,
    /// What a server with this configuration would allocate.
    pub info: ModelInfo,
}

/// Where the messages of an engine come: for threads (`recv`) and for tasks (`recv_async`).
pub type StepOutputs = flume::Receiver<StepOutput>;

/// The engine thread.
#[derive(Debug)]
pub struct Engine {
    /// Commands and counters.
    pub handle: EngineHandle,
    /// One message per step; closed when the thread ends.
    pub outputs: StepOutputs,
}

/// Both ends of what goes between a thread and its users.
struct Channels {
    commands: mpsc::Sender<Command>,
    received: mpsc::Receiver<Command>,
    sender: flume::Sender<StepOutput>,
    outputs: StepOutputs,
}

impl Channels {
    fn new() -> Self {
        let (commands, received) = mpsc::channel();
        let (sender, outputs) = flume::unbounded();
        Channels {
            commands,
            received,
            sender,
            outputs,
        }
    }
}

fn thread(work: impl FnOnce() + Send + 'static) -> Result<(), EngineError> {
    std::thread::Builder::new()
        .name("engine".into())
        .spawn(work)
        .map(drop)
        .map_err(|error| EngineError::Stopped(format!("no thread for it: {error}")))
}

impl Engine {
    /// Opens the device and reads the configurations (errors come back at once), then loads and
    /// warms up on the engine thread; [`EngineHandle::status`] tells when it is ready or has failed.
    pub fn start(spec: LoadSpec, config: EngineConfig) -> Result<Engine, EngineError> {
        Engine::start_after(None, spec, config)
    }

    /// [`Engine::start`] of a model whose weights `fetch` brings first.
    pub fn start_after(
        fetch: Option<Fetch>,
        spec: LoadSpec,
        config: EngineConfig,
    ) -> Result<Engine, EngineError> {
        let Channels {
            commands,
            received,
            sender,
            outputs,
        } = Channels::new();
        let (answer, answered) = mpsc::channel();
        // A device belongs to the thread that uses it.
        thread(move || {
            let start = Start {
                fetch,
                spec,
                config,
                received,
                sender,
                answer,
            };
            start.run();
        })?;
        let shared: Arc<Shared> = answered.recv().unwrap_or_else(|_| {
            let reason = "its thread ended while it opened the device";
            Err(EngineError::Stopped(reason.to_owned()))
        })?;
        let handle = EngineHandle::new(shared, commands);
        Ok(Engine { handle, outputs })
    }

    /// Starts the thread around whatever `load` makes there.
    pub(crate) fn spawn<R: StepRunner>(
        settings: Settings,
        info: ModelInfo,
        load: impl FnOnce(&Shared) -> Result<R, ModelError> + Send + 'static,
    ) -> Result<Engine, EngineError> {
        let channels = Channels::new();
        let shared = shared(&settings, info);
        let handle = EngineHandle::new(Arc::clone(&shared), channels.commands);
        let (received, sender) = (channels.received, channels.sender);
        thread(move || step_loop::run(settings, shared, received, sender, load))?;
        let outputs = channels.outputs;
        Ok(Engine { handle, outputs })
    }
}

fn shared(settings: &Settings, info: ModelInfo) -> Arc<Shared> {
    let runner = &settings.runner;
    Arc::new(Shared::new(
        info,
        settings.queue_max,
        runner.kv_pages,
        runner.sequences_max,
    ))
}

/// Everything the thread begins with.
struct Start {
    fetch: Option<Fetch>,
    spec: LoadSpec,
    config: EngineConfig,
    received: mpsc::Receiver<Command>,
    sender: flume::Sender<StepOutput>,
    answer: mpsc::Sender<Result<Arc<Shared>, EngineError>>,
}

impl Start {
    fn run(self) {
        let opened = Configurations::read(&self.spec, &self.config).and_then(|configurations| {
            let place = Place::of(&self.spec, &configurations)?;
            Ok((configurations, place))
        });
        match opened {
            Ok((configurations, Place::Cpu(cpu))) => self.on(cpu, &configurations),
            Ok((configurations, Place::Cuda(cuda))) => self.on(cuda, &configurations),
            // Whoever asked may have gone.
            Err(error) => drop(self.answer.send(Err(error))),
        }
    }

    fn on<B: Backend>(self, backend: B, configurations: &Configurations) {
        let resolved = configurations
            .resolve(&self.spec, &self.config, &backend)
            .and_then(|(settings, info)| {
                info.check_fit()?;
                Ok((settings, info))
            });
        let (settings, info) = match resolved {
            Ok(resolved) => resolved,
            Err(error) => return drop(self.answer.send(Err(error))),
        };
        let shared = shared(&settings, info);
        if self.answer.send(Ok(Arc::clone(&shared))).is_err() {
            return;
        }
        let sources = sources(&self.spec, &self.config);
        let (runner, fetch, law) = (settings.runner.clone(), self.fetch, self.config.simulate);
        let load = |shared: &Shared| {
            if let Some(fetch) = fetch {
                shared.enter(Phase::Download);
                fetch(&shared.download)?;
                shared.enter(Phase::Weights);
            }
            let mut runner = Runner::load(backend, &sources, runner, &shared.progress)?;
            runner.simulate(law)?;
            Ok(runner)
        };
        step_loop::run(settings, shared, self.received, self.sender, load);
    }
}

/// Verifies every tensor and computes the plan, without starting anything. The plan need not fit.
pub fn check(spec: &LoadSpec, config: &EngineConfig) -> Result<CheckOutput, EngineError> {
    let configurations = Configurations::read(spec, config)?;
    let (_, info) = match Place::of(spec, &configurations)? {
        Place::Cpu(cpu) => configurations.resolve(spec, config, &cpu)?,
        Place::Cuda(cuda) => configurations.resolve(spec, config, &cuda)?,
    };
    let (target, drafter) = match spec.format {
        LoadFormat::Dummy { .. } => (None, None),
        LoadFormat::Safetensors => {
            let (target, drafter) = model::check(&spec.target, drafter_of(spec, config))?;
            (Some(target), drafter)
        }
    };
    Ok(CheckOutput {
        target,
        drafter,
        info,
    })
}

/// The drafter, where the algorithm has a use for it.
fn drafter_of<'a>(spec: &'a LoadSpec, config: &EngineConfig) -> Option<&'a CheckpointSource> {
    spec.drafter
        .as_ref()
        .filter(|_| config.algorithm != Algorithm::None)
}

/// What a runner is loaded from.
pub(crate) fn sources(spec: &LoadSpec, config: &EngineConfig) -> ModelSources {
    ModelSources {
        target: spec.target.clone(),
        drafter: drafter_of(spec, config).cloned(),
        format: spec.format,
    }
}

/// What the model's files say.
pub(crate) struct Configurations {
    target: ModelConfig,
    drafter: Option<DrafterConfig>,
}

impl Configurations {
    pub(crate) fn read(spec: &LoadSpec, config: &EngineConfig) -> Result<Self, EngineError> {
        let target = ModelConfig::read(&spec.target)?;
        let drafter = drafter_of(spec, config)
            .map(|source| DrafterConfig::read(source, &target))
            .transpose()?;
        Ok(Configurations { target, drafter })
    }

    pub(crate) fn resolve<B: Backend>(
        &self,
        spec: &LoadSpec,
        config: &EngineConfig,
        backend: &B,
    ) -> Result<(Settings, ModelInfo), EngineError> {
        settings::resolve(spec, config, &self.target, self.drafter.as_ref(), backend)
    }
}

/// An opened device.
pub(crate) enum Place {
    Cpu(Cpu),
    Cuda(Cuda),
}

impl Place {
    pub(crate) fn of(
        spec: &LoadSpec,
        configurations: &Configurations,
    ) -> Result<Self, EngineError> {
        match spec.device {
            Device::Cpu => Ok(Place::Cpu(Cpu::default())),
            Device::Cuda(ordinal) => Place::gpu(ordinal, spec, configurations)
                .map_err(|error| EngineError::Model(ModelError::Ops(error))),
            Device::Auto => match Place::gpu(0, spec, configurations) {
                Ok(place) => Ok(place),
                Err(reason) => {
                    match &reason {
                        OpsError::Absent(_) => tracing::info!(%reason, "using the CPU"),
                        _ => tracing::warn!(%reason, "using the CPU though there is a GPU"),
                    }
                    Ok(Place::Cpu(Cpu::default()))
                }
            },
        }
    }

    /// Opens a GPU that has kernels for the model.
    fn gpu(
        ordinal: usize,
        spec: &LoadSpec,
        configurations: &Configurations,
    ) -> Result<Self, OpsError> {
        let cuda = Cuda::open(ordinal)?;
        let dtype = spec.dtype.unwrap_or(Cuda::DTYPE);
        let drafter = configurations.drafter.as_ref();
        cuda.check_sizes(&configurations.target.sizes(drafter, dtype))?;
        Ok(Place::Cuda(cuda))
    }
}

impl ModelInfo {
    /// Whether the plan fits what it may take.
    pub fn fits(&self) -> bool {
        self.room.is_none_or(|room| self.plan.total_bytes() <= room)
    }

    pub(crate) fn check_fit(&self) -> Result<(), EngineError> {
        match self.memory.zip(self.room).filter(|_| !self.fits()) {
            None => Ok(()),
            Some((memory, room)) => Err(EngineError::Memory {
                device: self.device.clone(),
                plan: self.plan.clone(),
                memory,
                room,
            }),
        }
    }
}

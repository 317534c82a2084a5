//! Loads weights and says which ops, in which order, make a forward and a step.
//!
//! Knows layers and checkpoints; knows nothing of requests, scheduling or devices' names. The
//! forward passes are written once over [`ops::Backend`].

mod check;
mod checkpoint;
mod config;
mod drafter;
mod error;
mod load_format;
mod loader;
mod plan;
mod runner;
mod source;
mod target;
mod traffic;
mod weight_files;
mod weights;
mod workspace;

pub use check::{CheckReport, check};
pub use config::{DrafterConfig, LayerKind, ModelConfig};
pub use error::ModelError;
pub use load_format::LoadFormat;
pub use ops::{CutReason, Dtype, Prediction, SamplingParams};
pub use plan::{MemoryPlan, PlanLine};
pub use runner::{
    AcceptanceLaw, Chunk, Constraint, DeviceTimes, DraftRank, Emitted, ModelSources, PrefillOutput,
    PromptLogprobs, Replay, Resume, Runner, RunnerConfig, SequenceStart, SequenceStep, Shape,
    StepKey, StepNode, StepOutput, StepParts, StepSequence, StepTiming, StepTree, TokenLogprob,
};
pub use source::{CheckpointSource, LoadProgress};
pub use traffic::StepTraffic;

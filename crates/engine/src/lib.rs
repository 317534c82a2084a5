//! Decides what runs in a step and what a step means.
//!
//! Owns sequences, pages, slots and the step loop on its own thread; knows nothing of HTTP, text
//! or kernels. One [`StepOutput`] per step crosses to the server: data, not callbacks.

mod error;
mod handle;
mod load;
mod request;
mod stats;

pub use error::{EngineError, SubmitError};
pub use handle::EngineHandle;
pub use load::{
    Algorithm, Budget, CheckOutput, Device, Engine, EngineConfig, LoadSpec, ModelInfo, Phase,
    Status, check,
};
pub use model::{
    CheckpointSource, Dtype, MemoryPlan, ModelError, SamplingParams, StepTiming, TokenLogprob,
};
pub use request::{
    Finish, FinishReason, Request, RequestId, RequestStats, RequestUpdate, StepOutput, TokenUpdate,
};
pub use stats::{EngineStats, ShapeStats};

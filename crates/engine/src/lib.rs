//! Decides what runs in a step and what a step means.
//!
//! Owns sequences, pages, slots and the step loop on its own thread; knows nothing of HTTP, text
//! or kernels. One [`StepOutput`] per step crosses to the server: data, not callbacks.

mod auto;
mod bench;
mod chunk_shares;
mod constraint;
mod error;
mod handle;
mod history;
mod kv_pool;
mod load;
mod prefix_cache;
mod request;
mod scheduler;
mod sequence;
mod settings;
mod shape;
mod shared;
mod start;
mod state_pool;
mod stats;
mod step_loop;
mod step_plan;
mod step_runner;
mod step_trace;
#[doc(hidden)]
pub mod stub;
mod timing_table;
mod warm_up;

pub use bench::{
    LoadedModel, Measured, PrefillTime, SLACK_TOKENS, STEP_ROWS_MAX, StepBench, StepTimes,
    time_steps,
};
pub use constraint::{ConstraintState, OutputConstraint};
pub use error::{EngineError, SubmitError};
pub use handle::EngineHandle;
pub use load::{
    Algorithm, Budget, Device, EngineConfig, FailureCause, Fetch, LoadSpec, ModelInfo, Phase,
    PrefixCacheConfig, Status,
};
pub use model::{
    AcceptanceLaw, CheckReport, CheckpointSource, Constraint, DraftRank, Dtype, LoadFormat,
    LoadProgress, MemoryPlan, ModelError, PlanLine, SamplingParams, Shape, StepNode, StepParts,
    StepTiming, StepTree, TokenLogprob,
};
pub use ops::DeviceMemory;
pub use prefix_cache::CacheStats;
pub use request::{
    Finish, FinishReason, Request, RequestId, RequestStats, RequestUpdate, Started, StepOutput,
    StepRecord, TokenUpdate,
};
pub use shape::name as shape_name;
pub use start::{CheckOutput, Engine, StepOutputs, check};
pub use stats::{EngineStats, ShapeStats};
pub use step_trace::StepTrace;

#[cfg(test)]
mod tests;

//! Errors of the engine.

use model::MemoryPlan;
use ops::DeviceMemory;

/// Why the engine cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Loading or running the model.
    #[error(transparent)]
    Model(#[from] model::ModelError),
    /// Options that contradict each other or the model.
    #[error("{0}")]
    Config(String),
    /// The device has less free memory than the plan needs.
    #[error("{}", shortage(device, plan, *memory, *room))]
    Memory {
        /// Its name.
        device: String,
        /// What would be allocated.
        plan: MemoryPlan,
        /// What there is.
        memory: DeviceMemory,
        /// Bytes of it that may be taken.
        room: u64,
    },
    /// The engine thread has ended.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}

/// The plan line by line.
fn shortage(device: &str, plan: &MemoryPlan, memory: DeviceMemory, room: u64) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "the memory plan does not fit {device}: it needs {:.0} MiB, {:.0} of {:.0} MiB are free",
        mib(plan.total_bytes()),
        mib(memory.free),
        mib(memory.total)
    );
    if room < memory.free {
        let room = mib(room);
        text.push_str(&format!(", {room:.0} MiB of which may be taken"));
    }
    for line in &plan.lines {
        text.push_str(&format!(
            "\n  {:<20}{:>12.2} MiB",
            line.part,
            mib(line.bytes)
        ));
    }
    text
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The prompt has no tokens.
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    /// Prompt and at least one output token do not fit.
    #[error("the prompt has {prompt} tokens, the context holds {context} with the answer")]
    ContextLength {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens a sequence can have.
        context: usize,
    },
    /// A token id that names no token.
    #[error("token id {id} does not exist; ids are 0 to {max}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// The largest id.
        max: u32,
    },
    /// The waiting queue is full.
    #[error("{waiting} requests are waiting, the limit is {limit}")]
    QueueFull {
        /// Requests waiting.
        waiting: usize,
        /// The limit.
        limit: usize,
    },
    /// An option is out of range.
    #[error("{0}")]
    Invalid(String),
    /// The engine is not ready, draining or gone.
    #[error("the engine is not taking requests: {0}")]
    Unavailable(String),
}

//! Errors of the engine.

/// Why the engine cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Loading or running the model.
    #[error(transparent)]
    Model(#[from] model::ModelError),
    /// Options that contradict each other or the model.
    #[error("{0}")]
    Config(String),
    /// The engine thread has ended.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
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

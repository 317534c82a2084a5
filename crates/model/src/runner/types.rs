//! What goes into a runner and what comes out.

use ops::{CutReason, Dtype, Prediction, SamplingParams};

/// Sizes that are fixed at start.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerConfig {
    /// Sequences that can run at once = state slots.
    pub sequences_max: usize,
    /// Longest prompt + output of one sequence, at most the model's.
    pub context_max: usize,
    /// Pages of 64 tokens in the KV pool, shared by all sequences.
    pub kv_pages: usize,
    /// Rows of one prefill call.
    pub prefill_rows_max: usize,
    /// Rows of one sequence in a step: 1 + largest budget.
    pub tree_rows_max: usize,
    /// Rows of all sequences of a step.
    pub step_rows_max: usize,
    /// Candidates per drafted depth.
    pub topk: usize,
    /// Storage of weights.
    pub weight_dtype: Dtype,
    /// Storage of keys and values.
    pub kv_dtype: Dtype,
    /// Ids `0..vocab_used` name tokens; later rows of the head are never sampled.
    pub vocab_used: usize,
    /// Record steps where the device can; off = enqueue every op of every step.
    pub graphs: bool,
    /// Places for snapshots of recurrent state on the device; 0 = none.
    pub snapshots: usize,
    /// Such places in host memory.
    pub host_snapshots: usize,
}

/// How a sequence drafts in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// No draft: one row.
    Plain,
    /// The top-1 chain of this many drafts (1..=15).
    Chain(usize),
    /// The best tree of this many nodes (1..=63).
    Tree(usize),
}

impl Shape {
    /// Rows of a sequence in the verify pass: the root and the drafts.
    pub fn rows(self) -> usize {
        match self {
            Shape::Plain => 1,
            Shape::Chain(drafts) | Shape::Tree(drafts) => 1 + drafts,
        }
    }
}

/// What a slot must know before its first prefill.
#[derive(Clone, Debug)]
pub struct SequenceStart<'a> {
    /// The slot; its former contents are forgotten.
    pub slot: usize,
    /// The whole prompt, not empty.
    pub prompt: &'a [u32],
    /// The first pages of the sequence, in order. Before rows are written behind them,
    /// [`super::Runner::extend_pages`] gives more.
    pub pages: &'a [u32],
    /// Sampling options.
    pub sampling: &'a SamplingParams,
    /// Ids that end the sequence, at most `ops::STOP_IDS_MAX`.
    pub stop_ids: &'a [u32],
    /// Stop ids are banned until this many tokens were emitted.
    pub tokens_min: usize,
    /// Tokens to emit at most, at least 1; `emitted` count, too.
    pub tokens_max: usize,
    /// Report log-probabilities with this many alternatives; `None` = off.
    pub logprobs: Option<usize>,
    /// Where the state of the sequence's beginning comes from; `None`: nothing is there.
    pub resume: Option<Resume>,
    /// Output tokens that were emitted before the sequence lost its slot, oldest first. Then no
    /// chunk of the prompt is `last`, and [`super::Runner::replay`] takes all of these but the
    /// newest before the first step.
    pub emitted: &'a [u32],
}

/// A beginning of a sequence that need not be computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The place of its snapshot.
    pub snapshot: usize,
    /// The tokens that it covers, a multiple of 64: prompt first, then `emitted`. The pages hold
    /// keys and values of exactly these. At least one token must be left to be processed before
    /// the first step: the prompt's last, or, behind emitted tokens, none.
    pub length: usize,
}

/// Emitted tokens of one sequence that are processed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay<'a> {
    /// Its slot.
    pub slot: usize,
    /// The tokens behind its length, 1 to [`RunnerConfig::replay_rows_max`].
    pub tokens: &'a [u32],
}

/// A piece of a prompt.
#[derive(Clone, Debug)]
pub struct Chunk<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Position of the first token: everything before it has been prefilled.
    pub start: usize,
    /// The tokens.
    pub tokens: &'a [u32],
    /// The prompt ends here: sample the first output token.
    pub last: bool,
    /// Log-probabilities of the prompt's tokens with this many alternatives. The chunk reports the
    /// tokens at positions `start + 1 ..`; `next` is the token after the chunk, if there is one.
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// What [`Chunk::prompt_logprobs`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptLogprobs {
    /// Alternatives per token.
    pub top: usize,
    /// Token after the chunk.
    pub next: Option<u32>,
}

/// A token's log-probability under the raw law of the target, and the most likely alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Natural log.
    pub logprob: f32,
    /// `(id, logprob)`, descending, ties to the lower id.
    pub top: Vec<(u32, f32)>,
}

/// One output token.
#[derive(Clone, Debug, PartialEq)]
pub struct Emitted {
    /// Its id.
    pub id: u32,
    /// Present where the sequence asked for it.
    pub logprob: Option<TokenLogprob>,
}

/// Result of one chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefillOutput {
    /// The slot of the chunk.
    pub slot: usize,
    /// First output token, if the prompt ended.
    pub first: Option<Emitted>,
    /// The first token already ends the sequence.
    pub ended: Option<CutReason>,
    /// The logits after the prompt are not finite: `first` means nothing and the sequence must not
    /// go on. The text says what to do.
    pub not_finite: Option<String>,
    /// Log-probabilities of prompt tokens, in order, if asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
}

/// A sequence's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceStep {
    /// Its slot.
    pub slot: usize,
    /// How it drafts.
    pub shape: Shape,
    /// It shares the rows of its shape: those of all sequences that do, but their roots, go to the
    /// best drafts among them, and this one gets so many at most. `None`: it keeps its own. A
    /// sharing tree or chain may begin with no draft at all (`Shape::Tree(0)`).
    pub rows_max: Option<usize>,
}

/// What a step did to one sequence, after the cut.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSequence {
    /// Its slot.
    pub slot: usize,
    /// Emitted tokens, at least one.
    pub tokens: Vec<Emitted>,
    /// Rows of its segment: those of its shape, unless it shared them.
    pub rows: usize,
    /// Nodes that were verified, root and padding not counted.
    pub drafted: usize,
    /// Accepted drafts that were kept.
    pub accepted: usize,
    /// Why the sequence ended, if it did.
    pub ended: Option<CutReason>,
    /// The logits behind one of the tokens are not finite: they mean nothing and the sequence must
    /// not go on. The text says what to do.
    pub not_finite: Option<String>,
    /// Acceptance predicted from this step's draft for every shape; `None` without a draft.
    pub prediction: Option<Prediction>,
}

/// Milliseconds of a step on the host's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTiming {
    /// From staging to the result.
    pub total_ms: f64,
    /// The parts, where the step was not launched as a whole.
    pub parts: Option<StepParts>,
}

/// Milliseconds of the parts of a step, until all their ops were enqueued: on the CPU, until they
/// were done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepParts {
    /// Drafter forward and head.
    pub draft_ms: f64,
    /// Candidates and tree.
    pub build_ms: f64,
    /// Target forward and head.
    pub verify_ms: f64,
    /// Sampling and walk.
    pub sample_ms: f64,
    /// Commit and the drafter's context.
    pub commit_ms: f64,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// One entry per sequence, in the order given.
    pub sequences: Vec<StepSequence>,
    /// Where the time went.
    pub timing: StepTiming,
}

//! What crosses between server and engine.

use model::{SamplingParams, Shape, TokenLogprob};
use ops::{EMIT_MAX, LOGIT_BIAS_MAX, STOP_IDS_MAX, TOP_LOGPROBS_MAX};

use crate::{ModelInfo, OutputConstraint, StepTrace, SubmitError};

/// Names a request inside the process; minted by [`crate::EngineHandle::submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One sequence to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Of those that wait, requests with lower numbers start first, equal ones in the order they
    /// came. What runs is never stopped for another.
    pub priority: i64,
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// Sampling options.
    pub sampling: SamplingParams,
    /// Tokens to emit at most; lowered to what the context holds. 0 only with `prompt_logprobs`:
    /// the request then ends after its prompt, without any output.
    pub max_tokens: usize,
    /// Stop ids are not chosen before this many tokens.
    pub min_tokens: usize,
    /// Ids that end the sequence. The stop id is part of the output.
    pub stop_ids: Vec<u32>,
    /// Log-probabilities of the output with this many alternatives.
    pub logprobs: Option<usize>,
    /// Log-probabilities of the prompt with this many alternatives.
    pub prompt_logprobs: Option<usize>,
    /// Reports what every step verified.
    pub trace: bool,
    /// `false` runs this request without drafting.
    pub speculative: bool,
    /// Drafts in this shape instead of the engine's choice; for benchmarks. Near the end of the
    /// context, and in large batches, it is lowered like any other.
    pub shape: Option<Shape>,
    /// Separates prefixes: only requests of the same salt find each other's. An empty one is none.
    pub cache_salt: Option<String>,
    /// Tokens of the prompt up to the end of its last turn: the next turn's prompt begins with them,
    /// but not with what opens the answer.
    pub turn_end: Option<usize>,
    /// What the output must obey; `None`: nothing. It stands before the first output token.
    pub constraint: Option<Box<dyn OutputConstraint>>,
}

/// What one step did to the requests it touched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// At most one entry per request.
    pub updates: Vec<RequestUpdate>,
    /// Parts of the step; `None` for prefills.
    pub timing: Option<model::StepTiming>,
    /// Milliseconds that constraints took; `None` where no sequence had one.
    pub mask_ms: Option<f64>,
}

/// News of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestUpdate {
    /// Which.
    pub id: RequestId,
    /// Present once, with its first slot; never for a request that ends before it has one.
    pub started: Option<Started>,
    /// Log-probabilities of prompt tokens 1, 2, ... as far as they are known now.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// New output tokens in order.
    pub tokens: Vec<TokenUpdate>,
    /// The step that made the tokens, if asked for; the first token of an output comes from no step.
    pub trace: Option<StepTrace>,
    /// Present exactly once per request, in its last update.
    pub finish: Option<Finish>,
}

/// A request has left the queue for the first time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Started {
    /// Tokens of its prompt that come from the prefix cache: fewer than there are.
    pub cached_tokens: usize,
    /// Since its submission.
    pub queue_ms: f64,
}

/// One output token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenUpdate {
    /// Its id.
    pub id: u32,
    /// If asked for.
    pub logprob: Option<TokenLogprob>,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of these, the ones that came from the prefix cache: fewer than there are.
    pub cached_tokens: usize,
    /// Output tokens that count: all that were sent, or what [`crate::EngineHandle::finish`] kept.
    pub completion_tokens: usize,
    /// Counters and times.
    pub stats: RequestStats,
    /// Every verify pass, for [`Finish::trim`].
    pub records: Vec<StepRecord>,
}

/// What a verify pass did for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Output tokens before it.
    pub before: u32,
    /// Verified nodes without the root.
    pub drafted: u8,
    /// Accepted nodes.
    pub accepted: u8,
}

impl Finish {
    /// Lets only the first `kept` output tokens count, and the counters say so: a pass all of whose
    /// tokens were dropped is none, of the others only kept nodes are accepted ones. So they do not
    /// depend on how late the decision to end came.
    pub fn trim(&mut self, kept: usize) {
        let kept = kept.min(self.completion_tokens);
        self.completion_tokens = kept;
        self.records
            .retain(|record| (record.before as usize) < kept);
        let stats = &mut self.stats;
        (stats.steps, stats.drafted, stats.accepted) = (self.records.len(), 0, 0);
        stats.acceptance_histogram = vec![0; EMIT_MAX];
        for record in &self.records {
            // The pass emitted its accepted nodes and one token more.
            let room = kept - record.before as usize;
            let accepted = usize::from(record.accepted).min(room);
            stats.drafted += usize::from(record.drafted);
            stats.accepted += accepted;
            stats.acceptance_histogram[accepted] += 1;
        }
    }
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id, which is the last token, or the end of what the constraint allows.
    Stop,
    /// `max_tokens` or the context.
    Length,
    /// Bans and minimums left nothing of what the constraint allows, where the text could not end.
    Blocked,
    /// Ended by [`crate::EngineHandle::finish`]: the server found a stop string.
    Finished,
    /// Ended by [`crate::EngineHandle::abort`].
    Aborted,
    /// Ended by [`crate::EngineHandle::expire`] before it started.
    Expired,
    /// The engine failed; the text says why.
    Error(String),
}

/// Counters of one request, taken after the cut. The prefill token is no step; every decode step
/// counts, one-row steps too.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestStats {
    /// Verify passes.
    pub steps: usize,
    /// Verified nodes without the root.
    pub drafted: usize,
    /// Accepted nodes.
    pub accepted: usize,
    /// `[k]` = steps with exactly k accepted nodes; 16 entries.
    pub acceptance_histogram: Vec<usize>,
    /// From submission to the first prefill.
    pub queue_ms: f64,
    /// From the first prefill to the first token.
    pub prefill_ms: f64,
    /// From the first token to the last.
    pub decode_ms: f64,
}

impl RequestStats {
    /// Tokens per step: 1 + accepted / steps; 1 before the first step.
    pub fn mean_acceptance_length(&self) -> f64 {
        1.0 + self.accepted as f64 / self.steps.max(1) as f64
    }
}

impl Request {
    /// Everything that can be said without the device.
    pub(crate) fn check(&self, info: &ModelInfo) -> Result<(), SubmitError> {
        let invalid = |text: String| Err(SubmitError::Invalid(text));
        let (prompt, context) = (self.prompt.len(), info.context_length);
        if prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if prompt >= context {
            return Err(SubmitError::ContextLength { prompt, context });
        }
        let biased = self.sampling.logit_bias.iter().map(|bias| &bias.0);
        let mut ids = self.prompt.iter().chain(&self.stop_ids).chain(biased);
        if let Some(&id) = ids.find(|&&id| id as usize >= info.vocab_used) {
            let max = u32::try_from(info.vocab_used - 1).unwrap_or(u32::MAX);
            return Err(SubmitError::UnknownToken { id, max });
        }
        if self.max_tokens == 0 && self.prompt_logprobs.is_none() {
            return invalid("max_tokens is 0; only a request for prompt_logprobs may be".into());
        }
        if self.stop_ids.len() > STOP_IDS_MAX {
            let count = self.stop_ids.len();
            return invalid(format!("{count} stop ids, the limit is {STOP_IDS_MAX}"));
        }
        for (field, top) in [
            ("logprobs", self.logprobs),
            ("prompt_logprobs", self.prompt_logprobs),
        ] {
            if top.is_some_and(|top| top > TOP_LOGPROBS_MAX) {
                let top = top.unwrap_or_default();
                return invalid(format!("{field} is {top}, the limit is {TOP_LOGPROBS_MAX}"));
            }
        }
        check_shape(self.shape, info).map_err(SubmitError::Invalid)?;
        check_sampling(&self.sampling).map_err(SubmitError::Invalid)
    }
}

/// Whether the engine was started for the shape.
pub(crate) fn check_shape(shape: Option<Shape>, info: &ModelInfo) -> Result<(), String> {
    let Some(shape) = shape else {
        return Ok(());
    };
    let drafts_max = match shape {
        Shape::Plain => return Ok(()),
        Shape::Chain(_) => info.chain_drafts.min(info.tree_rows_max - 1),
        Shape::Tree(_) => info.tree_rows_max - 1,
    };
    match (1..=drafts_max).contains(&(shape.rows() - 1)) {
        true => Ok(()),
        false => Err(format!(
            "shape is {}; this engine drafts at most {drafts_max} like that",
            crate::shape::name(shape)
        )),
    }
}

fn check_sampling(sampling: &SamplingParams) -> Result<(), String> {
    let unit = |value: f32| (0.0..=1.0).contains(&value);
    let rules = [
        ("temperature", sampling.temperature, "at least 0", {
            sampling.temperature.is_finite() && sampling.temperature >= 0.0
        }),
        ("top_p", sampling.top_p, "0 to 1", unit(sampling.top_p)),
        ("min_p", sampling.min_p, "0 to 1", unit(sampling.min_p)),
        (
            "repetition_penalty",
            sampling.repetition_penalty,
            "above 0",
            { sampling.repetition_penalty.is_finite() && sampling.repetition_penalty > 0.0 },
        ),
        ("presence_penalty", sampling.presence_penalty, "finite", {
            sampling.presence_penalty.is_finite()
        }),
        ("frequency_penalty", sampling.frequency_penalty, "finite", {
            sampling.frequency_penalty.is_finite()
        }),
    ];
    if let Some((field, value, range, _)) = rules.iter().find(|rule| !rule.3) {
        return Err(format!("{field} is {value}; it must be {range}"));
    }
    let bias = &sampling.logit_bias;
    if bias.len() > LOGIT_BIAS_MAX {
        let count = bias.len();
        return Err(format!(
            "logit_bias has {count} entries, the limit is {LOGIT_BIAS_MAX}"
        ));
    }
    match bias
        .iter()
        .find(|(_, value)| value.is_nan() || *value == f32::INFINITY)
    {
        Some((id, value)) => Err(format!(
            "logit_bias of token {id} is {value}; it must be finite, or -inf to ban the token"
        )),
        None => Ok(()),
    }
}

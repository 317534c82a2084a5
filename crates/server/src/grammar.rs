//! Answers of a form that the client chose: JSON of a schema, or a call of a tool.
//!
//! A request says what it wants (`Wanted`); a `Form` of it becomes a constraint on the tokens
//! of every choice. Only JSON needs the grammar engine, which is `llguidance`.

mod allowed_calls;
mod answer;
#[cfg(test)]
mod call_tests;
mod call_tokens;
mod compiler;
mod finite;
mod forced_call;
mod json;
mod masks;
mod reasoning;
mod response_format;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::{OutputConstraint, Request};
use serde_json::{Map, Value};

use crate::error::{ApiError, shorten};
use crate::fields::Fields;
use crate::metrics::Metrics;
use crate::text_stream::TextOptions;
use crate::vocabulary::Vocabulary;
use allowed_calls::AllowedCalls;
use answer::AnswerConstraint;
use call_tokens::CallTokens;
use compiler::{Compiler, Fault};
use forced_call::ForcedCall;
use json::JsonConstraint;
use reasoning::Marks;
use response_format::JsonSchema;

/// What makes JSON schemas into constraints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrammarBackend {
    /// The `llguidance` crate.
    #[default]
    Llguidance,
    /// Nothing: such requests are refused.
    None,
}

/// Options of constrained answers.
#[derive(Clone, Copy, Debug)]
pub struct GrammarConfig {
    /// The engine.
    pub backend: GrammarBackend,
    /// Time for a schema to be compiled; zero = no limit.
    pub timeout: Duration,
}

impl Default for GrammarConfig {
    fn default() -> Self {
        GrammarConfig {
            backend: GrammarBackend::default(),
            timeout: Duration::from_secs(5),
        }
    }
}

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// JSON of this schema. With tools, a call instead of an answer stays possible.
    Json {
        /// The schema.
        schema: JsonSchema,
        /// A tool may be called.
        tools: bool,
    },
    /// A call of one of these tools.
    Call(Vec<String>),
}

/// What the sequences of a request must write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Form {
    /// The answer.
    pub(crate) wanted: Wanted,
    /// The prompt ends inside an open reasoning block: the answer comes behind it.
    pub(crate) in_reasoning: bool,
}

impl Form {
    /// JSON of a schema, from the first token on; keywords that cannot be enforced do not count.
    pub(crate) fn json(schema: Map<String, Value>) -> Self {
        let schema = JsonSchema::new(schema, false);
        Form {
            wanted: Wanted::Json {
                schema,
                tools: false,
            },
            in_reasoning: false,
        }
    }

    /// Reads `response_format`; `None` where the model may write what it likes. One of the names
    /// in `forced` must be called; `tools`: a tool may be called.
    pub(crate) fn read(
        fields: &Fields,
        forced: Option<Vec<String>>,
        tools: bool,
        in_reasoning: bool,
    ) -> Result<Option<Self>, ApiError> {
        let wanted = match (JsonSchema::read(fields)?, forced) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                let message = "A 'tool_choice' that asks for a call and a 'response_format' of \
                               JSON exclude each other.";
                return Err(ApiError::invalid("invalid_value", "tool_choice", message));
            }
            (None, Some(names)) => Wanted::Call(names),
            (Some(schema), None) => Wanted::Json { schema, tools },
        };
        Ok(Some(Form {
            wanted,
            in_reasoning,
        }))
    }
}

/// Makes constraints.
pub(crate) struct Grammars {
    vocabulary: Arc<Vocabulary>,
    marks: Arc<Marks>,
    /// Made when the first request restricts calls.
    call_tokens: Arc<OnceLock<Arc<CallTokens>>>,
    /// `None` without a grammar engine.
    compiler: Option<Compiler>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// For a tokenizer whose turns end with one of `end_ids`.
    pub(crate) fn new(
        config: GrammarConfig,
        vocabulary: &Arc<Vocabulary>,
        end_ids: &[u32],
    ) -> Self {
        Grammars {
            marks: Arc::new(Marks::new(vocabulary)),
            call_tokens: Arc::default(),
            compiler: (config.backend == GrammarBackend::Llguidance)
                .then(|| Compiler::new(vocabulary, end_ids, config.timeout)),
            vocabulary: Arc::clone(vocabulary),
        }
    }

    /// The constraint of a sequence at its first output token: its form, and which calls may be made
    /// in its text. The tokens of `banned` never come. `None` where anything may be written. Compiles
    /// on a thread of its own.
    pub(crate) async fn constraint(
        &self,
        form: Option<Form>,
        (text, banned): (&TextOptions, &[u32]),
        request_id: &str,
        metrics: &Metrics,
    ) -> Result<Option<Box<dyn OutputConstraint>>, ApiError> {
        let calls = self.allowed_calls(text, request_id).await?;
        let Some(form) = form else {
            return Ok(calls.map(|calls| Box::new(calls) as Box<dyn OutputConstraint>));
        };
        let (inner, call): (Box<dyn OutputConstraint>, _) = match form.wanted {
            Wanted::Json { schema, tools } => {
                let tools = tools && !calls.as_ref().is_some_and(AllowedCalls::is_empty);
                let json = self.json(schema, request_id, metrics).await?;
                let call = tools.then_some(answer::Call::Instead);
                let begins = call.and(self.marks.tool_call());
                if !self.can_begin(&json, begins, banned) {
                    return Err(contradiction("the JSON of the 'response_format'"));
                }
                (Box::new(json), call)
            }
            Wanted::Call(names) => {
                let call = ForcedCall::new(&self.vocabulary, &names, banned)
                    .map_err(|reason| ApiError::internal(request_id, &reason))?
                    .ok_or_else(|| contradiction("a call that the 'tool_choice' asks for"))?;
                (Box::new(call), Some(answer::Call::Forced))
            }
        };
        Ok(Some(Box::new(AnswerConstraint::new(
            inner,
            Arc::clone(&self.marks),
            form.in_reasoning,
            call,
            calls,
        ))))
    }

    async fn json(
        &self,
        schema: JsonSchema,
        request_id: &str,
        metrics: &Metrics,
    ) -> Result<JsonConstraint, ApiError> {
        let Some(compiler) = &self.compiler else {
            return Err(no_backend());
        };
        let compiled = compiler.compile(schema).await;
        let json = compiled.map_err(|fault| refusal(fault, request_id))?;
        if json.unenforced > 0 {
            metrics.count_ignored("response_format.json_schema.schema");
        }
        Ok(json.constraint)
    }

    /// Whether a first token of the text, or the mark that may come instead, is not banned.
    fn can_begin(&self, json: &JsonConstraint, mark: Option<u32>, banned: &[u32]) -> bool {
        if banned.is_empty() {
            return true;
        }
        let mut words = vec![0; self.vocabulary.len().div_ceil(32)];
        json.boxed_clone().mask(&mut words);
        mark.into_iter().for_each(|id| masks::allow(&mut words, id));
        banned.iter().for_each(|&id| masks::ban(&mut words, id));
        words.iter().any(|&word| word != 0)
    }

    async fn allowed_calls(
        &self,
        text: &TextOptions,
        request_id: &str,
    ) -> Result<Option<AllowedCalls>, ApiError> {
        if text.tools.as_ref().is_none_or(|set| set.callable.is_none()) {
            return Ok(None);
        }
        let tokens = match self.call_tokens.get() {
            Some(tokens) => Arc::clone(tokens),
            None => {
                let (cell, vocabulary) =
                    (Arc::clone(&self.call_tokens), Arc::clone(&self.vocabulary));
                let make = move || {
                    let made = || Arc::new(CallTokens::new(&vocabulary));
                    Arc::clone(cell.get_or_init(made))
                };
                let made = tokio::task::spawn_blocking(make).await;
                made.map_err(|error| ApiError::internal(request_id, &error.to_string()))?
            }
        };
        Ok(AllowedCalls::new(&self.vocabulary, &tokens, text))
    }
}

/// Tokens that a request's bias bans.
pub(crate) fn banned(request: &Request) -> Vec<u32> {
    let bias = request.sampling.logit_bias.iter();
    bias.filter(|(_, bias)| *bias == f32::NEG_INFINITY)
        .map(|&(id, _)| id)
        .collect()
}

fn contradiction(what: &str) -> ApiError {
    let message = format!(
        "'logit_bias' bans every token that {what} could begin with; ban fewer tokens, or do not \
         ask for it."
    );
    ApiError::invalid("invalid_value", "logit_bias", message)
}

fn no_backend() -> ApiError {
    let message = "This server was started without a grammar engine, so answers cannot be held to \
                   JSON.";
    ApiError::invalid("unsupported_value", "response_format", message)
}

fn refusal(fault: Fault, request_id: &str) -> ApiError {
    let invalid = |message: String| {
        let param = "response_format.json_schema.schema";
        ApiError::invalid("invalid_json_schema", param, message)
    };
    match fault {
        Fault::Schema(reason) => invalid(format!(
            "The schema cannot be compiled: {}.",
            shorten(reason.trim_end_matches('.'))
        )),
        Fault::Slow(limit) => invalid(format!(
            "The schema takes more than {} seconds to compile; use a simpler one.",
            limit.as_secs_f64()
        )),
        Fault::Busy => {
            let message = "Too many schemas are being compiled.";
            ApiError::unavailable("queue_timeout", message, 1_000)
        }
        Fault::Engine(reason) => ApiError::internal(request_id, &reason),
    }
}

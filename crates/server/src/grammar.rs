//! Answers of a form that the client chose: JSON of a schema, or a call of a tool.
//!
//! A request says what it wants (`Wanted`); a `Form` of it becomes a constraint on the tokens
//! of every choice. Only JSON needs the grammar engine, which is `llguidance`.

mod answer;
mod compiler;
mod forced_call;
mod json;
mod reasoning;
mod response_format;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use engine::OutputConstraint;
use serde_json::{Map, Value};

use crate::error::{ApiError, shorten};
use crate::fields::Fields;
use crate::metrics::Metrics;
use crate::vocabulary::Vocabulary;
use answer::AnswerConstraint;
use compiler::{Compiler, Fault};
use forced_call::ForcedCall;
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
            compiler: (config.backend == GrammarBackend::Llguidance)
                .then(|| Compiler::new(vocabulary, end_ids, config.timeout)),
            vocabulary: Arc::clone(vocabulary),
        }
    }

    /// The constraint of a form, at the first output token. Compiles on a thread of its own.
    pub(crate) async fn constraint(
        &self,
        form: Form,
        request_id: &str,
        metrics: &Metrics,
    ) -> Result<Box<dyn OutputConstraint>, ApiError> {
        let (inner, call): (Box<dyn OutputConstraint>, _) = match form.wanted {
            Wanted::Json { schema, tools } => {
                let Some(compiler) = &self.compiler else {
                    return Err(no_backend());
                };
                let compiled = compiler.compile(schema).await;
                let json = compiled.map_err(|fault| refusal(fault, request_id))?;
                if json.unenforced > 0 {
                    metrics.count_ignored("response_format.json_schema.schema");
                }
                let call = tools.then_some(answer::Call::Instead);
                (Box::new(json.constraint), call)
            }
            Wanted::Call(names) => {
                let call = ForcedCall::new(&self.vocabulary, &names)
                    .map_err(|reason| ApiError::internal(request_id, &reason))?;
                (Box::new(call), Some(answer::Call::Forced))
            }
        };
        Ok(Box::new(AnswerConstraint::new(
            inner,
            Arc::clone(&self.marks),
            form.in_reasoning,
            call,
        )))
    }
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

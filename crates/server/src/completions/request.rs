//! The body of a completion request.

use serde_json::{Map, Value};

use crate::answer::Streaming;
use crate::app::App;
use crate::completions::response::{CompletionStyle, Echo};
use crate::error::ApiError;
use crate::field_rules;
use crate::fields::{Fields, too_long, wrong_type};
use crate::foreign_fields;
use crate::grammar::Form;
use crate::ids;
use crate::sampling::{GenerationOptions, token_id};
use crate::sequence_group::Planned;

/// Prompts of one request at most.
pub(crate) const PROMPTS_MAX: usize = 64;
/// Output tokens unless the request says otherwise.
const MAX_TOKENS_DEFAULT: usize = 16;
/// Alternatives per token at most.
const TOP_LOGPROBS_MAX: i64 = 20;

/// A request that was checked and tokenised.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    /// All choices of the first prompt, then those of the second, ...
    pub(crate) planned: Vec<Planned>,
    /// Choices per prompt.
    pub(crate) choices: usize,
    /// Whether and how to stream.
    pub(crate) streaming: Streaming,
    /// What the answer looks like.
    pub(crate) style: CompletionStyle,
    /// What the model must write, if that is not left to it.
    pub(crate) form: Option<Form>,
    /// The client's name for the request.
    pub(crate) rid: Option<String>,
}

/// One prompt as it was sent.
#[derive(Debug, PartialEq)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl CompletionRequest {
    /// Checks everything that needs no device.
    pub(crate) fn read(app: &App, body: &Map<String, Value>) -> Result<Self, ApiError> {
        let fields = Fields::root(body);
        let rules = &app.config.rules;
        let model = app.model(&fields)?;
        foreign_fields::refuse(&fields, foreign_fields::OPENAI)?;
        field_rules::check(&fields, rules.strict_fields, &app.metrics)?;
        if fields
            .string("suffix")?
            .is_some_and(|suffix| !suffix.is_empty())
        {
            let message = "'suffix' is not supported: the server does not fill in the middle.";
            return Err(ApiError::invalid(
                "unsupported_parameter",
                "suffix",
                message,
            ));
        }
        let echo = fields.boolean("echo")?.unwrap_or(false);
        let (rest, no_output) = without_zero(body, echo)?;
        let mut options = GenerationOptions::read(&Fields::root(&rest), &app.files, rules)?;
        let limits = ["max_tokens", "max_completion_tokens"];
        if !limits.iter().any(|name| fields.get(name).is_some()) {
            options.max_tokens = Some(MAX_TOKENS_DEFAULT);
        }
        app.check_choices(options.choices)?;
        let streaming = Streaming::read(&fields, app.config.stream_usage)?;
        let logprobs = logprobs(&fields)?;
        let planning = Planning {
            app,
            options: &options,
            echo,
            no_output,
            logprobs,
        };
        let mut planned = Vec::new();
        let mut echoes = Vec::new();
        let prompts = prompts(&fields, app.files.vocabulary.len())?;
        app.check_sequences(prompts.len(), options.choices)?;
        for prompt in prompts {
            echoes.push(planning.plan(prompt, &mut planned)?);
        }
        let style = CompletionStyle {
            id: ids::random_id("cmpl-"),
            created: ids::unix_seconds(),
            model,
            logprobs: logprobs.is_some(),
            skip_special: options.text.skip_special,
            choices: options.choices,
            echoes,
            spec_details: fields
                .boolean("return_spec_tokens_details")?
                .unwrap_or(false),
        };
        Ok(CompletionRequest {
            planned,
            choices: options.choices,
            streaming,
            style,
            form: Form::read(&fields, None, false, false)?,
            rid: fields.text("rid", ids::RID_LENGTH_MAX)?.map(str::to_owned),
        })
    }
}

/// What all prompts of a request share.
struct Planning<'a> {
    app: &'a App,
    options: &'a GenerationOptions,
    echo: bool,
    /// The prompt is all that is wanted.
    no_output: bool,
    logprobs: Option<usize>,
}

impl Planning<'_> {
    /// Appends the sequences of one prompt; returns what comes in front of their outputs.
    fn plan(&self, prompt: Prompt, planned: &mut Vec<Planned>) -> Result<Option<Echo>, ApiError> {
        let app = self.app;
        let (ids, text) = match prompt {
            Prompt::Text(text) => (app.encode(&text, "prompt")?, self.echo.then_some(text)),
            Prompt::Ids(ids) => {
                let text = self.echo.then(|| app.files.vocabulary.decode(&ids, false));
                (ids, text)
            }
        };
        let (info, rules) = (app.engine.info(), &app.config.rules);
        let limit = self.options.limit(ids.len(), info, rules, "prompt")?;
        for choice in 0..self.options.choices {
            let limit = if self.no_output { 0 } else { limit };
            let mut request = self.options.request(ids.clone(), limit, choice);
            request.logprobs = self.logprobs;
            request.prompt_logprobs = match (self.echo, self.no_output) {
                (true, true) => Some(self.logprobs.unwrap_or(0)),
                (true, false) => self.logprobs,
                (false, _) => None,
            };
            let text = self.options.text.clone();
            planned.push(Planned { request, text });
        }
        Ok(text.map(|text| Echo { text, ids }))
    }
}

/// `max_tokens: 0` asks for the prompt alone and is allowed with `echo` only. Returns the other
/// fields and whether it is so.
fn without_zero(
    body: &Map<String, Value>,
    echo: bool,
) -> Result<(Map<String, Value>, bool), ApiError> {
    let fields = Fields::root(body);
    let mut rest = body.clone();
    // The prompt may be large, and nobody reads it from the copy.
    rest.remove("prompt");
    if !echo {
        return Ok((rest, false));
    }
    let zero = fields.integer("max_tokens", i64::MIN, i64::MAX)? == Some(0);
    if zero {
        rest.remove("max_tokens");
    }
    let limited = fields.get("max_completion_tokens").is_some();
    Ok((rest, zero && !limited))
}

/// A number here; chat requests have a truth value of the same name.
fn logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    if let Some(Value::Bool(false)) = fields.get("logprobs") {
        return Ok(None);
    }
    let top = fields.integer("logprobs", 0, TOP_LOGPROBS_MAX)?;
    Ok(top.and_then(|top| usize::try_from(top).ok()))
}

/// A text, several texts, ids or several lists of ids.
fn prompts(fields: &Fields, vocabulary: usize) -> Result<Vec<Prompt>, ApiError> {
    let listed = match fields.required("prompt")? {
        Value::String(text) => vec![Prompt::Text(text.clone())],
        Value::Array(values) => match values.first() {
            None => {
                let message = "Invalid 'prompt': expected at least one prompt.";
                return Err(ApiError::invalid("empty_array", "prompt", message));
            }
            Some(Value::Number(_)) => vec![Prompt::Ids(token_ids(values, "prompt", vocabulary)?)],
            Some(_) if values.len() > PROMPTS_MAX => {
                return Err(too_long("prompt", values.len(), PROMPTS_MAX));
            }
            Some(_) => values
                .iter()
                .enumerate()
                .map(|(index, value)| {
                    let path = format!("prompt.[{index}]");
                    match value {
                        Value::String(text) => Ok(Prompt::Text(text.clone())),
                        Value::Array(values) => {
                            Ok(Prompt::Ids(token_ids(values, &path, vocabulary)?))
                        }
                        other => Err(wrong_type(&path, "a string or token ids", other)),
                    }
                })
                .collect::<Result<_, _>>()?,
        },
        other => return Err(wrong_type("prompt", "a string or an array", other)),
    };
    let empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Ids(ids) => ids.is_empty(),
    };
    if listed.iter().any(empty) {
        let message = "Invalid 'prompt': this model cannot begin with nothing; send at least one \
                       token.";
        return Err(ApiError::invalid("invalid_value", "prompt", message));
    }
    Ok(listed)
}

/// A list of token ids below `vocabulary`.
pub(crate) fn token_ids(
    values: &[Value],
    path: &str,
    vocabulary: usize,
) -> Result<Vec<u32>, ApiError> {
    values
        .iter()
        .enumerate()
        .map(|(index, value)| token_id(value, &format!("{path}.[{index}]"), vocabulary))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(prompt: Value) -> Result<Vec<Prompt>, ApiError> {
        let body = json!({"prompt": prompt});
        prompts(&Fields::root(body.as_object().unwrap()), 100)
    }

    #[test]
    fn prompts_have_four_forms() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(read(json!("a")).unwrap(), [text("a")]);
        assert_eq!(read(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
        assert_eq!(read(json!([1, 2.0])).unwrap(), [Prompt::Ids(vec![1, 2])]);
        let lists = read(json!([[1], [2, 3]])).unwrap();
        assert_eq!(lists, [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]);
    }

    #[test]
    fn refusals_name_the_place() {
        for (prompt, code, param) in [
            (json!(null), "missing_required_parameter", "prompt"),
            (json!(1), "invalid_type", "prompt"),
            (json!([]), "empty_array", "prompt"),
            (json!(""), "invalid_value", "prompt"),
            (json!(["a", ""]), "invalid_value", "prompt"),
            (json!([[]]), "invalid_value", "prompt"),
            (json!([1, "a"]), "invalid_type", "prompt.[1]"),
            (json!(["a", true]), "invalid_type", "prompt.[1]"),
            (json!([[1, 100]]), "invalid_value", "prompt.[0].[1]"),
            (json!([-1]), "invalid_value", "prompt.[0]"),
            (json!(vec!["a"; 65]), "array_above_max_length", "prompt"),
        ] {
            let error = read(prompt.clone()).unwrap_err();
            assert_eq!(error.code, Some(code), "{prompt}");
            assert_eq!(error.param.as_deref(), Some(param), "{prompt}");
        }
    }

    #[test]
    fn no_output_is_for_echoes() {
        let zero = |body: Value, echo| without_zero(body.as_object().unwrap(), echo).unwrap();
        let (rest, none) = zero(json!({"max_tokens": 0, "n": 1}), true);
        assert!(none && !rest.contains_key("max_tokens") && rest.contains_key("n"));
        let (rest, none) = zero(json!({"max_tokens": 0}), false);
        assert!(!none && rest.contains_key("max_tokens"));
        assert!(!zero(json!({"max_tokens": 1}), true).1);
        let both = json!({"max_tokens": 0, "max_completion_tokens": 2});
        let (rest, none) = zero(both, true);
        assert!(!none && !rest.contains_key("max_tokens"));
    }
}

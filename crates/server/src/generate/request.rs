//! The body of a generate request.

use serde_json::{Map, Value};

use crate::app::App;
use crate::completions::{PROMPTS_MAX, token_ids};
use crate::error::ApiError;
use crate::field_rules;
use crate::fields::{Fields, too_long, wrong_type};
use crate::foreign_fields;
use crate::generate::response::GenerateStyle;
use crate::grammar::Form;
use crate::ids;
use crate::sampling::{GenerationOptions, cache_salt, priority};
use crate::sequence_group::Planned;

/// Path of the schema that outputs obey.
pub(super) const SCHEMA: &str = "sampling_params.json_schema";
/// Output tokens unless the request says otherwise.
const MAX_TOKENS_DEFAULT: usize = 128;

/// The names that differ here from those of the other paths.
const NAMES: [(&str, &str); 3] = [
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("sampling_seed", "seed"),
];

/// Sampling parameters that mean something.
pub(crate) const SAMPLING_PARAMS: &[&str] = &[
    "max_new_tokens",
    "min_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "no_stop_trim",
    "n",
    "sampling_seed",
    "json_schema",
];

/// Sampling parameters that would change the answer and cannot be honoured.
const SAMPLING_REFUSED: &[&str] = &[
    "regex",
    "ebnf",
    "structural_tag",
    "stop_regex",
    "custom_params",
    "logit_bias",
];

/// A request that was checked and tokenised.
#[derive(Debug)]
pub(crate) struct GenerateRequest {
    /// All choices of the first prompt, then those of the second, ...
    pub(crate) planned: Vec<Planned>,
    /// Choices per prompt.
    pub(crate) choices: usize,
    /// Whether to send events.
    pub(crate) stream: bool,
    /// What the answer looks like.
    pub(crate) style: GenerateStyle,
    /// What the model must write, if that is not left to it.
    pub(crate) form: Option<Form>,
}

impl GenerateRequest {
    /// Checks everything that needs no device.
    pub(crate) fn read(app: &App, body: &Map<String, Value>) -> Result<Self, ApiError> {
        let fields = Fields::root(body);
        let rules = &app.config.rules;
        foreign_fields::refuse(&fields, foreign_fields::GENERATE)?;
        field_rules::check(&fields, rules.strict_fields, &app.metrics)?;
        if fields.boolean("return_logprob")? == Some(true) {
            let message = "'return_logprob' is not supported here; use /v1/completions.";
            return Err(ApiError::invalid(
                "unsupported_parameter",
                "return_logprob",
                message,
            ));
        }
        let given = match fields.get("sampling_params") {
            None => Map::new(),
            Some(Value::Object(params)) => renamed(params, rules.strict_fields)?,
            Some(other) => return Err(wrong_type("sampling_params", "an object", other)),
        };
        let form = given.get("json_schema").map(schema).transpose()?;
        let given = Value::Object(given);
        let options = Fields::of(&given, "sampling_params")
            .and_then(|params| GenerationOptions::read(&params, &app.files, rules))
            .map_err(named_as_sent)?;
        let mut options = options;
        options.max_tokens.get_or_insert(MAX_TOKENS_DEFAULT);
        options.priority = priority(&fields, rules)?;
        options.cache_salt = cache_salt(&fields)?;
        app.check_choices(options.choices)?;
        let (param, prompts) = prompts(app, &fields)?;
        app.check_sequences(prompts.ids.len(), options.choices)?;
        let mut planned = Vec::new();
        for ids in prompts.ids {
            let limit = options.limit(ids.len(), app.engine.info(), rules, param)?;
            for choice in 0..options.choices {
                planned.push(Planned {
                    request: options.request(ids.clone(), limit, choice),
                    text: options.text.clone(),
                });
            }
        }
        let rid = fields.text("rid", ids::RID_LENGTH_MAX)?;
        Ok(GenerateRequest {
            style: GenerateStyle {
                id: rid.map_or_else(|| ids::random_id("gen-"), str::to_owned),
                list: prompts.list || options.choices > 1,
                sequences: planned.len(),
            },
            planned,
            choices: options.choices,
            stream: fields.boolean("stream")?.unwrap_or(false),
            form: form.map(Form::json),
        })
    }
}

/// The schema itself, which may come as its text.
fn schema(value: &Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(schema) => Ok(schema.clone()),
        Value::String(text) => serde_json::from_str(text).map_err(|error| {
            let message = format!("Invalid '{SCHEMA}': expected the text of an object, {error}.");
            ApiError::invalid("invalid_json_schema", SCHEMA, message)
        }),
        other => Err(wrong_type(SCHEMA, "an object or its text", other)),
    }
}

/// Prompts and whether they came as a list.
struct Prompts {
    ids: Vec<Vec<u32>>,
    list: bool,
}

/// `text` or `input_ids`, one or several, and which of the two.
fn prompts(app: &App, fields: &Fields) -> Result<(&'static str, Prompts), ApiError> {
    let (text, ids) = (fields.get("text"), fields.get("input_ids"));
    let (param, prompts) = match (text, ids) {
        (Some(text), None) => ("text", texts(app, text)?),
        (None, Some(ids)) => ("input_ids", lists(ids, app.files.vocabulary.len())?),
        (Some(_), Some(_)) => {
            let message = "'text' and 'input_ids' exclude each other.";
            return Err(ApiError::invalid("invalid_value", "input_ids", message));
        }
        (None, None) => {
            let message = "Missing required parameter: 'text' or 'input_ids'.";
            let code = "missing_required_parameter";
            return Err(ApiError::invalid(code, "text", message));
        }
    };
    if prompts.ids.is_empty() {
        let message = format!("Invalid '{param}': expected at least one prompt.");
        return Err(ApiError::invalid("empty_array", param, message));
    }
    if prompts.ids.iter().any(Vec::is_empty) {
        let message = format!("Invalid '{param}': expected at least one token.");
        return Err(ApiError::invalid("invalid_value", param, message));
    }
    Ok((param, prompts))
}

fn texts(app: &App, value: &Value) -> Result<Prompts, ApiError> {
    let one = |(index, value): (usize, &Value)| match value {
        Value::String(text) => app.encode(text, "text"),
        other => Err(wrong_type(&format!("text.[{index}]"), "a string", other)),
    };
    match value {
        Value::String(text) => Ok(Prompts {
            ids: vec![app.encode(text, "text")?],
            list: false,
        }),
        Value::Array(texts) if texts.len() <= PROMPTS_MAX => Ok(Prompts {
            ids: texts
                .iter()
                .enumerate()
                .map(one)
                .collect::<Result<_, _>>()?,
            list: true,
        }),
        Value::Array(texts) => Err(too_long("text", texts.len(), PROMPTS_MAX)),
        other => Err(wrong_type("text", "a string or an array of strings", other)),
    }
}

fn lists(value: &Value, vocabulary: usize) -> Result<Prompts, ApiError> {
    let path = "input_ids";
    let Value::Array(values) = value else {
        return Err(wrong_type(path, "an array", value));
    };
    let one = |(index, value): (usize, &Value)| {
        let path = format!("{path}.[{index}]");
        match value {
            Value::Array(ids) => token_ids(ids, &path, vocabulary),
            other => Err(wrong_type(&path, "an array of token ids", other)),
        }
    };
    match values.first() {
        Some(Value::Array(_)) if values.len() > PROMPTS_MAX => {
            Err(too_long(path, values.len(), PROMPTS_MAX))
        }
        Some(Value::Array(_)) => Ok(Prompts {
            ids: values
                .iter()
                .enumerate()
                .map(one)
                .collect::<Result<_, _>>()?,
            list: true,
        }),
        None => Ok(Prompts {
            ids: Vec::new(),
            list: true,
        }),
        Some(_) => Ok(Prompts {
            ids: vec![token_ids(values, path, vocabulary)?],
            list: false,
        }),
    }
}

/// The parameters under the names of the other paths. Names of those are refused here, and by strict
/// servers everything that nobody knows.
fn renamed(params: &Map<String, Value>, strict: bool) -> Result<Map<String, Value>, ApiError> {
    let fields = Fields::nested(params, "sampling_params");
    foreign_fields::refuse(&fields, foreign_fields::SAMPLING_PARAMS)?;
    let mut renamed = Map::new();
    for (name, value) in params.iter().filter(|(_, value)| !value.is_null()) {
        if SAMPLING_REFUSED.contains(&name.as_str()) {
            if foreign_fields::is_harmless(name, value) {
                continue;
            }
            let message = format!("The parameter '{name}' is not supported by this server.");
            let path = fields.path(name);
            return Err(ApiError::invalid("unsupported_parameter", path, message));
        }
        if SAMPLING_PARAMS.contains(&name.as_str()) {
            let other = NAMES.iter().find(|(here, _)| here == name);
            let name = other.map_or(name.as_str(), |(_, there)| there);
            renamed.insert(name.to_owned(), value.clone());
        } else if strict {
            return Err(field_rules::unknown(&fields.path(name)));
        }
    }
    Ok(renamed)
}

/// The error about the parameter as the client calls it.
fn named_as_sent(mut error: ApiError) -> ApiError {
    for (here, there) in NAMES {
        let path = format!("sampling_params.{there}");
        if error.param.as_ref() == Some(&path) {
            let sent = format!("sampling_params.{here}");
            error.message = error.message.replace(&path, &sent);
            error.param = Some(sent);
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_those_of_the_other_server() {
        let sent = json!({"max_new_tokens": 3, "sampling_seed": 1, "top_k": null,
            "temperature": 0.5, "max_tokens": null});
        let renamed = renamed(sent.as_object().unwrap(), true).unwrap();
        let expected = json!({"max_tokens": 3, "seed": 1, "temperature": 0.5});
        assert_eq!(Value::Object(renamed), expected);
        let error = ApiError::invalid("c", "sampling_params.seed", "bad 'sampling_params.seed'");
        let error = named_as_sent(error);
        assert_eq!(
            error.param.as_deref(),
            Some("sampling_params.sampling_seed")
        );
        assert_eq!(error.message, "bad 'sampling_params.sampling_seed'");
    }

    #[test]
    fn constraints_are_not_dropped_in_silence() {
        let sent = json!({"ebnf": "root ::= 'a'"});
        let error = renamed(sent.as_object().unwrap(), false).unwrap_err();
        assert_eq!(error.code, Some("unsupported_parameter"));
        assert!(renamed(json!({"regex": null}).as_object().unwrap(), true).is_ok());
    }

    #[test]
    fn parameters_of_other_paths_are_refused_and_strict_servers_know_all_others() {
        let read = |sent: Value, strict| {
            renamed(sent.as_object().unwrap(), strict).map_err(|error| error.param.unwrap())
        };
        let foreign = "sampling_params.max_tokens".to_owned();
        assert_eq!(read(json!({"max_tokens": 9}), false), Err(foreign));
        let sent = json!({"never_heard_of": 1});
        assert_eq!(read(sent.clone(), false), Ok(Map::new()));
        let unknown = "sampling_params.never_heard_of".to_owned();
        assert_eq!(read(sent, true), Err(unknown));
    }

    #[test]
    fn schemas_come_as_objects_or_as_text() {
        let object = json!({"type": "object"});
        for sent in [object.clone(), json!(object.to_string())] {
            assert_eq!(Value::Object(schema(&sent).unwrap()), object);
        }
        for (sent, code) in [
            (json!("{"), "invalid_json_schema"),
            (json!("[1]"), "invalid_json_schema"),
            (json!(true), "invalid_type"),
        ] {
            let error = schema(&sent).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref()),
                (Some(code), Some(SCHEMA))
            );
        }
    }

    #[test]
    fn ids_come_alone_or_in_lists() {
        let alone = lists(&json!([1, 2]), 9).unwrap();
        assert_eq!((alone.ids, alone.list), (vec![vec![1, 2]], false));
        let two = lists(&json!([[1], [2]]), 9).unwrap();
        assert_eq!((two.ids, two.list), (vec![vec![1], vec![2]], true));
        for (wrong, param) in [
            (json!("a"), "input_ids"),
            (json!([[1], 2]), "input_ids.[1]"),
            (json!([9]), "input_ids.[0]"),
            (json!([[1, "a"]]), "input_ids.[0].[1]"),
        ] {
            let error = lists(&wrong, 9).err().unwrap();
            assert_eq!(error.param.as_deref(), Some(param), "{wrong}");
        }
    }
}

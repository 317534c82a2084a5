//! Requests of other APIs in the words of the chat API, so that there is one way through the server.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::field_rules;
use crate::fields::Fields;
use crate::foreign_fields::{self, Foreign};
use crate::metrics::Metrics;

/// Tools of one request at most, those that are skipped included.
pub(crate) const TOOLS_MAX: usize = 128;

/// Fields that are neither Anthropic's nor part of OpenAI's newer API and mean what they mean in a
/// chat request.
pub(crate) const EXTENSIONS: &[&str] = &[
    "min_tokens",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "include_stop_str_in_output",
    "no_stop_trim",
    "ignore_eos",
    "skip_special_tokens",
    "logit_bias",
    "chat_template_kwargs",
    "enable_thinking",
    "rid",
    "priority",
    "cache_salt",
    "spec_decode",
    "speculative",
];

/// A chat request made of another one.
#[derive(Debug, Default)]
pub(crate) struct Translation {
    /// Its body.
    pub(crate) body: Map<String, Value>,
    /// Of each of its tools, the place in the client's list.
    pub(crate) tools: Vec<usize>,
}

impl Translation {
    /// Sets a field of the chat request.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.body.insert(name.to_owned(), value.into());
    }

    /// Takes over fields that have the same meaning in both.
    pub(crate) fn keep(&mut self, fields: &Fields, names: &[&str]) {
        for &name in names {
            if let Some(value) = fields.get(name) {
                self.set(name, value.clone());
            }
        }
    }

    /// Names the client's field instead of the chat request's. `names` are beginnings of paths and
    /// what the client has in their place; paths into messages have no counterpart.
    pub(crate) fn blame(&self, mut error: ApiError, names: &[(&str, &str)]) -> ApiError {
        let Some(param) = error.param.take() else {
            return error;
        };
        let own = self.own_path(&param, names);
        let quoted = |path: &str| format!("'{path}'");
        error.message = error.message.replace(&quoted(&param), &quoted(&own));
        error.with_param(&own)
    }

    fn own_path(&self, param: &str, names: &[(&str, &str)]) -> String {
        if let Some((index, rest)) = tool_place(param) {
            let index = self.tools.get(index).copied().unwrap_or(index);
            return format!("tools.[{index}]{}", rest.replace(".function", ""));
        }
        for &(from, to) in names {
            match param.strip_prefix(from) {
                Some(_) if from == "messages" => return to.to_owned(),
                Some(rest) if rest.is_empty() || rest.starts_with('.') => {
                    return format!("{to}{rest}");
                }
                _ => {}
            }
        }
        param.to_owned()
    }
}

/// The index in `tools.[INDEX]` and what follows.
fn tool_place(param: &str) -> Option<(usize, &str)> {
    let (index, rest) = param.strip_prefix("tools.[")?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

/// The names of an API's fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// They mean something, as do [`EXTENSIONS`].
    pub(crate) honoured: &'static [&'static str],
    /// Hints without any effect.
    pub(crate) ignored: &'static [&'static str],
    /// Of other APIs.
    pub(crate) foreign: &'static [Foreign],
}

/// Counts fields without effect, and refuses what would change the answer and cannot be honoured; a
/// strict server refuses those that nobody knows, too.
pub(crate) fn check_names(
    fields: &Fields,
    known: &Names,
    strict: bool,
    metrics: &Metrics,
) -> Result<(), ApiError> {
    foreign_fields::refuse(fields, known.foreign)?;
    for name in fields.names() {
        if known.ignored.contains(&name) {
            metrics.count_ignored(name);
        } else if known.honoured.contains(&name) || EXTENSIONS.contains(&name) {
            continue;
        } else if field_rules::REFUSED.contains(&name) {
            field_rules::refuse(fields, name)?;
        } else if strict && !known.foreign.iter().any(|(foreign, _)| *foreign == name) {
            return Err(field_rules::unknown(&fields.path(name)));
        }
    }
    Ok(())
}

/// A tool as a chat request has it; what the client left out stays out.
pub(crate) fn function_tool(
    name: Option<&Value>,
    description: Option<&Value>,
    parameters: Option<&Value>,
    strict: Option<&Value>,
) -> Value {
    let parts = [
        ("name", name),
        ("description", description),
        ("parameters", parameters),
        ("strict", strict),
    ];
    let function: Map<String, Value> = parts
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.clone())))
        .collect();
    json!({"type": "function", "function": function})
}

/// A choice of one tool as a chat request has it.
pub(crate) fn named_tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsConfig;

    #[test]
    fn errors_name_the_clients_own_field() {
        let translation = Translation {
            tools: vec![1, 4],
            ..Translation::default()
        };
        let names = [
            ("messages", "input"),
            ("response_format.json_schema", "text.format"),
            ("response_format", "text.format"),
        ];
        for (param, own) in [
            ("messages", "input"),
            ("messages.[3].content", "input"),
            ("response_format", "text.format"),
            ("response_format.json_schema.name", "text.format.name"),
            ("response_formats", "response_formats"),
            ("tools.[1].function.name", "tools.[4].name"),
            ("tools.[7]", "tools.[7]"),
            ("tools", "tools"),
            ("temperature", "temperature"),
        ] {
            let message = format!("Invalid '{param}'.");
            let error = ApiError::invalid("invalid_value", param, message);
            let error = translation.blame(error, &names);
            assert_eq!(error.param.as_deref(), Some(own));
            assert_eq!(error.message, format!("Invalid '{own}'."));
        }
        let about_nothing = ApiError::not_json("no");
        assert_eq!(
            translation.blame(about_nothing.clone(), &names),
            about_nothing
        );
    }

    #[test]
    fn only_strict_servers_refuse_unknown_fields() {
        let metrics = Metrics::new("m", &MetricsConfig::default());
        let body = json!({"a": 1, "b": 2, "seed": 3, "c": null});
        let fields = Fields::root(body.as_object().unwrap());
        let check = |honoured: &'static [&str], strict| {
            let known = Names {
                honoured,
                ignored: &["b"],
                foreign: &[],
            };
            check_names(&fields, &known, strict, &metrics).map_err(|error| error.param)
        };
        assert_eq!(check(&[], false), Ok(()));
        assert_eq!(check(&["a"], true), Ok(()));
        assert_eq!(check(&[], true), Err(Some("a".to_owned())));
    }

    #[test]
    fn what_would_change_the_answer_is_refused() {
        let metrics = Metrics::new("m", &MetricsConfig::default());
        let known = Names {
            honoured: &["regex"],
            ignored: &[],
            foreign: &[("far", Some("near"))],
        };
        for (body, refused) in [
            (json!({"guided_json": {}}), Some("guided_json")),
            (json!({"guided_json": false, "regex": "a"}), None),
            (json!({"far": 1}), Some("far")),
            (json!({"far": false}), None),
        ] {
            let fields = Fields::root(body.as_object().unwrap());
            let error = check_names(&fields, &known, true, &metrics).err();
            assert_eq!(
                error.and_then(|error| error.param).as_deref(),
                refused,
                "{body}"
            );
        }
    }
}

//! The body of a chat request.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::answer::Streaming;
use crate::app::App;
use crate::chat::response::ChatStyle;
use crate::chat::tools::ToolOptions;
use crate::error::{ApiError, shorten};
use crate::field_rules;
use crate::fields::{Fields, wrong_type};
use crate::foreign_fields;
use crate::grammar::Form;
use crate::ids;
use crate::messages;
use crate::model_files::ModelFiles;
use crate::sampling::{GenerationOptions, RequestRules};
use crate::sequence_group::Planned;
use crate::template::{Conversation, Refusal, ends_in_reasoning};
use crate::text_stream::Split;
use crate::vocabulary::Vocabulary;

/// Entries of `chat_template_kwargs` at most.
const VARIABLES_MAX: usize = 32;
/// Alternatives per token at most.
const TOP_LOGPROBS_MAX: i64 = 20;

/// The token that opens every turn in the templates that this server knows.
const TURN: &str = "<|im_start|>";

/// A request that was checked, rendered and tokenised.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    /// One sequence per choice.
    pub(crate) planned: Vec<Planned>,
    /// How many.
    pub(crate) choices: usize,
    /// Whether and how to stream.
    pub(crate) streaming: Streaming,
    /// What the answer looks like.
    pub(crate) style: ChatStyle,
    /// What the model must write, if that is not left to it.
    pub(crate) form: Option<Form>,
    /// The client's name for the request.
    pub(crate) rid: Option<String>,
}

/// Renders the conversation of a request body: the prompt as text.
pub(crate) fn prompt(
    fields: &Fields,
    files: &ModelFiles,
    rules: &RequestRules,
) -> Result<String, ApiError> {
    let conversation = conversation(fields, rules)?;
    let Some(template) = &files.template else {
        let message = "This model has no chat template; use /v1/completions.";
        return Err(ApiError::invalid("invalid_messages", "messages", message));
    };
    template.render(&conversation).map_err(|Refusal(reason)| {
        ApiError::invalid("invalid_messages", "messages", shorten(&reason))
    })
}

/// Tokens of the prompt that a request body makes, also if there are too many of them.
pub(crate) fn count_tokens(app: &App, body: &Map<String, Value>) -> Result<usize, ApiError> {
    let fields = Fields::root(body);
    let text = prompt(&fields, &app.files, &app.config.rules)?;
    let encoded = app.encode(&text, "messages");
    match encoded {
        Ok(ids) => Ok(ids.len()),
        Err(error) => error.overflow.map_or(Err(error), |long| Ok(long.prompt)),
    }
}

impl ChatRequest {
    /// Checks everything that needs no device.
    pub(crate) fn read(app: &App, body: &Map<String, Value>) -> Result<Self, ApiError> {
        let fields = Fields::root(body);
        let rules = &app.config.rules;
        let model = app.model(&fields)?;
        foreign_fields::refuse(&fields, foreign_fields::OPENAI)?;
        field_rules::check(&fields, rules.strict_fields, &app.metrics)?;
        let options = GenerationOptions::read(&fields, &app.files, rules)?;
        app.check_choices(options.choices)?;
        let streaming = Streaming::read(&fields, app.config.stream_usage)?;
        let top_logprobs = top_logprobs(&fields)?;
        let separate = fields.boolean("separate_reasoning")?.unwrap_or(true);
        let trace = fields.boolean("return_step_trace")?.unwrap_or(false);
        let style = ChatStyle {
            id: ids::random_id("chatcmpl-"),
            created: ids::unix_seconds(),
            model,
            logprobs: top_logprobs.is_some(),
            include_reasoning: fields.boolean("include_reasoning")?.unwrap_or(true),
            stream_reasoning: fields.boolean("stream_reasoning")?.unwrap_or(true),
            separate_reasoning: separate,
            spec_details: fields
                .boolean("return_spec_tokens_details")?
                .unwrap_or(false),
            step_trace: trace,
            service_tier: fields.string("service_tier")?.is_some(),
        };
        let tools = ToolOptions::read(&fields)?;
        let forced = tools.forced();
        let tools = tools.set.map(Arc::new);
        let text = prompt(&fields, &app.files, rules)?;
        let prompt = app.encode(&text, "messages")?;
        let turn_end = turn_end(&fields, &app.files.vocabulary, &prompt)?;
        let info = app.engine.info();
        let limit = options.limit(prompt.len(), info, rules, "messages")?;
        let in_reasoning = ends_in_reasoning(&text);
        let form = Form::read(&fields, forced, tools.is_some(), in_reasoning)?;
        let split = match (separate, in_reasoning) {
            (false, in_reasoning) => Split::Joined { in_reasoning },
            (true, true) => Split::StartsInReasoning,
            (true, false) => Split::StartsInContent,
        };
        let planned = (0..options.choices)
            .map(|choice| {
                let mut request = options.request(prompt.clone(), limit, choice);
                request.logprobs = top_logprobs;
                request.trace = trace;
                request.turn_end = turn_end;
                let mut text = options.text.clone();
                text.split = split;
                text.tools = tools.clone();
                Planned { request, text }
            })
            .collect();
        Ok(ChatRequest {
            planned,
            choices: options.choices,
            streaming,
            style,
            form,
            rid: fields.text("rid", ids::RID_LENGTH_MAX)?.map(str::to_owned),
        })
    }
}

/// Tokens of the prompt that the next turn's prompt begins with: all but what opens the answer, which
/// is rendered differently once it has ended.
fn turn_end(
    fields: &Fields,
    vocabulary: &Vocabulary,
    prompt: &[u32],
) -> Result<Option<usize>, ApiError> {
    let is_set = |name| fields.boolean(name);
    let closed = is_set("add_generation_prompt")? == Some(false)
        && is_set("continue_final_message")? != Some(true);
    if closed {
        return Ok(Some(prompt.len()));
    }
    Ok(last_turn(vocabulary, prompt))
}

/// Where the last turn of a prompt opens.
pub(crate) fn last_turn(vocabulary: &Vocabulary, prompt: &[u32]) -> Option<usize> {
    let opens = |&id: &u32| vocabulary.is_added(id) && vocabulary.bytes(id) == TURN.as_bytes();
    prompt.iter().rposition(opens)
}

/// Alternatives to report, if log-probabilities are asked for.
fn top_logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let on = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, TOP_LOGPROBS_MAX)?;
    if !on && top.is_some_and(|top| top > 0) {
        let message = "'top_logprobs' needs 'logprobs': true.";
        return Err(ApiError::invalid("invalid_value", "top_logprobs", message));
    }
    Ok(on.then(|| top.and_then(|top| usize::try_from(top).ok()).unwrap_or(0)))
}

/// What the template is given for a request body.
pub(crate) fn conversation(
    fields: &Fields,
    rules: &RequestRules,
) -> Result<Conversation, ApiError> {
    let messages = messages::normalise(fields, rules.lenient_messages)?;
    let continue_final = fields.boolean("continue_final_message")?.unwrap_or(false);
    let generation_prompt = fields.boolean("add_generation_prompt")?;
    if continue_final {
        if generation_prompt == Some(true) {
            let message =
                "'add_generation_prompt' and 'continue_final_message' exclude each other.";
            return Err(ApiError::invalid(
                "invalid_value",
                "add_generation_prompt",
                message,
            ));
        }
        let open = messages
            .last()
            .is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
        if !open {
            let message = "'continue_final_message' needs a last message of the role 'assistant' \
                           without tool calls.";
            return Err(ApiError::invalid(
                "invalid_value",
                "continue_final_message",
                message,
            ));
        }
    }
    Ok(Conversation {
        messages,
        tools: ToolOptions::read(fields)?.shown,
        variables: variables(fields, rules)?,
        continue_final,
        generation_prompt: generation_prompt.unwrap_or(true),
    })
}

/// Variables of the template: the server's, then what each field says about thinking, then
/// `chat_template_kwargs`.
fn variables(fields: &Fields, rules: &RequestRules) -> Result<Map<String, Value>, ApiError> {
    let mut variables = rules.template_variables.clone();
    if let Some(thinking) = thinking(fields)? {
        variables.insert("enable_thinking".into(), thinking.into());
    }
    let Some(own) = fields.object("chat_template_kwargs")? else {
        return Ok(variables);
    };
    let entries = own.entries();
    if entries.len() > VARIABLES_MAX {
        return Err(crate::fields::too_long(
            own.own_path(),
            entries.len(),
            VARIABLES_MAX,
        ));
    }
    for name in ["enable_thinking", "preserve_thinking"] {
        own.boolean(name)?;
    }
    for (name, value) in entries {
        let reserved = [
            "messages",
            "tools",
            "add_generation_prompt",
            "continue_final_message",
        ];
        if reserved.contains(&name.as_str()) {
            let message = format!("'{name}' cannot be set through 'chat_template_kwargs'.");
            return Err(ApiError::invalid("invalid_value", own.path(name), message));
        }
        if !value.is_null() {
            variables.insert(name.clone(), value.clone());
        }
    }
    Ok(variables)
}

/// `enable_thinking`, else `reasoning`, else `reasoning_effort`.
fn thinking(fields: &Fields) -> Result<Option<bool>, ApiError> {
    let effort = |fields: &Fields, name: &str| -> Result<Option<bool>, ApiError> {
        let levels = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
        match fields.string(name)? {
            None => Ok(None),
            Some(level) if levels.contains(&level) => Ok(Some(level != "none")),
            Some(level) => {
                let message = format!(
                    "Invalid value: '{}'. Supported values are {}.",
                    shorten(level),
                    levels.map(|level| format!("'{level}'")).join(", ")
                );
                Err(ApiError::invalid(
                    "invalid_value",
                    fields.path(name),
                    message,
                ))
            }
        }
    };
    let by_effort = effort(fields, "reasoning_effort")?;
    let mut by_object = None;
    if let Some(value) = fields.get("reasoning") {
        if !value.is_object() {
            return Err(wrong_type("reasoning", "an object", value));
        }
        let reasoning = Fields::of(value, "reasoning")?;
        if reasoning.get("max_tokens").is_some() {
            let message = "A budget of reasoning tokens is not supported by this server.";
            let path = reasoning.path("max_tokens");
            return Err(ApiError::invalid("unsupported_parameter", path, message));
        }
        let level = effort(&reasoning, "effort")?;
        by_object = reasoning.boolean("enabled")?.or(level);
    }
    Ok(fields
        .boolean("enable_thinking")?
        .or(by_object)
        .or(by_effort))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(extra: Value) -> Value {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        body
    }

    fn read(extra: Value) -> Result<Conversation, ApiError> {
        let body = body(extra);
        let mut rules = RequestRules::default();
        rules
            .template_variables
            .insert("enable_thinking".into(), false.into());
        conversation(&Fields::root(body.as_object().unwrap()), &rules)
    }

    #[test]
    fn thinking_has_many_switches() {
        let on = |extra: Value| read(extra).unwrap().variables["enable_thinking"] == true;
        assert!(!on(json!({})));
        for extra in [
            json!({"enable_thinking": true}),
            json!({"reasoning_effort": "low"}),
            json!({"reasoning": {"enabled": true}}),
            json!({"reasoning": {"effort": "high"}}),
            json!({"chat_template_kwargs": {"enable_thinking": true}}),
            json!({"enable_thinking": true, "reasoning_effort": "none"}),
        ] {
            assert!(on(extra.clone()), "{extra}");
        }
        for extra in [
            json!({"reasoning_effort": "none"}),
            json!({"reasoning": {"effort": "none"}}),
            json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false}}),
        ] {
            assert!(!on(extra.clone()), "{extra}");
        }
    }

    #[test]
    fn refusals_name_the_field() {
        for (extra, param) in [
            (json!({"reasoning_effort": "much"}), "reasoning_effort"),
            (json!({"reasoning": "high"}), "reasoning"),
            (
                json!({"reasoning": {"max_tokens": 5}}),
                "reasoning.max_tokens",
            ),
            (
                json!({"chat_template_kwargs": {"tools": []}}),
                "chat_template_kwargs.tools",
            ),
            (
                json!({"chat_template_kwargs": {"enable_thinking": "no"}}),
                "chat_template_kwargs.enable_thinking",
            ),
            (
                json!({"continue_final_message": true}),
                "continue_final_message",
            ),
        ] {
            let error = read(extra.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{extra}");
        }
    }

    #[test]
    fn a_turn_ends_before_what_opens_the_answer() {
        let vocabulary = crate::testing::byte_vocabulary();
        let text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n";
        let prompt = vocabulary.encode(text).unwrap();
        let turn = vocabulary
            .encode("<|im_start|>user\nhi<|im_end|>\n")
            .unwrap();
        let end = |body: Value, prompt: &[u32]| {
            turn_end(
                &Fields::root(body.as_object().unwrap()),
                &vocabulary,
                prompt,
            )
            .unwrap()
        };
        assert_eq!(end(json!({}), &prompt), Some(turn.len()));
        assert_eq!(prompt[..turn.len()], turn);
        let closed = json!({"add_generation_prompt": false});
        assert_eq!(
            end(closed, &turn),
            Some(turn.len()),
            "the next turn may begin with all of it"
        );
        let open = json!({"continue_final_message": true, "add_generation_prompt": false});
        assert_eq!(end(open, &prompt), Some(turn.len()));
        assert_eq!(
            end(
                json!({}),
                &vocabulary.encode("of another template").unwrap()
            ),
            None
        );
    }

    #[test]
    fn alternatives_need_log_probabilities() {
        let read = |body: Value| top_logprobs(&Fields::root(body.as_object().unwrap()));
        assert_eq!(read(json!({"logprobs": true})).unwrap(), Some(0));
        assert_eq!(
            read(json!({"logprobs": true, "top_logprobs": 3})).unwrap(),
            Some(3)
        );
        assert_eq!(
            read(json!({"logprobs": false, "top_logprobs": 0})).unwrap(),
            None
        );
        assert!(read(json!({"top_logprobs": 3})).is_err());
        assert!(read(json!({"logprobs": true, "top_logprobs": 21})).is_err());
    }
}

//! Renders a conversation with the checkpoint's own chat template, byte for byte as the reference
//! renderer (Jinja2 as transformers sets it up) does.

mod python_json;
mod python_text;
#[cfg(test)]
mod tests;

use std::fmt;

use engine::ModelError;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value as TemplateValue};
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

const TEMPLATE: &str = "chat";
const END_OF_TURN: &str = "<|im_end|>\n";
const EMPTY_ANSWER: &str = "\n</think>\n\n";

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ChatTemplate")
            .finish_non_exhaustive()
    }
}

/// What a template is given.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Messages in the form the template expects.
    pub messages: Vec<Value>,
    /// Tool definitions as received; none = the template sees no `tools`.
    pub tools: Vec<Value>,
    /// Further variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// The last message is an unfinished answer to go on with.
    pub continue_final: bool,
    /// Open the assistant's turn at the end.
    pub generation_prompt: bool,
}

/// The template refused the conversation; the text is the template's own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl ChatTemplate {
    /// Compiles a template; `file` names it in errors.
    pub fn new(source: &str, file: &str) -> Result<Self, ModelError> {
        let fault = |reason: String| ModelError::File {
            file: file.to_owned(),
            reason,
        };
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| fault(error.to_string()))?;
        let mut environment = Environment::new();
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(python_text::method);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", python_json::to_json);
        environment.add_filter("trim", python_text::trim);
        environment
            .add_template_owned(TEMPLATE, source.to_owned())
            .map_err(|error| fault(format!("{error:#}")))?;
        Ok(ChatTemplate { environment })
    }

    /// The prompt.
    pub fn render(&self, conversation: &Conversation) -> Result<String, Refusal> {
        let refuse = |error: minijinja::Error| {
            Refusal(
                error
                    .detail()
                    .map_or_else(|| error.to_string(), str::to_owned),
            )
        };
        let prompt = conversation.generation_prompt && !conversation.continue_final;
        let mut variables = conversation.variables.clone();
        variables.insert("messages".into(), conversation.messages.clone().into());
        if !conversation.tools.is_empty() {
            variables.insert("tools".into(), conversation.tools.clone().into());
        }
        variables.insert("add_generation_prompt".into(), prompt.into());
        let template = self.environment.get_template(TEMPLATE).map_err(refuse)?;
        let mut text = template.render(Serde(&variables)).map_err(refuse)?;
        if conversation.continue_final {
            reopen(&mut text, conversation.messages.last());
        }
        Ok(text)
    }
}

/// Whether a prompt ends inside an open reasoning block.
pub fn ends_in_reasoning(prompt: &str) -> bool {
    let turn = prompt
        .rfind("<|im_start|>")
        .map_or(prompt, |start| &prompt[start..]);
    match (turn.rfind("<think>"), turn.rfind("</think>")) {
        (Some(open), Some(close)) => open > close,
        (open, None) => open.is_some(),
        (None, Some(_)) => false,
    }
}

/// Removes the end of the last turn, and of its reasoning if there is no answer yet.
fn reopen(text: &mut String, last: Option<&Value>) {
    if text.ends_with(END_OF_TURN) {
        text.truncate(text.len() - END_OF_TURN.len());
    }
    let field = |name| {
        last.and_then(|m| m.get(name))
            .and_then(Value::as_str)
            .unwrap_or("")
    };
    let unanswered = field("content").is_empty() && !field("reasoning_content").is_empty();
    if unanswered && text.ends_with(EMPTY_ANSWER) {
        text.truncate(text.len() - EMPTY_ANSWER.len());
    }
}

fn raise_exception(message: String) -> Result<TemplateValue, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

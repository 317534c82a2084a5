//! A user's message as a prompt, for commands without a server.

use serde_json::{Map, json};

use super::exit::Failure;
use crate::model_files::ModelFiles;
use crate::template::Conversation;

/// The text of a conversation of one message, up to where the answer begins. `flag` gave the
/// message.
pub fn render(
    flag: &str,
    files: &ModelFiles,
    message: &str,
    enable_thinking: Option<bool>,
) -> Result<String, Failure> {
    let Some(template) = &files.template else {
        let message =
            format!("{flag}: the model has no chat template; give --chat-template or --prompt");
        return Err(Failure::usage(message));
    };
    let mut variables = Map::new();
    if let Some(enabled) = enable_thinking {
        variables.insert("enable_thinking".to_owned(), enabled.into());
    }
    let conversation = Conversation {
        messages: vec![json!({"role": "user", "content": message})],
        variables,
        generation_prompt: true,
        ..Conversation::default()
    };
    template
        .render(&conversation)
        .map_err(|refusal| Failure::usage(format!("{flag}: {refusal}")))
}

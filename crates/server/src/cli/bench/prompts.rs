//! What the model is asked.

use std::path::PathBuf;

use crate::cli::chat_prompt;
use crate::cli::exit::Failure;
use crate::model_files::ModelFiles;

/// One message of a user.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// As given.
    pub text: String,
    /// Behind the chat template.
    pub ids: Vec<u32>,
}

/// Where messages come from.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// `--prompt`.
    pub texts: &'a [String],
    /// `--prompt-file`.
    pub files: &'a [PathBuf],
    /// Where neither is given.
    pub defaults: &'a [&'a str],
    /// Value of `enable_thinking` in the chat template.
    pub enable_thinking: Option<bool>,
}

impl Asked<'_> {
    /// The messages given, else the defaults.
    pub fn prompts(&self, files: &ModelFiles) -> Result<Vec<Prompt>, Failure> {
        let mut texts: Vec<(&str, String)> = Vec::new();
        texts.extend(self.texts.iter().map(|text| ("--prompt", text.clone())));
        for path in self.files {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::usage(format!("--prompt-file {}: {error}", path.display()))
            })?;
            texts.push(("--prompt-file", text));
        }
        if texts.is_empty() {
            let defaults = self.defaults.iter();
            texts.extend(defaults.map(|&text| ("bench", text.to_owned())));
        }
        let prompt = |(flag, text): (&str, String)| {
            let rendered = chat_prompt::render(flag, files, &text, self.enable_thinking)?;
            let ids = files.vocabulary.encode(&rendered).map_err(Failure::usage)?;
            Ok(Prompt { text, ids })
        };
        texts.into_iter().map(prompt).collect()
    }
}

//! `spinney render`: the prompt of a chat request.

use std::io::Read;

use serde_json::{Map, Value};

use super::args::RenderArgs;
use super::exit::{Exit, Failure};
use super::{checkpoints, logging, print};
use crate::chat::conversation;
use crate::fields::Fields;
use crate::model_files::ModelFiles;
use crate::sampling::RequestRules;

/// Renders and prints.
pub fn run(args: &RenderArgs) -> Result<Exit, Failure> {
    logging::start(&args.log, "warn")?;
    let target = checkpoints::target(args.model_path.as_deref(), args.hub)?;
    let files = ModelFiles::read(&target, args.template.chat_template.as_deref())?;
    let Some(template) = &files.template else {
        let message = "the model has no chat template; give --chat-template FILE";
        return Err(Failure::new(Exit::ModelFiles, message));
    };
    let body = read(args)?;
    // The server's own way from a body to a conversation, with its default rules.
    let conversation = conversation(&Fields::root(&body), &RequestRules::default())
        .map_err(|error| Failure::usage(error.message))?;
    let text = template
        .render(&conversation)
        .map_err(|refusal| Failure::usage(format!("the chat template refuses: {refusal}")))?;
    if !args.ids {
        print(&text)?;
        return Ok(Exit::Clean);
    }
    let ids = files.vocabulary.encode(&text).map_err(Failure::usage)?;
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    print(&format!("{}\n", ids.join(",")))?;
    Ok(Exit::Clean)
}

fn read(args: &RenderArgs) -> Result<Map<String, Value>, Failure> {
    let shown = args.request.display();
    let mut text = String::new();
    match args.request.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text),
        _ => std::fs::File::open(&args.request).and_then(|mut file| file.read_to_string(&mut text)),
    }
    .map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!(
            "{shown}: expected a chat request as JSON object: {error}"
        ))
    })
}

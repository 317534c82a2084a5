//! `spinney generate`: one request, then the end.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;

use engine::{Engine, Finish, FinishReason, Request, RequestId, SubmitError, TokenUpdate};
use serde_json::{Value, json};

use super::args::GenerateArgs;
use super::args::limits::BatchArgs;
use super::checkpoints::{Checkpoints, vocab_rows};
use super::exit::{Exit, Failure};
use super::{chat_prompt, loading, logging, print};
use crate::model_files::{GenerationDefaults, ModelFiles};
use crate::text_stream::{Delta, Split, TextOptions, TextStream};
use crate::vocabulary::Vocabulary;

/// What the model's files say about text. Token ids need none of it.
struct TextSide {
    files: Option<ModelFiles>,
    end_ids: Vec<u32>,
    /// Ids that name tokens.
    vocab_used: usize,
}

/// The whole output.
struct Output {
    tokens: Vec<TokenUpdate>,
    text: Option<String>,
    finish: Finish,
}

/// Generates and prints.
pub fn run(args: &GenerateArgs) -> Result<Exit, Failure> {
    logging::start(&args.log, "warn")?;
    let checkpoints = Checkpoints::find(&args.model, &args.speculation)?;
    let batch = BatchArgs {
        max_total_tokens: None,
        max_running_requests: 1,
        max_queued_requests: 0,
        // Timing every shape takes longer than one answer gains from it.
        skip_server_warmup: args.speculation.speculative_ddtree_budget.is_none(),
    };
    let config = checkpoints.engine_config(&args.speculation, &args.context, &batch, None)?;
    let text_side = TextSide::read(&checkpoints, args)?;
    let prompt = text_side.prompt(args)?;
    let request = request(args, prompt, &text_side);
    let seed = request.sampling.seed;
    let spec = checkpoints.load_spec(&args.model, text_side.vocab_used);
    let engine = Engine::start_after(checkpoints.fetch(), spec, config)?;
    let stream = text_side.stream(&request.stop_ids);
    let id = submit(&engine, request)?;
    let output = receive(&engine, id, stream, !args.json)?;
    match args.json {
        true => print(&format!("{}\n", object(&output, seed)))?,
        false => summarise(&output)?,
    }
    Ok(Exit::Clean)
}

impl TextSide {
    fn read(checkpoints: &Checkpoints, args: &GenerateArgs) -> Result<Self, Failure> {
        let target = &checkpoints.target;
        if args.input.prompt_ids.is_none() || target.has("tokenizer.json") {
            let files = checkpoints.text_files(args.template.chat_template.as_deref())?;
            return Ok(TextSide {
                end_ids: files.generation.end_ids.clone(),
                vocab_used: files.vocabulary.len(),
                files: Some(files),
            });
        }
        let config = target.text("config.json")?;
        Ok(TextSide {
            files: None,
            end_ids: GenerationDefaults::read(target, &config)?.end_ids,
            vocab_used: vocab_rows(&config),
        })
    }

    fn prompt(&self, args: &GenerateArgs) -> Result<Vec<u32>, Failure> {
        if let Some(ids) = &args.input.prompt_ids {
            return Ok(ids.0.clone());
        }
        let Some(files) = &self.files else {
            unreachable!("texts are only read with a tokenizer");
        };
        let text = match (&args.input.prompt, &args.input.chat) {
            (Some(prompt), _) => prompt.clone(),
            (None, Some(message)) => {
                chat_prompt::render("--chat", files, message, args.enable_thinking)?
            }
            (None, None) => unreachable!("clap asks for one of the inputs"),
        };
        files.vocabulary.encode(&text).map_err(Failure::usage)
    }

    /// Text of an output that `end_ids` end; `None` without a tokenizer.
    fn stream(&self, end_ids: &[u32]) -> Option<TextStream> {
        let files = self.files.as_ref()?;
        let options = TextOptions {
            split: Split::Off,
            tools: None,
            stops: Vec::new(),
            include_stop: false,
            end_ids: end_ids.to_vec(),
            stop_ids: Vec::new(),
            skip_special: true,
            min_tokens: 0,
        };
        let vocabulary: Arc<Vocabulary> = Arc::clone(&files.vocabulary);
        Some(TextStream::new(vocabulary, options))
    }
}

fn request(args: &GenerateArgs, prompt: Vec<u32>, text_side: &TextSide) -> Request {
    let sampling = &args.sampling;
    Request {
        priority: 0,
        prompt,
        sampling: sampling.params(fresh_seed()),
        max_tokens: sampling.max_tokens,
        min_tokens: 0,
        stop_ids: match sampling.ignore_eos {
            true => Vec::new(),
            false => text_side.end_ids.clone(),
        },
        logprobs: sampling.top_logprobs,
        prompt_logprobs: None,
        trace: false,
        speculative: true,
        shape: None,
        cache_salt: None,
        turn_end: None,
        constraint: None,
    }
}

/// A seed that nobody chose, short enough to be typed again.
fn fresh_seed() -> u64 {
    RandomState::new().hash_one(0) >> 32
}

/// A request that cannot be served is refused before the weights are loaded.
fn submit(engine: &Engine, request: Request) -> Result<RequestId, Failure> {
    match engine.handle.submit(request.clone()) {
        Err(SubmitError::Unavailable(_)) => {}
        other => return other.map_err(Failure::from),
    }
    loading::wait_until_ready(&engine.handle)?;
    engine.handle.submit(request).map_err(Failure::from)
}

/// Collects the output; `show` prints its text as it grows.
fn receive(
    engine: &Engine,
    id: RequestId,
    mut stream: Option<TextStream>,
    show: bool,
) -> Result<Output, Failure> {
    let mut text = stream.is_some().then(String::new);
    let mut tokens = Vec::new();
    let mut deltas = Vec::new();
    loop {
        let Ok(output) = engine.outputs.recv() else {
            return Err(loading::ended(&engine.handle));
        };
        let updates = output.updates.into_iter().filter(|update| update.id == id);
        for update in updates {
            if let Some(stream) = &mut stream {
                for token in &update.tokens {
                    stream.push(token.clone(), &mut deltas);
                }
                if update.finish.is_some() {
                    stream.finish(&mut deltas);
                }
            }
            tokens.extend(update.tokens);
            deliver(&mut deltas, &mut text, show)?;
            if let Some(finish) = update.finish {
                return ended(finish).map(|finish| Output {
                    tokens,
                    text,
                    finish,
                });
            }
        }
    }
}

fn deliver(deltas: &mut Vec<Delta>, text: &mut Option<String>, show: bool) -> Result<(), Failure> {
    for delta in deltas.drain(..) {
        if show {
            print(delta.event.text())?;
        }
        if let Some(text) = text {
            text.push_str(delta.event.text());
        }
    }
    Ok(())
}

fn ended(finish: Finish) -> Result<Finish, Failure> {
    match &finish.reason {
        FinishReason::Stop
        | FinishReason::Length
        | FinishReason::Blocked
        | FinishReason::Finished => Ok(finish),
        FinishReason::Aborted | FinishReason::Expired => {
            Err(Failure::new(Exit::Runtime, "the request was aborted"))
        }
        FinishReason::Error(reason) => Err(Failure::new(
            Exit::Runtime,
            format!("the engine failed: {reason}"),
        )),
    }
}

fn finish_reason(finish: &Finish) -> &'static str {
    match finish.reason {
        FinishReason::Stop => "stop",
        _ => "length",
    }
}

fn object(output: &Output, seed: u64) -> Value {
    let (finish, stats) = (&output.finish, &output.finish.stats);
    let ids: Vec<u32> = output.tokens.iter().map(|token| token.id).collect();
    let lines: Vec<Value> = output
        .tokens
        .iter()
        .filter_map(|token| {
            let line = token.logprob.as_ref()?;
            Some(json!({"id": token.id, "logprob": line.logprob, "top": line.top}))
        })
        .collect();
    json!({
        "token_ids": ids,
        "text": output.text,
        "finish_reason": finish_reason(finish),
        "seed": seed,
        "usage": {
            "prompt_tokens": finish.prompt_tokens,
            "completion_tokens": finish.completion_tokens,
            "total_tokens": finish.prompt_tokens + finish.completion_tokens,
        },
        "logprobs": if lines.is_empty() { Value::Null } else { lines.into() },
        "metrics": {
            "steps": stats.steps,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "acceptance_histogram": stats.acceptance_histogram,
            "mean_acceptance_length": stats.mean_acceptance_length(),
            "prefill_ms": stats.prefill_ms,
            "decode_ms": stats.decode_ms,
        },
    })
}

/// One line for people, after the text.
fn summarise(output: &Output) -> Result<(), Failure> {
    let (finish, stats) = (&output.finish, &output.finish.stats);
    if output.text.is_none() {
        // The model has no tokenizer: its ids are all there is to show.
        let ids: Vec<String> = output.tokens.iter().map(|t| t.id.to_string()).collect();
        print(&format!("{}\n", ids.join(",")))?;
    } else if io::stdout().is_terminal() {
        print("\n")?;
    } else if one_reader() {
        writeln!(io::stderr()).map_err(|error| Failure::output(&error))?;
    }
    let decoded = finish.completion_tokens.saturating_sub(1) as f64;
    let rate = match stats.decode_ms > 0.0 {
        true => decoded * 1e3 / stats.decode_ms,
        false => 0.0,
    };
    writeln!(
        io::stderr(),
        "{} ({}), prefill {:.1} ms, {rate:.1} tokens/s, {}, mean acceptance length \
         {:.2}",
        counted(finish.completion_tokens as u64, "token"),
        finish_reason(finish),
        stats.prefill_ms,
        counted(stats.steps as u64, "step"),
        stats.mean_acceptance_length()
    )
    .map_err(|error| Failure::output(&error))
}

fn counted(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Whether what goes to standard error follows the text somewhere, in a file or behind a pipe.
fn one_reader() -> bool {
    let of = |number| std::fs::metadata(format!("/proc/self/fd/{number}"));
    let (Ok(out), Ok(error)) = (of(1), of(2)) else {
        return false;
    };
    let same = (out.dev(), out.ino()) == (error.dev(), error.ino());
    same || (out.file_type().is_fifo() && io::stderr().is_terminal())
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular() {
        let steps = [0, 1, 2].map(|count| counted(count, "step"));
        assert_eq!(steps, ["0 steps", "1 step", "2 steps"]);
    }
}

//! `spinney bench conversation`: the time to the first token of every turn of a conversation that
//! calls a tool and gets a long result, again and again: without a prefix cache, then with one.
//!
//! The assistant's messages are calls written for it, so that every model, also one of random
//! weights, has the same conversation.

use engine::{Engine, EngineConfig, LoadSpec, PrefixCacheConfig, Request, SamplingParams};
use serde_json::{Value, json};

use super::answer;
use super::conversation_report::{Answer, Facts, Report};
use crate::chat::last_turn;
use crate::cli::args::bench::ConversationBenchArgs;
use crate::cli::checkpoints::Checkpoints;
use crate::cli::exit::{Exit, Failure};
use crate::cli::{loading, logging};
use crate::model_files::ModelFiles;
use crate::template::Conversation;

/// Room behind the last answer, so that no step is lowered to fewer rows than others have.
const SLACK_TOKENS: usize = 128;

/// What a turn asks.
struct Prompt {
    ids: Vec<u32>,
    turn_end: Option<usize>,
}

/// Measures and prints.
pub fn run(args: &ConversationBenchArgs) -> Result<Exit, Failure> {
    logging::start(&args.log, "warn")?;
    let Some(cache) = args.prefix_cache.config() else {
        let message = "--disable-radix-cache: the same conversation runs without the cache first";
        return Err(Failure::usage(message));
    };
    let checkpoints = Checkpoints::find(&args.model, &args.speculation)?;
    let files = checkpoints.text_files(args.template.chat_template.as_deref())?;
    let prompts = Talk::new(&files).prompts(args.turns, args.prompt_tokens)?;
    let spec = checkpoints.load_spec(&args.model, files.vocabulary.len());
    let longest = prompts.last().map_or(0, |prompt| prompt.ids.len());
    let config = |cache| engine_config(args, &checkpoints, longest, cache);
    checkpoints.fetch_for(&spec, &config(Some(cache))?)?;
    let without = answers(args, &spec, config(None)?, &prompts, |_| Ok(()))?;
    let report = Report::new(
        args,
        Facts::of(&checkpoints.model_path, &without.info),
        &cache,
    );
    report.begin()?;
    let mut turns = Vec::new();
    let plain = &without.answers;
    answers(args, &spec, config(Some(cache))?, &prompts, |answer| {
        let turn = plain[turns.len()].with(answer);
        turns.push(turn);
        report.turn(turns.len(), &turns[turns.len() - 1])
    })?;
    report.finish(&turns)?;
    match turns.iter().all(|turn| turn.identical) {
        true => Ok(Exit::Clean),
        false => Err(Failure::new(
            Exit::Runtime,
            "answers with and without the prefix cache differ at temperature 0",
        )),
    }
}

fn engine_config(
    args: &ConversationBenchArgs,
    checkpoints: &Checkpoints,
    longest: usize,
    prefix_cache: Option<PrefixCacheConfig>,
) -> Result<EngineConfig, Failure> {
    let speculation = args.speculation.resolve(checkpoints.drafter.is_some())?;
    let room = longest + args.max_tokens + SLACK_TOKENS;
    Ok(EngineConfig {
        algorithm: speculation.algorithm,
        chain_drafts: speculation.chain_drafts,
        budget: speculation.budget,
        topk_cap: args.speculation.speculative_ddtree_topk_cap,
        running_max: 1,
        queue_max: 0,
        context_length: Some(args.context.context_length.unwrap_or(room)),
        tokens_total: None,
        memory_fraction: args.context.mem_fraction_static,
        prefill_chunk: args.context.chunked_prefill_size,
        draft_batch_max: 0,
        share_rows: false,
        skip_warmup: false,
        prefix_cache,
        simulate: None,
    })
}

/// One engine's answers, and what it is.
struct Measured {
    info: engine::ModelInfo,
    answers: Vec<Answer>,
}

/// Asks turn by turn on an engine of its own; `hear` gets each answer at once.
fn answers(
    args: &ConversationBenchArgs,
    spec: &LoadSpec,
    config: EngineConfig,
    prompts: &[Prompt],
    mut hear: impl FnMut(&Answer) -> Result<(), Failure>,
) -> Result<Measured, Failure> {
    let engine = Engine::start(spec.clone(), config)?;
    loading::wait_until_ready(&engine.handle)?;
    // Whatever only the first prompt of a process pays for.
    if let Some(first) = prompts.first() {
        ask(&engine, args, first)?;
        engine.handle.flush_cache();
    }
    let mut answers = Vec::new();
    for prompt in prompts {
        let answer = ask(&engine, args, prompt)?;
        hear(&answer)?;
        answers.push(answer);
    }
    let info = engine.handle.info().clone();
    engine.handle.shutdown();
    // Its memory is free when the channel closes: the next engine needs it.
    while engine.outputs.recv().is_ok() {}
    Ok(Measured { info, answers })
}

fn ask(engine: &Engine, args: &ConversationBenchArgs, prompt: &Prompt) -> Result<Answer, Failure> {
    let request = Request {
        priority: 0,
        prompt: prompt.ids.clone(),
        sampling: SamplingParams::default(),
        max_tokens: args.max_tokens,
        min_tokens: 0,
        stop_ids: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
        trace: false,
        speculative: true,
        shape: None,
        cache_salt: None,
        turn_end: prompt.turn_end,
        constraint: None,
    };
    let (tokens, finish) = answer::whole(engine, request)?;
    Ok(Answer { tokens, finish })
}

/// A conversation as it grows.
struct Talk<'a> {
    files: &'a ModelFiles,
    messages: Vec<Value>,
    /// Lines of reports so far.
    lines: usize,
}

impl<'a> Talk<'a> {
    fn new(files: &'a ModelFiles) -> Self {
        Talk {
            files,
            messages: Vec::new(),
            lines: 0,
        }
    }

    /// The prompts of so many turns; the last has about `tokens` tokens.
    fn prompts(mut self, turns: usize, tokens: usize) -> Result<Vec<Prompt>, Failure> {
        let mut prompts = Vec::new();
        for turn in 1..=turns {
            self.open(turn);
            let line = self.files.vocabulary.encode(&line(0));
            let line = line.map_err(Failure::usage)?.len();
            let missing = (tokens * turn / turns).saturating_sub(self.prompt()?.ids.len());
            self.report(missing / line.max(1));
            prompts.push(self.prompt()?);
        }
        Ok(prompts)
    }

    /// The question, or a call and the beginning of its result.
    fn open(&mut self, turn: usize) {
        if turn == 1 {
            let text = "Compare the weather of these days. This is what I have noted:\n";
            self.messages.push(json!({"role": "user", "content": text}));
            return;
        }
        let call = json!({"name": "get_weather", "arguments": {"city": "Oslo", "days": turn}});
        self.messages
            .push(json!({"role": "assistant", "content": "",
            "tool_calls": [{"id": format!("call_{turn}"), "type": "function", "function": call}]}));
        self.messages
            .push(json!({"role": "tool", "content": format!("Day {turn}\n"),
            "tool_call_id": format!("call_{turn}")}));
    }

    /// More lines in the last message.
    fn report(&mut self, lines: usize) {
        let more: String = (self.lines..).take(lines).map(line).collect();
        self.lines += lines;
        if let Some(last) = self.messages.last_mut() {
            let text = last["content"].as_str().unwrap_or_default();
            last["content"] = format!("{text}{more}").into();
        }
    }

    fn prompt(&self) -> Result<Prompt, Failure> {
        let Some(template) = &self.files.template else {
            let message = "the model has no chat template; give --chat-template";
            return Err(Failure::usage(message));
        };
        let conversation = Conversation {
            messages: self.messages.clone(),
            tools: vec![tool()],
            generation_prompt: true,
            ..Conversation::default()
        };
        let text = template.render(&conversation);
        let text = text.map_err(|refusal| Failure::usage(refusal.to_string()))?;
        let ids = self.files.vocabulary.encode(&text);
        let ids = ids.map_err(Failure::usage)?;
        Ok(Prompt {
            turn_end: last_turn(&self.files.vocabulary, &ids),
            ids,
        })
    }
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "get_weather",
        "description": "Weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"},
            "days": {"type": "integer"}}, "required": ["city"]}}})
}

/// Lines of a report, of much the same length.
fn line(number: usize) -> String {
    let hour = number % 24;
    let (degrees, wind) = (10 + number * 7 % 19, 1 + number * 5 % 9);
    let sky = ["clear", "cloudy", "rain", "fog"][number * 3 % 7 % 4];
    format!("{hour:02}:00 {degrees} C, wind {wind} m/s, {sky}\n")
}

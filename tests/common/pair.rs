//! A target and its drafter behind an engine, and a driver that keeps requests in flight.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::{
    Algorithm, Budget, CheckpointSource, Device, Engine, EngineConfig, Finish, LoadFormat,
    LoadSpec, Phase, Request, RequestId, SamplingParams,
};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use server::model_files::ModelFiles;
use server::template::Conversation;

/// How tokens are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    Linear,
    Tree(usize),
    Auto,
}

pub const MODES: [Mode; 7] = [
    Mode::Plain,
    Mode::Linear,
    Mode::Tree(7),
    Mode::Tree(15),
    Mode::Tree(31),
    Mode::Tree(63),
    Mode::Auto,
];

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mode::Plain => f.pad("plain"),
            Mode::Linear => f.pad("linear"),
            Mode::Tree(budget) => f.pad(&format!("tree {budget}")),
            Mode::Auto => f.pad("auto"),
        }
    }
}

/// A path of the checkout: where the test was compiled, unless `SPINNEY_TEST_ROOT` says that the
/// test was carried elsewhere.
fn root(path: &str) -> PathBuf {
    let compiled = || env!("CARGO_MANIFEST_DIR").to_owned();
    let root = std::env::var("SPINNEY_TEST_ROOT").unwrap_or_else(|_| compiled());
    Path::new(&root).join(path)
}

/// The CPU, or the first GPU with `SPINNEY_TEST_DEVICE=cuda`.
pub fn device() -> Device {
    match std::env::var("SPINNEY_TEST_DEVICE").as_deref() {
        Ok("cuda") => Device::Cuda(0),
        Ok(other) => panic!("SPINNEY_TEST_DEVICE is {other}; it can be cuda"),
        Err(_) => Device::Cpu,
    }
}

pub struct Pair {
    target: CheckpointSource,
    drafter: CheckpointSource,
    vocab_used: usize,
}

impl Pair {
    /// The trained pair and the text side of it.
    pub fn bundled() -> (Self, ModelFiles) {
        let target = CheckpointSource::Folder(root("crates/server/spinney-tiny"));
        let files = ModelFiles::read(&target, None).expect("the bundled model is complete");
        let pair = Pair {
            target,
            drafter: CheckpointSource::Folder(root("crates/server/spinney-tiny/drafter")),
            vocab_used: files.vocabulary.len(),
        };
        (pair, files)
    }

    /// Random weights, 97 tokens: small enough for many thousands of requests.
    pub fn random() -> Self {
        Pair {
            target: CheckpointSource::Folder(root("tests/fixtures/qwen3_5")),
            drafter: CheckpointSource::Folder(root("tests/fixtures/dflash")),
            vocab_used: 97,
        }
    }

    /// Starts an engine and waits until it is ready.
    pub fn start(&self, mode: Mode, running_max: usize) -> Engine {
        self.start_sharing(mode, running_max, true)
    }

    /// The same, where sequences share the rows of a step or do not.
    pub fn start_sharing(&self, mode: Mode, running_max: usize, share_rows: bool) -> Engine {
        self.start_with(EngineConfig {
            share_rows,
            ..config(mode, running_max)
        })
    }

    /// The same with all options.
    pub fn start_with(&self, config: EngineConfig) -> Engine {
        let spec = LoadSpec {
            target: self.target.clone(),
            drafter: Some(self.drafter.clone()),
            format: LoadFormat::Safetensors,
            device: device(),
            dtype: None,
            vocab_used: self.vocab_used,
            graphs: true,
        };
        let engine = Engine::start(spec, config).expect("the configuration is valid");
        loop {
            let status = engine.handle.status();
            match status.phase {
                Phase::Ready => return engine,
                Phase::Failed => panic!("{:?}", status.error),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// An engine of this mode without a prefix cache, whose pool holds all that may run.
pub fn config(mode: Mode, running_max: usize) -> EngineConfig {
    let (algorithm, budget) = match mode {
        Mode::Plain => (Algorithm::None, Budget::Auto),
        Mode::Linear => (Algorithm::Dflash, Budget::Auto),
        Mode::Tree(budget) => (Algorithm::Ddtree, Budget::Fixed(budget)),
        Mode::Auto => (Algorithm::Ddtree, Budget::Auto),
    };
    EngineConfig {
        algorithm,
        chain_drafts: None,
        budget,
        topk_cap: None,
        running_max,
        queue_max: 0,
        context_length: None,
        tokens_total: None,
        memory_fraction: 0.88,
        prefill_chunk: 512,
        draft_batch_max: 0,
        share_rows: true,
        skip_warmup: false,
        prefix_cache: None,
        simulate: None,
    }
}

/// A prompt that no model was trained on.
#[derive(Clone, Debug)]
pub struct HeldOut {
    pub group: String,
    pub text: String,
    pub ids: Vec<u32>,
}

/// The held-out prompts, rendered as a server would; `per_group` of every group.
pub fn held_out(files: &ModelFiles, per_group: usize) -> Vec<HeldOut> {
    let path = root("tests/fixtures/heldout_prompts.jsonl");
    let text = std::fs::read_to_string(path).expect("the prompts are committed");
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut prompts = Vec::new();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line is an object");
        let group = line["group"].as_str().expect("a prompt has a group");
        let count = seen.entry(group.to_owned()).or_default();
        *count += 1;
        if *count > per_group {
            continue;
        }
        let conversation = Conversation {
            messages: vec![serde_json::json!({"role": "user", "content": line["prompt"]})],
            generation_prompt: true,
            ..Conversation::default()
        };
        let template = files.template.as_ref().expect("the pair has a template");
        let prompt = template
            .render(&conversation)
            .expect("the template renders");
        prompts.push(HeldOut {
            group: group.to_owned(),
            text: line["prompt"].as_str().expect("it has a text").to_owned(),
            ids: files.vocabulary.encode(&prompt).expect("text is encoded"),
        });
    }
    prompts
}

/// A request for at most `max_tokens`.
pub fn request(
    prompt: &[u32],
    sampling: SamplingParams,
    stop_ids: &[u32],
    max_tokens: usize,
) -> Request {
    Request {
        priority: 0,
        prompt: prompt.to_vec(),
        sampling,
        max_tokens,
        min_tokens: 0,
        stop_ids: stop_ids.to_vec(),
        logprobs: None,
        prompt_logprobs: None,
        trace: false,
        speculative: true,
        shape: None,
        cache_salt: None,
        turn_end: None,
        constraint: None,
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Output {
    pub tokens: Vec<u32>,
    pub finish: Finish,
}

/// Requests nobody asks about, which join and leave between steps.
pub struct Guests {
    random: Pcg64,
    requests: Vec<Request>,
    /// Present ones, with the number of updates after which each is aborted.
    present: HashMap<RequestId, usize>,
    /// How many there were.
    pub total: usize,
}

impl Guests {
    /// At most this many at once.
    pub const MAX: usize = 3;

    pub fn new(seed: u64, requests: Vec<Request>) -> Self {
        Guests {
            random: Pcg64::seed_from_u64(seed),
            requests,
            present: HashMap::new(),
            total: 0,
        }
    }

    fn arrive(&mut self, engine: &Engine) {
        if self.present.len() < Self::MAX && self.random.random_bool(0.2) {
            let request = &self.requests[self.random.random_range(0..self.requests.len())];
            let id = engine
                .handle
                .submit(request.clone())
                .expect("a guest is valid");
            self.present.insert(id, self.random.random_range(1..12));
            self.total += 1;
        }
    }

    /// An update of a guest; leaving may cross with its natural end.
    fn update(&mut self, engine: &Engine, id: RequestId, ended: bool) {
        let Some(left) = self.present.get_mut(&id) else {
            panic!("an update of {id:?}, which nobody submitted");
        };
        *left = left.saturating_sub(1);
        if ended {
            self.present.remove(&id);
        } else if *left == 0 {
            engine.handle.abort(id);
        }
    }
}

/// Runs all requests, `at_once` of them at a time; outputs are in the order of the requests.
pub fn run(
    engine: &Engine,
    requests: &[Request],
    at_once: usize,
    mut guests: Option<&mut Guests>,
) -> Vec<Output> {
    let mut outputs: Vec<Option<Output>> = requests.iter().map(|_| None).collect();
    let mut running: HashMap<RequestId, (usize, Vec<u32>)> = HashMap::new();
    let mut next = 0;
    loop {
        while running.len() < at_once && next < requests.len() {
            let id = engine
                .handle
                .submit(requests[next].clone())
                .expect("a request is valid");
            running.insert(id, (next, Vec::new()));
            next += 1;
        }
        let visiting = guests
            .as_ref()
            .is_some_and(|guests| !guests.present.is_empty());
        if running.is_empty() && !visiting {
            break;
        }
        let step = engine
            .outputs
            .recv_timeout(Duration::from_secs(120))
            .expect("the engine goes on while requests run");
        for update in step.updates {
            let Some((_, tokens)) = running.get_mut(&update.id) else {
                let guests = guests.as_mut().expect("only guests are unknown here");
                guests.update(engine, update.id, update.finish.is_some());
                continue;
            };
            tokens.extend(update.tokens.iter().map(|token| token.id));
            if let Some(finish) = update.finish {
                let (index, tokens) = running.remove(&update.id).expect("it was running");
                outputs[index] = Some(Output { tokens, finish });
            }
        }
        if let Some(guests) = guests.as_mut().filter(|_| !running.is_empty()) {
            guests.arrive(engine);
        }
    }
    outputs
        .into_iter()
        .map(|output| output.expect("every request ended"))
        .collect()
}

/// Ends an idle engine: nothing may be held any more.
pub fn stop(engine: Engine) {
    let stats = engine.handle.stats();
    assert_eq!((stats.running, stats.waiting), (0, 0));
    assert_eq!((stats.pages_used, stats.slots_used), (0, 0));
    engine.handle.shutdown();
    while engine.outputs.recv().is_ok() {}
    assert_eq!(engine.handle.status().phase, Phase::Stopped);
}

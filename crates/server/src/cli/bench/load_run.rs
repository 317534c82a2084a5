//! One run: clients that ask again as soon as they were answered.

use std::collections::HashMap;
use std::time::Instant;

use engine::{
    Engine, EngineStats, Finish, FinishReason, Request, RequestId, RequestUpdate, SamplingParams,
};

use crate::cli::exit::{Exit, Failure};
use crate::cli::loading;

/// Who asks what.
pub struct Clients<'a> {
    /// At once.
    pub count: usize,
    /// Of all of them together.
    pub requests: usize,
    /// Asked in turn, from the first.
    pub prompts: &'a [Vec<u32>],
    /// Of an answer at most.
    pub output_tokens: usize,
    /// Tokens that end one.
    pub stop_ids: &'a [u32],
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// From the first request to the last answer's end.
    pub seconds: f64,
    /// Tokens of all answers.
    pub tokens: usize,
    /// Milliseconds from each request to its first token.
    pub first_ms: Vec<f64>,
    /// Milliseconds that each later token came behind the one before it: 0 for those that came with
    /// it.
    pub token_ms: Vec<f64>,
    /// Decode steps.
    pub steps: usize,
    /// Sequences of all decode steps.
    pub sequence_steps: u64,
    /// Verified nodes without roots.
    pub drafted: u64,
    /// Accepted nodes.
    pub accepted: u64,
    /// Sequences of all steps by the shape of the step.
    pub shapes: Vec<(String, u64)>,
    /// Requests that gave up their slot for want of a page.
    pub preemptions: u64,
}

impl Run {
    /// Tokens of all answers per second.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// Tokens of one sequence per step.
    pub fn tokens_per_step(&self) -> f64 {
        1.0 + self.accepted as f64 / self.sequence_steps.max(1) as f64
    }

    /// Rows of all sequences per step.
    pub fn rows_per_step(&self) -> f64 {
        (self.sequence_steps + self.drafted) as f64 / self.steps.max(1) as f64
    }

    /// What the engine counted between two looks.
    fn count(&mut self, before: &EngineStats, after: &EngineStats) {
        self.sequence_steps = after.drafts - before.drafts;
        self.drafted = after.draft_tokens - before.draft_tokens;
        self.accepted = after.accepted_tokens - before.accepted_tokens;
        self.preemptions = after.preemptions - before.preemptions;
        let of = |stats: &EngineStats, name: &str| {
            let mut shapes = stats.shapes.iter();
            shapes
                .find(|entry| entry.shape == name)
                .map_or(0, |e| e.steps)
        };
        let shapes = after.shapes.iter().map(|entry| {
            let steps = entry.steps - of(before, &entry.shape);
            (entry.shape.clone(), steps)
        });
        self.shapes = shapes.filter(|(_, steps)| *steps > 0).collect();
    }
}

/// A request that was not answered yet.
struct Open {
    asked: Instant,
    /// When its newest token came.
    newest: Option<Instant>,
}

impl Clients<'_> {
    /// Asks everything and waits for the last answer.
    pub fn run(&self, engine: &Engine) -> Result<Run, Failure> {
        let handle = &engine.handle;
        let before = handle.stats();
        let mut run = Run::default();
        let mut open: HashMap<RequestId, Open> = HashMap::new();
        let mut asked = 0;
        let began = Instant::now();
        while asked < self.requests.min(self.count) {
            open.insert(self.ask(engine, asked)?, Open::new());
            asked += 1;
        }
        while !open.is_empty() {
            let Ok(output) = engine.outputs.recv() else {
                return Err(loading::ended(handle));
            };
            let now = Instant::now();
            run.steps += usize::from(output.timing.is_some());
            for update in &output.updates {
                let Some(request) = open.get_mut(&update.id) else {
                    continue;
                };
                request.hear(update, now, &mut run);
                if let Some(finish) = &update.finish {
                    check(finish, engine)?;
                    open.remove(&update.id);
                    if asked < self.requests {
                        open.insert(self.ask(engine, asked)?, Open::new());
                        asked += 1;
                    }
                }
            }
        }
        run.seconds = began.elapsed().as_secs_f64();
        run.count(&before, &handle.stats());
        Ok(run)
    }

    fn ask(&self, engine: &Engine, number: usize) -> Result<RequestId, Failure> {
        let prompt = &self.prompts[number % self.prompts.len()];
        let id = engine.handle.submit(Request {
            priority: 0,
            prompt: prompt.clone(),
            sampling: SamplingParams::default(),
            max_tokens: self.output_tokens,
            min_tokens: 0,
            stop_ids: self.stop_ids.to_vec(),
            logprobs: None,
            prompt_logprobs: None,
            trace: false,
            speculative: true,
            shape: None,
            cache_salt: None,
            turn_end: None,
            constraint: None,
        })?;
        Ok(id)
    }
}

impl Open {
    fn new() -> Self {
        Open {
            asked: Instant::now(),
            newest: None,
        }
    }

    fn hear(&mut self, update: &RequestUpdate, now: Instant, run: &mut Run) {
        let ms = |since: Instant| (now - since).as_secs_f64() * 1e3;
        let count = update.tokens.len();
        if count == 0 {
            return;
        }
        run.tokens += count;
        match self.newest.replace(now) {
            None => run.first_ms.push(ms(self.asked)),
            Some(newest) => run.token_ms.push(ms(newest)),
        }
        run.token_ms.extend(std::iter::repeat_n(0.0, count - 1));
    }
}

fn check(finish: &Finish, engine: &Engine) -> Result<(), Failure> {
    match &finish.reason {
        FinishReason::Stop | FinishReason::Length | FinishReason::Blocked => Ok(()),
        FinishReason::Error(reason) => Err(Failure::new(Exit::Runtime, reason.clone())),
        FinishReason::Aborted | FinishReason::Expired | FinishReason::Finished => {
            Err(loading::ended(&engine.handle))
        }
    }
}

//! Builds engines over the stub and books what they send.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flume::RecvTimeoutError;
use model::{Dtype, MemoryPlan, RunnerConfig, SamplingParams, Shape, StepKey};
use ops::PAGE_TOKENS;

use super::stub_runner::{Fault, Gate, StubRunner, next_token};
use crate::auto::CANDIDATES;
use crate::settings::{PrefixCacheSettings, Settings};
use crate::shape::{Drafting, STEP_ROWS_MAX};
use crate::{
    Algorithm, Budget, Engine, EngineHandle, Finish, FinishReason, ModelInfo, Phase, Request,
    RequestId, RequestUpdate, StepOutput, TokenUpdate,
};

pub(crate) const VOCAB: usize = 64;
/// Far beyond what any test needs.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) running_max: usize,
    pub(crate) context: usize,
    pub(crate) pages: usize,
    pub(crate) chunk: usize,
    pub(crate) drafting: Drafting,
    pub(crate) queue_max: usize,
    pub(crate) draft_batch_max: usize,
    pub(crate) share_rows: bool,
    pub(crate) skip_warmup: bool,
    pub(crate) graphs: bool,
    pub(crate) fault: Fault,
    /// The prefix cache, and its places on the device and on the host.
    pub(crate) cache: Option<(PrefixCacheSettings, usize, usize)>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            running_max: 4,
            context: 1024,
            pages: 48,
            chunk: 128,
            drafting: Drafting::Fixed(Shape::Tree(15)),
            queue_max: 0,
            draft_batch_max: 0,
            share_rows: false,
            skip_warmup: true,
            graphs: false,
            fault: Fault::None,
            cache: None,
        }
    }
}

/// An engine and everything it has sent.
pub(crate) struct Harness {
    pub(crate) engine: Engine,
    pub(crate) gate: Gate,
    pub(crate) shapes: Arc<Mutex<Vec<Vec<Shape>>>>,
    pub(crate) recorded: Arc<Mutex<Vec<StepKey>>>,
    pub(crate) requests: BTreeMap<RequestId, Request>,
    pub(crate) news: BTreeMap<RequestId, RequestUpdate>,
    context: usize,
}

pub(crate) fn settings(setup: &Setup) -> (Settings, ModelInfo) {
    let tree_rows_max = match setup.drafting {
        Drafting::Off => 1,
        Drafting::Fixed(shape) => shape.rows(),
        Drafting::Auto => 64,
    };
    let runner = RunnerConfig {
        sequences_max: setup.running_max,
        context_max: setup.context,
        kv_pages: setup.pages,
        prefill_rows_max: setup.chunk,
        tree_rows_max: match (setup.share_rows, tree_rows_max) {
            (false, rows) | (true, rows @ 1) => rows,
            (true, _) => 64,
        },
        step_rows_max: (tree_rows_max * setup.running_max).min(STEP_ROWS_MAX),
        topk: 15,
        weight_dtype: Dtype::F32,
        kv_dtype: Dtype::F32,
        vocab_used: VOCAB,
        graphs: setup.graphs,
        snapshots: setup.cache.map_or(0, |cache| cache.1),
        host_snapshots: setup.cache.map_or(0, |cache| cache.2),
    };
    let info = ModelInfo {
        model_type: "stub".into(),
        architectures: Vec::new(),
        vocab_rows: VOCAB,
        vocab_used: VOCAB,
        context_length: setup.context,
        tokens_total: setup.pages * PAGE_TOKENS,
        device: "stub".into(),
        plan: MemoryPlan::default(),
        memory: None,
        room: None,
        algorithm: Algorithm::Ddtree,
        budget: Budget::Auto,
        topk: 15,
        chain_drafts: 15,
        tree_rows_max,
    };
    let settings = Settings {
        runner,
        drafting: setup.drafting,
        shapes: match setup.drafting {
            Drafting::Off => vec![Shape::Plain],
            Drafting::Fixed(shape) => vec![Shape::Plain, shape],
            Drafting::Auto => CANDIDATES.to_vec(),
        },
        queue_max: setup.queue_max,
        draft_batch_max: setup.draft_batch_max,
        share_rows: setup.share_rows,
        skip_warmup: setup.skip_warmup,
        prefix_cache: setup.cache.map(|cache| cache.0),
    };
    (settings, info)
}

impl Harness {
    /// Starts without waiting.
    pub(crate) fn launch(setup: &Setup) -> Self {
        let (settings, info) = settings(setup);
        let gate = Gate::default();
        let runner = StubRunner::new(settings.runner.clone(), gate.clone(), setup.fault);
        let shapes = Arc::clone(&runner.shapes);
        let recorded = Arc::clone(&runner.recorded);
        let engine = Engine::spawn(settings, info, move |_| Ok(runner)).unwrap();
        Harness {
            gate,
            shapes,
            recorded,
            ..Harness::around(engine)
        }
    }

    /// Books what any engine sends; the gate and the shapes are those of no stub.
    pub(crate) fn around(engine: Engine) -> Self {
        Harness {
            context: engine.handle.info().context_length,
            engine,
            gate: Gate::default(),
            shapes: Arc::default(),
            recorded: Arc::default(),
            requests: BTreeMap::new(),
            news: BTreeMap::new(),
        }
    }

    /// Starts and waits until it is ready.
    pub(crate) fn start(setup: &Setup) -> Self {
        let harness = Harness::launch(setup);
        harness.await_phase(Phase::Ready);
        harness
    }

    pub(crate) fn handle(&self) -> &EngineHandle {
        &self.engine.handle
    }

    pub(crate) fn await_phase(&self, phase: Phase) {
        wait_until(|| self.handle().status().phase == phase);
    }

    pub(crate) fn submit(&mut self, request: Request) -> RequestId {
        let id = self.handle().submit(request.clone()).unwrap();
        self.requests.insert(id, request);
        id
    }

    /// Books one message; `false` when the engine has closed the channel.
    pub(crate) fn receive(&mut self) -> bool {
        match self.engine.outputs.recv_timeout(PATIENCE) {
            Ok(output) => self.book(output),
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => panic!("the engine is stuck"),
        }
        true
    }

    pub(crate) fn receive_pending(&mut self) {
        while let Ok(output) = self.engine.outputs.try_recv() {
            self.book(output);
        }
    }

    fn book(&mut self, output: StepOutput) {
        let mut touched: Vec<RequestId> = output.updates.iter().map(|update| update.id).collect();
        touched.sort_unstable();
        touched.dedup();
        assert_eq!(touched.len(), output.updates.len(), "one entry per request");
        for update in output.updates {
            let known = self.news.entry(update.id).or_insert_with(|| RequestUpdate {
                id: update.id,
                started: None,
                prompt_logprobs: Vec::new(),
                tokens: Vec::new(),
                trace: None,
                finish: None,
            });
            assert!(known.finish.is_none(), "an update after the terminal one");
            if let Some(trace) = &update.trace {
                let tokens = update.tokens.iter().map(|token| token.id);
                assert!(trace.tokens().eq(tokens), "{trace:?}");
            }
            if update.started.is_some() {
                assert!(known.started.is_none() && known.tokens.is_empty());
                known.started = update.started;
            }
            known.tokens.extend(update.tokens);
            known.prompt_logprobs.extend(update.prompt_logprobs);
            known.finish = update.finish;
            if let Some(finish) = &known.finish {
                let cached = known.started.map_or(0, |started| started.cached_tokens);
                assert_eq!(finish.cached_tokens, cached);
            }
        }
    }

    /// Waits for a request's end.
    pub(crate) fn await_end(&mut self, id: RequestId) -> Finish {
        loop {
            if let Some(finish) = self.news.get(&id).and_then(|news| news.finish.clone()) {
                return finish;
            }
            assert!(
                self.receive(),
                "the channel closed before the request's end"
            );
        }
    }

    pub(crate) fn run(&mut self, request: Request) -> (Vec<u32>, Finish) {
        let id = self.submit(request);
        let finish = self.await_end(id);
        (self.tokens(id), finish)
    }

    pub(crate) fn tokens(&self, id: RequestId) -> Vec<u32> {
        let id_of = |token: &TokenUpdate| token.id;
        self.news
            .get(&id)
            .map_or_else(Vec::new, |news| news.tokens.iter().map(id_of).collect())
    }

    /// Drains, books the rest and checks everything that must hold for any schedule of the stub.
    pub(crate) fn close(mut self) {
        self.drain();
        self.check_all();
    }

    /// Drains, books the rest and checks what must hold for any model.
    pub(crate) fn drain(&mut self) {
        self.handle().drain();
        while self.receive() {}
        let status = self.handle().status();
        assert_eq!((status.phase, status.error), (Phase::Stopped, None));
        self.check_counters();
    }

    /// The tokens of all requests that ended are the stub's.
    pub(crate) fn check_free(&self) {
        for (id, request) in &self.requests {
            let (all, _) = plain_run(request, self.context);
            assert!(all.starts_with(&self.tokens(*id)), "tokens of {id:?}");
        }
    }

    /// Every request ended once; what was sent is what the stub alone would have said.
    pub(crate) fn check_all(&self) {
        for (id, request) in &self.requests {
            let news = &self.news[id];
            let finish = news.finish.as_ref().expect("a terminal update");
            let (all, reason) = plain_run(request, self.context);
            let tokens = self.tokens(*id);
            assert!(all.starts_with(&tokens), "tokens of {id:?}");
            assert_eq!(finish.prompt_tokens, request.prompt.len());
            match &finish.reason {
                FinishReason::Stop | FinishReason::Length => {
                    assert_eq!((&tokens, &finish.reason), (&all, &reason));
                    assert_eq!(finish.completion_tokens, tokens.len());
                }
                FinishReason::Finished => assert!(finish.completion_tokens <= tokens.len()),
                _ => assert_eq!(finish.completion_tokens, tokens.len()),
            }
        }
        self.check_counters();
    }

    /// Every request ended once, nothing is owned, and the counters agree with each other.
    fn check_counters(&self) {
        let ids: Vec<RequestId> = self.requests.keys().copied().collect();
        assert_eq!(ids, self.news.keys().copied().collect::<Vec<_>>());
        let mut kept = 0;
        for news in self.news.values() {
            let finish = news.finish.as_ref().expect("a terminal update");
            check_stats(finish);
            kept += finish.completion_tokens as u64;
        }
        let stats = self.handle().stats();
        let used = (
            stats.running,
            stats.waiting,
            stats.pages_used,
            stats.slots_used,
        );
        assert_eq!(used, (0, 0, 0, 0));
        assert_eq!(stats.generated_tokens, kept);
        let by_shape: u64 = stats.shapes.iter().map(|shape| shape.steps).sum();
        let accepted: u64 = stats.shapes.iter().map(|shape| shape.accepted).sum();
        assert_eq!((by_shape, accepted), (stats.drafts, stats.accepted_tokens));
        let positions: u64 = stats.accepted_per_position.iter().sum();
        assert_eq!(positions, stats.accepted_tokens);
        let drafted: u64 = stats.shapes.iter().map(|shape| shape.drafted).sum();
        assert_eq!(drafted, stats.draft_tokens);
        for shape in &stats.shapes {
            let histogram = &shape.acceptance_histogram;
            assert_eq!(histogram.iter().sum::<u64>(), shape.steps);
            let accepted: u64 = (0..).zip(histogram).map(|(k, n)| k * n).sum();
            assert_eq!(accepted, shape.accepted);
        }
    }
}

/// The counters of a request agree with each other.
pub(crate) fn check_stats(finish: &Finish) {
    let stats = &finish.stats;
    let histogram = &stats.acceptance_histogram;
    assert_eq!(histogram.len(), 16);
    assert_eq!(histogram.iter().sum::<usize>(), stats.steps);
    let accepted: usize = histogram.iter().enumerate().map(|(k, n)| k * n).sum();
    assert_eq!(accepted, stats.accepted);
    assert!(stats.accepted <= stats.drafted);
    // The first token comes from the prefill; a step gives its accepted nodes and at most one more.
    let decoded = finish.completion_tokens.saturating_sub(1);
    assert!((stats.accepted..=stats.accepted + stats.steps).contains(&decoded));
}

/// What the stub's law says one token at a time, and how that ends.
pub(crate) fn plain_run(request: &Request, context: usize) -> (Vec<u32>, FinishReason) {
    let mut history = request.prompt.clone();
    let limit = request.max_tokens.min(context - history.len());
    let mut output = Vec::new();
    while output.len() < limit {
        let early = output.len() < request.min_tokens;
        let banned = if early { &request.stop_ids[..] } else { &[] };
        let token = next_token(&history, request.sampling.seed, banned, VOCAB);
        history.push(token);
        output.push(token);
        if request.stop_ids.contains(&token) {
            return (output, FinishReason::Stop);
        }
    }
    (output, FinishReason::Length)
}

/// A request whose prompt is `length` pseudo-random tokens.
pub(crate) fn request(length: usize, max_tokens: usize, seed: u64) -> Request {
    let token = |i| (super::stub_runner::mix(seed, i as u64) % VOCAB as u64) as u32;
    Request {
        priority: 0,
        prompt: (0..length).map(token).collect(),
        sampling: SamplingParams {
            seed,
            ..SamplingParams::default()
        },
        max_tokens,
        min_tokens: 0,
        stop_ids: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
        trace: seed.is_multiple_of(2),
        speculative: true,
        shape: None,
        cache_salt: None,
        turn_end: None,
        constraint: None,
    }
}

pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "waited too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

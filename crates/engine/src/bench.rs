//! Times of steps and prefills, measured on a runner without an engine around it.

use std::ops::ControlFlow;
use std::time::Instant;

use model::{
    AcceptanceLaw, Chunk, DeviceTimes, DrafterConfig, LoadProgress, ModelConfig, ModelError,
    Runner, RunnerConfig, SamplingParams, SequenceStart, SequenceStep, Shape, StepKey, StepTraffic,
};
use ops::{Backend, EMIT_MAX, ROW_BUCKETS};

use crate::kv_pool::{BlockTable, KvPool};
use crate::shape;
use crate::start::{Configurations, Place, sources};
use crate::{EngineConfig, EngineError, LoadSpec};

/// Steps that the times on the device take at least: a first whole one, one that is recorded, one
/// that is timed, and as many commits.
const STEPS_LEAST: usize = 6;

/// What is timed.
#[derive(Clone, Debug)]
pub struct StepBench {
    /// Committed tokens of every sequence, before the first step.
    pub contexts: Vec<usize>,
    /// Sequences at once.
    pub batches: Vec<usize>,
    /// How they draft.
    pub shapes: Vec<Shape>,
    /// Prompt lengths whose prefill is timed.
    pub prefills: Vec<usize>,
    /// Timed steps per case.
    pub repeats: usize,
    /// Acceptance that is drawn from a law instead of computed.
    pub simulate: Option<AcceptanceLaw>,
}

/// One case of [`StepBench`].
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimes {
    /// Sequences.
    pub batch: usize,
    /// Committed tokens of a sequence before the first timed step.
    pub context: usize,
    /// How they draft.
    pub shape: Shape,
    /// Milliseconds of each step as an engine drives it: staging, launch, result.
    pub steps_ms: Vec<f64>,
    /// Milliseconds on the device alone, whole and in parts.
    pub device: DeviceTimes,
    /// Bytes that the step cannot avoid to move.
    pub traffic: StepTraffic,
    /// Milliseconds of those bytes at the copy rate.
    pub floor_ms: f64,
    /// Tokens emitted per step and sequence.
    pub tokens_per_step: f64,
    /// Under simulated acceptance, what the law says that would be in the mean.
    pub expected_tokens: Option<f64>,
}

impl StepBench {
    /// Whether the runner's context holds every case and the steps behind it.
    fn check(&self, runner: &RunnerConfig) -> Result<(), EngineError> {
        let rows = runner.tree_rows_max;
        let behind = rows + STEPS_LEAST * rows.min(EMIT_MAX);
        let most = runner.context_max.saturating_sub(behind);
        let cases = self.contexts.iter().chain(&self.prefills);
        match cases
            .into_iter()
            .find(|tokens| !(1..=most).contains(*tokens))
        {
            None => Ok(()),
            Some(tokens) => Err(EngineError::Config(format!(
                "a context of {tokens} tokens; model and KV pool allow 1 to {most} here"
            ))),
        }
    }
}

impl StepTimes {
    /// Tokens of all sequences per second of median steps: what the law says, where there is one,
    /// since a few draws from it say less.
    pub fn tokens_per_s(&self) -> f64 {
        let tokens = self.expected_tokens.unwrap_or(self.tokens_per_step);
        tokens * self.batch as f64 / self.median_ms() * 1e3
    }

    /// The median step.
    pub fn median_ms(&self) -> f64 {
        let mut sorted = self.steps_ms.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// Time of one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefillTime {
    /// Tokens.
    pub tokens: usize,
    /// Milliseconds of each run, first token included.
    pub runs_ms: Vec<f64>,
}

/// The model that is timed, and where it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedModel {
    /// The device.
    pub device: String,
    /// Bytes per second that a copy within the device reads and writes: the ruler of this run.
    pub copy_rate: f64,
    /// Seconds from opening the device to a loaded model.
    pub load_s: f64,
    /// Bytes allocated, and what the plan said.
    pub allocated: (u64, u64),
}

/// What was measured just now.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// The model is loaded; always first.
    Loaded(LoadedModel),
    /// A prompt.
    Prefill(PrefillTime),
    /// A case of steps.
    Step(StepTimes),
}

/// Rows of the largest step; cases of more are passed over.
pub const STEP_ROWS_MAX: usize = ROW_BUCKETS[ROW_BUCKETS.len() - 1];

/// Tokens that every case should have room for behind its context, for its steps on the device.
pub const SLACK_TOKENS: usize = 2048;
/// Bytes of the copy that serves as ruler.
const COPY_BYTES: usize = 2 << 30;
/// The same where memory is the host's, or short: still more than any cache holds.
const COPY_BYTES_SMALL: usize = 256 << 20;
/// Steps before the timed ones.
const WARM_UP_STEPS: usize = 5;
/// Runs of each prefill.
const PREFILL_RUNS: usize = 3;
/// Repetitions on the device at most: nobody takes sequences back between them.
const DEVICE_REPEATS: usize = 30;
/// Tokens of a context that are prefilled; what is longer goes on with random keys and values.
const REAL_CONTEXT: usize = 512;

/// Whoever is told of every measurement as it is made, and may break off.
type Listener<'a> = dyn FnMut(Measured) -> ControlFlow<()> + 'a;

/// Loads the model and times every case. `listener` is told of each at once.
pub fn time_steps(
    spec: &LoadSpec,
    config: &EngineConfig,
    bench: &StepBench,
    listener: &mut Listener<'_>,
) -> Result<(), EngineError> {
    let began = Instant::now();
    let configurations = Configurations::read(spec, config)?;
    let load = Load {
        spec,
        config,
        configurations: &configurations,
        began,
    };
    match Place::of(spec, &configurations)? {
        Place::Cpu(cpu) => load.run(cpu, bench, listener),
        Place::Cuda(cuda) => load.run(cuda, bench, listener),
    }
}

/// What is loaded before anything is timed.
struct Load<'a> {
    spec: &'a LoadSpec,
    config: &'a EngineConfig,
    configurations: &'a Configurations,
    began: Instant,
}

impl Load<'_> {
    fn run<B: Backend>(
        &self,
        backend: B,
        bench: &StepBench,
        listener: &mut Listener<'_>,
    ) -> Result<(), EngineError> {
        let (spec, config) = (self.spec, self.config);
        let (settings, info) = self.configurations.resolve(spec, config, &backend)?;
        info.check_fit()?;
        bench.check(&settings.runner)?;
        let loading = LoadProgress::default();
        let runner = Runner::load(backend, &sources(spec, config), settings.runner, &loading)?;
        runner.backend().wait().map_err(ModelError::Ops)?;
        let load_s = self.began.elapsed().as_secs_f64();
        let backend = runner.backend();
        let allocated = (backend.allocated_bytes(), runner.plan().total_bytes());
        let copy_rate = match B::OWN_MEMORY {
            true => backend.copy_rate(COPY_BYTES),
            false => backend.copy_rate(COPY_BYTES_SMALL),
        };
        let copy_rate = copy_rate.or_else(|_| backend.copy_rate(COPY_BYTES_SMALL));
        let loaded = LoadedModel {
            device: backend.name(),
            copy_rate: copy_rate.map_err(ModelError::Ops)?,
            load_s,
            allocated,
        };
        let bench = Bench {
            runner,
            bench,
            copy_rate: loaded.copy_rate,
        };
        match listener(Measured::Loaded(loaded)) {
            ControlFlow::Break(()) => Ok(()),
            ControlFlow::Continue(()) => Ok(bench.run(listener)?),
        }
    }
}

struct Bench<'a, B: Backend> {
    runner: Runner<B>,
    bench: &'a StepBench,
    copy_rate: f64,
}

impl<B: Backend> Bench<'_, B> {
    fn run(mut self, listener: &mut Listener<'_>) -> Result<(), ModelError> {
        let bench = self.bench;
        self.runner.simulate(bench.simulate)?;
        for &tokens in &bench.prefills {
            let prefill = self.time_prefill(tokens)?;
            if listener(Measured::Prefill(prefill)).is_break() {
                return Ok(());
            }
        }
        if bench.contexts.iter().any(|&context| context > REAL_CONTEXT) {
            self.runner.fill_pages(0)?;
        }
        for &context in &bench.contexts {
            for &batch in &bench.batches {
                for &shape in &bench.shapes {
                    if batch * shape.rows() > STEP_ROWS_MAX {
                        continue;
                    }
                    let times = self.time_case(batch, context, shape)?;
                    if listener(Measured::Step(times)).is_break() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn time_prefill(&mut self, tokens: usize) -> Result<PrefillTime, ModelError> {
        let mut runs_ms = Vec::with_capacity(PREFILL_RUNS);
        // The first run is not timed.
        for run in 0..=PREFILL_RUNS {
            let began = Instant::now();
            let _pages = self.begin(1, tokens)?;
            self.runner.backend().wait()?;
            if run > 0 {
                runs_ms.push(began.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok(PrefillTime { tokens, runs_ms })
    }

    /// Starts `count` sequences in slots 0, 1, ... and prefills their prompts of `prompt` tokens.
    /// Their pages are held by what comes back.
    fn begin(&mut self, count: usize, prompt: usize) -> Result<Vec<BlockTable>, ModelError> {
        let config = self.runner.config().clone();
        let mut kv = KvPool::new(config.kv_pages);
        let share = (config.kv_pages / count * ops::PAGE_TOKENS).min(config.context_max);
        let mut pages = Vec::with_capacity(count);
        for slot in 0..count {
            let table = kv.reserve(share).ok_or_else(|| {
                ModelError::Mismatch(format!("no pages for {count} sequences of {share} tokens"))
            })?;
            // Any ids do: what is computed does not depend on what they mean.
            let tokens: Vec<u32> = (0..prompt)
                .map(|i| ((i * 7919 + slot * 104_729 + 1) % config.vocab_used) as u32)
                .collect();
            self.runner.start(&SequenceStart {
                slot,
                prompt: &tokens,
                pages: table.pages(),
                sampling: &SamplingParams::default(),
                stop_ids: &[],
                tokens_min: 0,
                // Sequences are taken back between steps, what they emitted is not.
                tokens_max: u32::MAX as usize,
                logprobs: None,
                resume: None,
                emitted: &[],
            })?;
            let mut start = 0;
            for piece in tokens.chunks(config.prefill_rows_max) {
                let last = start + piece.len() == prompt;
                self.runner.prefill(&[Chunk {
                    slot,
                    start,
                    tokens: piece,
                    last,
                    prompt_logprobs: None,
                }])?;
                start += piece.len();
            }
            pages.push(table);
        }
        Ok(pages)
    }

    /// Lets the sequences stand at their context, and waits until they do.
    fn place(&mut self, batch: usize, context: usize) -> Result<(), ModelError> {
        for slot in 0..batch {
            self.runner.place(slot, context)?;
        }
        Ok(self.runner.backend().wait()?)
    }

    /// Whole steps and commits each emit up to [`EMIT_MAX`] tokens, in two runs more than this:
    /// [`STEPS_LEAST`] steps for a repeat of one.
    fn device_repeats(&self, context: usize) -> usize {
        let config = self.runner.config();
        let room = config.context_max - config.tree_rows_max - context;
        let fit = (room / (2 * EMIT_MAX)).saturating_sub(2).max(1);
        fit.min(DEVICE_REPEATS).min(self.bench.repeats)
    }

    fn time_case(
        &mut self,
        batch: usize,
        context: usize,
        shape: Shape,
    ) -> Result<StepTimes, ModelError> {
        let _pages = self.begin(batch, context.min(REAL_CONTEXT))?;
        self.place(batch, context)?;
        let steps: Vec<SequenceStep> = (0..batch)
            .map(|slot| SequenceStep {
                slot,
                shape,
                rows_max: None,
            })
            .collect();
        self.runner.step(&steps)?;
        let sequences_max = self.runner.config().sequences_max;
        let key = StepKey::of(std::iter::repeat_n(shape, batch), sequences_max);
        self.runner.record(key)?;
        let mut steps_ms = Vec::with_capacity(self.bench.repeats);
        let (mut emitted, mut predicted) = (0, None);
        for number in 0..WARM_UP_STEPS + self.bench.repeats {
            self.place(batch, context)?;
            let began = Instant::now();
            let output = self.runner.step(&steps)?;
            let ms = began.elapsed().as_secs_f64() * 1e3;
            if number >= WARM_UP_STEPS {
                steps_ms.push(ms);
                let tokens = output.sequences.iter().map(|s| s.tokens.len());
                emitted += tokens.sum::<usize>();
                predicted = output.sequences[0].prediction;
            }
        }
        let (target, drafter): (&ModelConfig, Option<&DrafterConfig>) =
            (self.runner.target_config(), self.runner.drafter_config());
        let contexts = vec![context; batch];
        let drafter = drafter.filter(|_| shape != Shape::Plain);
        let traffic = StepTraffic::of(target, drafter, self.runner.config(), &contexts);
        self.place(batch, context)?;
        let device = self
            .runner
            .device_times(&steps, self.device_repeats(context))?;
        Ok(StepTimes {
            batch,
            context,
            shape,
            device,
            floor_ms: traffic.total() as f64 / self.copy_rate * 1e3,
            traffic,
            // Every draft of a law predicts the same.
            expected_tokens: self.bench.simulate.map(|_| {
                1.0 + predicted.map_or(0.0, |prediction| shape::predicted(shape, &prediction))
            }),
            tokens_per_step: emitted as f64 / (self.bench.repeats * batch) as f64,
            steps_ms,
        })
    }
}

//! Times of steps and prefills, measured on a runner without an engine around it.

use std::time::Instant;

use model::{
    AcceptanceLaw, Chunk, DeviceTimes, DrafterConfig, LoadProgress, ModelConfig, ModelError,
    Runner, SamplingParams, SequenceStart, SequenceStep, Shape, StepKey, StepTraffic,
};
use ops::Backend;

use crate::kv_pool::{BlockTable, KvPool};
use crate::start::{Configurations, Place, sources};
use crate::{EngineConfig, EngineError, LoadSpec};

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
}

impl StepTimes {
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

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The device.
    pub device: String,
    /// Bytes per second that a copy within the device reads and writes: the ruler of this run.
    pub copy_rate: f64,
    /// Seconds from opening the device to a loaded model.
    pub load_s: f64,
    /// Bytes allocated, and what the plan said.
    pub allocated: (u64, u64),
    /// Prompts.
    pub prefills: Vec<PrefillTime>,
    /// Steps.
    pub steps: Vec<StepTimes>,
}

/// Bytes of the copy that serves as ruler; smaller where the device has little room.
const COPY_BYTES: usize = 2 << 30;
/// Steps before the timed ones.
const WARM_UP_STEPS: usize = 5;
/// Runs of each prefill.
const PREFILL_RUNS: usize = 3;

/// Loads the model and times every case; `progress` is told of each as it is done.
pub fn time_steps(
    spec: &LoadSpec,
    config: &EngineConfig,
    bench: &StepBench,
    progress: &mut dyn FnMut(&str),
) -> Result<StepReport, EngineError> {
    let began = Instant::now();
    let configurations = Configurations::read(spec, config)?;
    let load = Load {
        spec,
        config,
        configurations: &configurations,
        began,
    };
    match Place::of(spec, &configurations)? {
        Place::Cpu(cpu) => load.run(cpu, bench, progress),
        Place::Cuda(cuda) => load.run(cuda, bench, progress),
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
        progress: &mut dyn FnMut(&str),
    ) -> Result<StepReport, EngineError> {
        let (spec, config) = (self.spec, self.config);
        let (settings, info) = self.configurations.resolve(spec, config, &backend)?;
        info.check_fit()?;
        let loading = LoadProgress::default();
        let runner = Runner::load(backend, &sources(spec, config), settings.runner, &loading)?;
        runner.backend().wait().map_err(ModelError::Ops)?;
        let seconds = self.began.elapsed().as_secs_f64();
        Ok(Bench::new(runner, bench).run(seconds, progress)?)
    }
}

struct Bench<'a, B: Backend> {
    runner: Runner<B>,
    bench: &'a StepBench,
    copy_rate: f64,
}

/// Sequences in slots 0, 1, ... at some context.
struct Sequences {
    /// Held while the sequences run.
    _pages: Vec<BlockTable>,
    /// Committed tokens of the longest.
    length: usize,
}

impl<'a, B: Backend> Bench<'a, B> {
    fn new(runner: Runner<B>, bench: &'a StepBench) -> Self {
        Bench {
            runner,
            bench,
            copy_rate: 0.0,
        }
    }

    fn run(
        mut self,
        load_s: f64,
        progress: &mut dyn FnMut(&str),
    ) -> Result<StepReport, ModelError> {
        let backend = self.runner.backend();
        let allocated = (backend.allocated_bytes(), self.runner.plan().total_bytes());
        self.copy_rate = match backend.copy_rate(COPY_BYTES) {
            Err(_) => backend.copy_rate(COPY_BYTES / 16)?,
            Ok(rate) => rate,
        };
        self.runner.simulate(self.bench.simulate)?;
        let mut prefills = Vec::new();
        for &tokens in &self.bench.prefills {
            prefills.push(self.time_prefill(tokens)?);
            progress(&format!("prefill of {tokens}"));
        }
        let mut steps = Vec::new();
        for &context in &self.bench.contexts {
            for &batch in &self.bench.batches {
                for &shape in &self.bench.shapes {
                    if batch * shape.rows() > ops::ROW_BUCKETS[ops::ROW_BUCKETS.len() - 1] {
                        continue;
                    }
                    steps.push(self.time_case(batch, context, shape)?);
                    let median = steps.last().map_or(0.0, StepTimes::median_ms);
                    progress(&format!("{batch} x {shape:?} at {context}: {median:.3} ms"));
                }
            }
        }
        Ok(StepReport {
            device: self.runner.backend().name(),
            copy_rate: self.copy_rate,
            load_s,
            allocated,
            prefills,
            steps,
        })
    }

    fn time_prefill(&mut self, tokens: usize) -> Result<PrefillTime, ModelError> {
        let mut runs_ms = Vec::with_capacity(PREFILL_RUNS);
        // The first run is not timed.
        for run in 0..=PREFILL_RUNS {
            let began = Instant::now();
            self.begin(1, tokens)?;
            self.runner.backend().wait()?;
            if run > 0 {
                runs_ms.push(began.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok(PrefillTime { tokens, runs_ms })
    }

    /// Starts `count` sequences and prefills them to `context` tokens.
    fn begin(&mut self, count: usize, context: usize) -> Result<Sequences, ModelError> {
        let config = self.runner.config().clone();
        let mut kv = KvPool::new(config.kv_pages);
        let share = (config.kv_pages / count * ops::PAGE_TOKENS).min(config.context_max);
        let mut pages = Vec::with_capacity(count);
        for slot in 0..count {
            let table = kv.reserve(share - config.tree_rows_max).ok_or_else(|| {
                ModelError::Mismatch(format!("no pages for {count} sequences of {share} tokens"))
            })?;
            // Any ids do: what is computed does not depend on what they mean.
            let tokens: Vec<u32> = (0..context)
                .map(|i| ((i * 7919 + slot * 104_729 + 1) % config.vocab_used) as u32)
                .collect();
            self.runner.start(&SequenceStart {
                slot,
                prompt: &tokens,
                pages: table.pages(),
                sampling: &SamplingParams::default(),
                stop_ids: &[],
                tokens_min: 0,
                tokens_max: config.context_max,
                logprobs: None,
            })?;
            let mut start = 0;
            for piece in tokens.chunks(config.prefill_rows_max) {
                let last = start + piece.len() == context;
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
        Ok(Sequences {
            _pages: pages,
            length: context,
        })
    }

    fn time_case(
        &mut self,
        batch: usize,
        context: usize,
        shape: Shape,
    ) -> Result<StepTimes, ModelError> {
        let sequences = self.begin(batch, context)?;
        let steps: Vec<SequenceStep> = (0..batch)
            .map(|slot| SequenceStep { slot, shape })
            .collect();
        self.runner.step(&steps)?;
        let sequences_max = self.runner.config().sequences_max;
        let key = StepKey::of(std::iter::repeat_n(shape, batch), sequences_max);
        self.runner.record(key)?;
        let mut steps_ms = Vec::with_capacity(self.bench.repeats);
        let mut emitted = 0;
        for number in 0..WARM_UP_STEPS + self.bench.repeats {
            let began = Instant::now();
            let output = self.runner.step(&steps)?;
            let ms = began.elapsed().as_secs_f64() * 1e3;
            if number >= WARM_UP_STEPS {
                steps_ms.push(ms);
                emitted += output
                    .sequences
                    .iter()
                    .map(|s| s.tokens.len())
                    .sum::<usize>();
            }
        }
        let (target, drafter): (&ModelConfig, Option<&DrafterConfig>) =
            (self.runner.target_config(), self.runner.drafter_config());
        let contexts = vec![sequences.length; batch];
        let drafter = drafter.filter(|_| shape != Shape::Plain);
        let traffic = StepTraffic::of(target, drafter, self.runner.config(), &contexts);
        let device = self.runner.device_times(&steps, self.bench.repeats)?;
        Ok(StepTimes {
            batch,
            context,
            shape,
            device,
            floor_ms: traffic.total() as f64 / self.copy_rate * 1e3,
            traffic,
            tokens_per_step: emitted as f64 / (self.bench.repeats * batch) as f64,
            steps_ms,
        })
    }
}

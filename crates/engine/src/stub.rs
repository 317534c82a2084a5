//! An engine whose steps cost nothing: it says the same tokens over and over. Benches measure with
//! it what everything around the model costs. It is no part of the interface.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::{
    Chunk, Constraint, CutReason, Dtype, Emitted, MemoryPlan, ModelError, PrefillOutput, Replay,
    RunnerConfig, SequenceStart, SequenceStep, Shape, StepKey, StepOutput, StepSequence,
    StepTiming, StepTree,
};
use ops::PAGE_TOKENS;

use crate::settings::Settings;
use crate::shape::Drafting;
use crate::step_runner::StepRunner;
use crate::{Algorithm, Budget, Engine, EngineError, ModelInfo};

/// What the stub says, and its sizes.
#[derive(Clone, Debug)]
pub struct StubSpec {
    /// The output at time `i` is token `i % words.len()`; not empty.
    pub words: Vec<u32>,
    /// Ids that name tokens.
    pub vocab_used: usize,
    /// Time that a step takes, spent asleep as the host of a GPU would.
    pub step: Duration,
    /// Sequences at once.
    pub running_max: usize,
    /// Longest prompt and output.
    pub context_length: usize,
}

/// When tokens were made: time `i` is that of every sequence's token of the `i`-th call.
#[derive(Clone, Debug, Default)]
pub struct StubClock(Arc<Mutex<Vec<Instant>>>);

impl StubClock {
    /// All times so far.
    pub fn times(&self) -> Vec<Instant> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Index of the call that ends now.
    fn strike(&self) -> usize {
        let mut times = self.lock();
        times.push(Instant::now());
        times.len() - 1
    }
}

/// Starts an engine over a stub; plain decoding, one token per step.
pub fn start(spec: StubSpec) -> Result<(Engine, StubClock), EngineError> {
    let pages = spec.running_max * spec.context_length.div_ceil(PAGE_TOKENS);
    let runner = RunnerConfig {
        sequences_max: spec.running_max,
        context_max: spec.context_length,
        kv_pages: pages,
        prefill_rows_max: 2048,
        tree_rows_max: 1,
        step_rows_max: spec.running_max,
        topk: 1,
        weight_dtype: Dtype::F32,
        kv_dtype: Dtype::F32,
        vocab_used: spec.vocab_used,
        graphs: false,
        snapshots: 0,
        host_snapshots: 0,
    };
    let info = ModelInfo {
        model_type: "stub".into(),
        architectures: Vec::new(),
        vocab_rows: spec.vocab_used,
        vocab_used: spec.vocab_used,
        context_length: spec.context_length,
        tokens_total: pages * PAGE_TOKENS,
        device: "none".into(),
        plan: MemoryPlan::default(),
        memory: None,
        room: None,
        algorithm: Algorithm::None,
        budget: Budget::Auto,
        topk: 1,
        chain_drafts: 0,
        tree_rows_max: 1,
    };
    let settings = Settings {
        runner: runner.clone(),
        drafting: Drafting::Off,
        shapes: vec![Shape::Plain],
        queue_max: 0,
        draft_batch_max: 0,
        share_rows: false,
        skip_warmup: true,
        prefix_cache: None,
    };
    let clock = StubClock::default();
    let stub = Stub {
        config: runner,
        spec,
        clock: clock.clone(),
        left: HashMap::new(),
    };
    let engine = Engine::spawn(settings, info, move |_| Ok(stub))?;
    Ok((engine, clock))
}

struct Stub {
    config: RunnerConfig,
    spec: StubSpec,
    clock: StubClock,
    /// Tokens that a slot may still emit.
    left: HashMap<usize, usize>,
}

impl Stub {
    /// The token of a call, and whether it is the slot's last one.
    fn emit(&mut self, slot: usize, call: usize) -> (Emitted, Option<CutReason>) {
        let id = self.spec.words[call % self.spec.words.len()];
        let left = self.left.entry(slot).or_default();
        *left = left.saturating_sub(1);
        let ended = (*left == 0).then_some(CutReason::Tokens);
        (Emitted { id, logprob: None }, ended)
    }
}

impl StepRunner for Stub {
    fn config(&self) -> &RunnerConfig {
        &self.config
    }

    fn start(&mut self, start: &SequenceStart<'_>) -> Result<(), ModelError> {
        let left = start.tokens_max - start.emitted.len();
        self.left.insert(start.slot, left);
        Ok(())
    }

    fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Vec<PrefillOutput>, ModelError> {
        let call = self.clock.strike();
        let mut outputs = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let (first, ended) = match chunk.last {
                true => {
                    let (token, ended) = self.emit(chunk.slot, call);
                    (Some(token), ended)
                }
                false => (None, None),
            };
            outputs.push(PrefillOutput {
                slot: chunk.slot,
                first,
                ended,
                not_finite: None,
                prompt_logprobs: Vec::new(),
            });
        }
        Ok(outputs)
    }

    fn step(&mut self, sequences: &[SequenceStep]) -> Result<StepOutput, ModelError> {
        if !self.spec.step.is_zero() {
            std::thread::sleep(self.spec.step);
        }
        let call = self.clock.strike();
        let mut outputs = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let (token, ended) = self.emit(sequence.slot, call);
            outputs.push(StepSequence {
                slot: sequence.slot,
                tokens: vec![token],
                rows: 1,
                drafted: 0,
                accepted: 0,
                ended,
                not_finite: None,
                prediction: None,
            });
        }
        Ok(StepOutput {
            sequences: outputs,
            timing: StepTiming::default(),
        })
    }

    /// Says what it always says, whatever the constraints.
    fn prefill_constrained(
        &mut self,
        chunks: &[Chunk<'_>],
        _: &mut [Option<&mut dyn Constraint>],
    ) -> Result<Vec<PrefillOutput>, ModelError> {
        self.prefill(chunks)
    }

    fn step_constrained(
        &mut self,
        sequences: &[SequenceStep],
        _: &mut [Option<&mut dyn Constraint>],
    ) -> Result<StepOutput, ModelError> {
        self.step(sequences)
    }

    /// There are no trees to be shown.
    fn step_trees(
        &self,
        _: &[SequenceStep],
        _: &[StepSequence],
        asked: &[bool],
    ) -> Result<Vec<Option<StepTree>>, ModelError> {
        Ok(vec![None; asked.len()])
    }

    fn record(&mut self, _: StepKey) -> Result<bool, ModelError> {
        Ok(false)
    }

    // It has no memory, so that there is nothing to keep or to bring back.

    fn extend_pages(&mut self, _: usize, _: usize, _: &[u32]) -> Result<(), ModelError> {
        Ok(())
    }

    fn replay(&mut self, _: &[Replay<'_>]) -> Result<(), ModelError> {
        Ok(())
    }

    fn save_snapshot(&mut self, _: usize, _: usize) -> Result<(), ModelError> {
        Ok(())
    }

    fn offload_snapshot(&mut self, _: usize, _: usize) -> Result<(), ModelError> {
        Ok(())
    }

    fn fetch_snapshot(&mut self, _: usize, _: usize) -> Result<(), ModelError> {
        Ok(())
    }

    fn begin_decoded(&mut self, _: usize, _: usize) -> Result<(), ModelError> {
        Ok(())
    }

    fn save_decoded(&mut self, _: usize, _: usize, _: usize) -> Result<(), ModelError> {
        Ok(())
    }
}

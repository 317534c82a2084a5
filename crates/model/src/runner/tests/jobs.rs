//! Sequences that are started, taken away and brought back in tests.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::{Constraint, Emitted, Resume, StepSequence};
use super::constrained::{Law, Toy};
use super::*;

/// What is asked of a runner.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) prompt: Vec<u32>,
    pub(super) params: SamplingParams,
    pub(super) shape: Shape,
    pub(super) law: Option<Law>,
}

impl Job {
    /// All that follows the prompt, as far as it was decoded, in one piece.
    pub(super) fn decode<B: Backend>(&self, runner: &mut Runner<B>, tokens: usize) -> Output {
        let mut running = Running::start(runner, 0, self, &Beginning::default());
        running.prefill(runner, self, runner.config.prefill_rows_max, &mut |_, _| {});
        while running.output.tokens.len() < tokens {
            step(runner, &mut [(&mut running, self)]);
        }
        running.output
    }
}

/// Tokens, and the steps that brought them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Output {
    pub(super) tokens: Vec<Emitted>,
    pub(super) steps: Vec<StepSequence>,
}

impl Output {
    pub(super) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    /// Tokens before each step.
    pub(super) fn boundaries(&self) -> Vec<usize> {
        let mut tokens = 1;
        let before = self.steps.iter().map(|step| {
            tokens += step.tokens.len();
            tokens - step.tokens.len()
        });
        before.collect()
    }
}

/// What a sequence begins with.
#[derive(Clone, Debug, Default)]
pub(super) struct Beginning {
    pub(super) resume: Option<Resume>,
    pub(super) emitted: Vec<u32>,
    /// The slot whose first pages hold what is resumed.
    pub(super) pages_of: usize,
    /// Pages of its own that it gets at first; `None`: all.
    pub(super) pages: Option<usize>,
}

/// Pages of a slot in descending order: a table that ignored the order would fail.
pub(super) fn pages_of(config: &RunnerConfig, slot: usize) -> Vec<u32> {
    let per_sequence = config.pages_per_sequence();
    let pages = (slot * per_sequence) as u32..((slot + 1) * per_sequence) as u32;
    pages.rev().collect()
}

/// A sequence in its slot.
pub(super) struct Running {
    pub(super) slot: usize,
    length: usize,
    /// What it has emitted since it was started.
    pub(super) output: Output,
    toy: Option<Toy>,
    emitted: usize,
}

impl Running {
    pub(super) fn start<B: Backend>(
        runner: &mut Runner<B>,
        slot: usize,
        job: &Job,
        beginning: &Beginning,
    ) -> Self {
        let length = beginning.resume.map_or(0, |resume| resume.length);
        let mut pages = pages_of(&runner.config, slot);
        let shared = pages_of(&runner.config, beginning.pages_of);
        pages[..length / 64].copy_from_slice(&shared[..length / 64]);
        pages.truncate(beginning.pages.unwrap_or(usize::MAX));
        runner
            .start(&SequenceStart {
                slot,
                prompt: &job.prompt,
                pages: &pages,
                sampling: &job.params,
                stop_ids: &[],
                tokens_min: 0,
                tokens_max: 10_000,
                logprobs: Some(3),
                resume: beginning.resume,
                emitted: &beginning.emitted,
            })
            .expect("the slot starts");
        Running {
            slot,
            length,
            output: Output::default(),
            toy: (job.law.as_ref()).map(|law| Toy::new(law, &beginning.emitted)),
            emitted: beginning.emitted.len(),
        }
    }

    /// Prefills what is left of the prompt in chunks of so many tokens; `done` is called behind
    /// each, with the length.
    pub(super) fn prefill<B: Backend>(
        &mut self,
        runner: &mut Runner<B>,
        job: &Job,
        chunk: usize,
        done: &mut dyn FnMut(&mut Runner<B>, usize),
    ) {
        while self.length < job.prompt.len() {
            let start = self.length;
            let end = ((start / chunk + 1) * chunk).min(job.prompt.len());
            let chunk = Chunk {
                slot: self.slot,
                start,
                tokens: &job.prompt[start..end],
                last: end == job.prompt.len() && self.emitted == 0,
                prompt_logprobs: None,
            };
            let toy = self.toy.as_mut().map(|toy| toy as &mut dyn Constraint);
            let outputs = runner
                .prefill_constrained(&[chunk], &mut [toy])
                .expect("the prefill runs");
            self.length = end;
            if let Some(first) = &outputs[0].first {
                self.emit(std::slice::from_ref(first));
            }
            done(runner, end);
        }
    }

    fn emit(&mut self, tokens: &[Emitted]) {
        if let Some(toy) = &mut self.toy {
            tokens.iter().for_each(|token| toy.accept(token.id));
        }
        self.output.tokens.extend_from_slice(tokens);
    }

    /// `output` behind the `emitted` first tokens of `whole`, or its beginning.
    pub(super) fn assert_continues(&self, whole: &Output) {
        let rest = &whole.tokens[self.emitted..];
        let common = rest.len().min(self.output.tokens.len());
        assert!(common > 0 || rest.is_empty());
        assert_eq!(
            self.output.tokens[..common],
            rest[..common],
            "slot {} behind {} emitted tokens",
            self.slot,
            self.emitted
        );
        let Some(first) = (whole.boundaries().iter()).position(|&at| at == self.emitted.max(1))
        else {
            return;
        };
        for (step, expected) in self.output.steps.iter().zip(&whole.steps[first..]) {
            assert_eq!(step, expected, "behind {} emitted tokens", self.emitted);
        }
    }
}

/// One step of all of them.
pub(super) fn step<B: Backend>(runner: &mut Runner<B>, running: &mut [(&mut Running, &Job)]) {
    let steps: Vec<SequenceStep> = running
        .iter()
        .map(|(running, job)| SequenceStep {
            rows_max: None,
            slot: running.slot,
            shape: job.shape,
        })
        .collect();
    let mut constraints: Vec<_> = running
        .iter_mut()
        .map(|(running, _)| running.toy.as_mut().map(|toy| toy as &mut dyn Constraint))
        .collect();
    let output = runner.step_constrained(&steps, &mut constraints);
    let sequences = output.expect("the step runs").sequences;
    for ((running, _), result) in running.iter_mut().zip(sequences) {
        assert_eq!(result.slot, running.slot);
        running.emit(&result.tokens);
        running
            .output
            .steps
            .push(StepSequence { slot: 0, ..result });
    }
}

pub(super) fn tokens(seed: u64, count: usize, vocab: usize) -> Vec<u32> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    (0..count)
        .map(|_| rng.random_range(0..vocab as u32 - 1))
        .collect()
}

/// Greedy, and with everything that depends on what was said before.
pub(super) fn samplings() -> [SamplingParams; 2] {
    [
        SamplingParams::default(),
        SamplingParams {
            temperature: 0.8,
            seed: 7,
            repetition_penalty: 1.1,
            presence_penalty: 0.3,
            frequency_penalty: 0.4,
            ..SamplingParams::default()
        },
    ]
}

pub(super) const SHAPES: [Shape; 3] = [Shape::Plain, Shape::Chain(7), Shape::Tree(31)];

/// A runner with room for snapshots.
pub(super) fn config_with_snapshots() -> RunnerConfig {
    RunnerConfig {
        snapshots: 5,
        host_snapshots: 2,
        ..config()
    }
}

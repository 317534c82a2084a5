//! First forwards: they touch all memory, find numbers that are not finite, record steps where the
//! device can, and time the shapes.

use std::time::Instant;

use model::{
    Chunk, ModelError, RunnerConfig, SamplingParams, SequenceStart, SequenceStep, Shape, StepKey,
};
use ops::EMIT_MAX;

use crate::kv_pool::{BlockTable, KvPool};
use crate::step_runner::StepRunner;
use crate::timing_table::{ShapeTiming, TimingTable};

/// Sequences of the measurements behind that of one; the largest is of as many as may run.
const BATCHES: [usize; 4] = [4, 16, 64, 256];
/// Larger batches are not measured behind a step that took this long: they go on along the line.
const BATCH_MS: f64 = 100.0;
/// Prompt tokens of a scratch sequence.
const PROMPT: usize = 16;
/// Timed steps of one sequence per shape, after one that is not timed.
const TIMED_STEPS: usize = 5;
/// The same of several sequences: what steps take later corrects them.
const TIMED_BATCH_STEPS: usize = 3;
/// Timing of a shape ends early once it took this long.
const LONG_MS: f64 = 500.0;

/// What is timed and recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarmUp<'a> {
    /// The shapes that requests may use.
    pub(crate) shapes: &'a [Shape],
    /// Time steps of several sequences, too.
    pub(crate) batch: bool,
    /// No step drafts for more sequences than this.
    pub(crate) drafting_max: usize,
    /// Sequences share rows where several draft.
    pub(crate) share: bool,
}

/// A dummy request in slot 0, 1, ...
struct Scratch {
    pages: BlockTable,
    emitted: usize,
    prompt: usize,
    tokens_max: usize,
}

impl Scratch {
    fn has_room(&self, rows: usize) -> bool {
        let committed = self.prompt + self.emitted - 1;
        self.tokens_max > self.emitted + 1 && committed + rows <= self.pages.tokens()
    }
}

/// A step of fresh sequences of one shape, again and again.
struct Repeated {
    sequences: Vec<Scratch>,
    steps: Vec<SequenceStep>,
    ended: bool,
}

impl Repeated {
    /// `None` if `count` sequences do not fit.
    fn begin<R: StepRunner>(
        runner: &mut R,
        shape: Shape,
        count: usize,
        share: bool,
        beat: &impl Fn(),
    ) -> Result<Option<Self>, ModelError> {
        let Some(sequences) = begin(runner, count, shape.rows(), beat)? else {
            return Ok(None);
        };
        let shares = share && count > 1 && shape != Shape::Plain;
        let steps = (0..count).map(|slot| SequenceStep {
            slot,
            shape,
            rows_max: shares.then(|| shape.rows()),
        });
        Ok(Some(Repeated {
            steps: steps.collect(),
            sequences,
            ended: false,
        }))
    }

    /// Milliseconds of a step; `None` if the sequences have no room for one.
    fn step<R: StepRunner>(
        &mut self,
        runner: &mut R,
        beat: &impl Fn(),
    ) -> Result<Option<f64>, ModelError> {
        let rows = self.steps[0].shape.rows();
        if self.ended || !self.sequences.iter().all(|s| s.has_room(rows)) {
            return Ok(None);
        }
        let began = Instant::now();
        let output = runner.step(&self.steps)?;
        let ms = began.elapsed().as_secs_f64() * 1e3;
        beat();
        for (sequence, step) in self.sequences.iter_mut().zip(output.sequences) {
            if let Some(fault) = step.not_finite {
                return Err(ModelError::NotFinite(fault));
            }
            sequence.emitted += step.tokens.len();
            self.ended |= step.ended.is_some();
        }
        Ok(Some(ms))
    }
}

/// Records and times every shape with one sequence, and with [`BATCHES`] of them where that is asked
/// for. Shapes that the context cannot hold are left out. Calls `beat` after every step.
pub(crate) fn warm_up<R: StepRunner>(
    runner: &mut R,
    plan: WarmUp<'_>,
    beat: impl Fn(),
) -> Result<TimingTable, ModelError> {
    let mut table = TimingTable {
        shapes: Vec::with_capacity(plan.shapes.len()),
    };
    let mut records = runner.config().graphs;
    for &shape in plan.shapes {
        records = records && record(runner, shape, plan, &beat)?;
        let Some(one_ms) = step_ms(runner, shape, 1, plan.share, &beat)? else {
            continue;
        };
        let mut times = vec![(1, one_ms)];
        for count in batches(runner.config(), shape, plan) {
            if times.last().is_some_and(|&(_, ms)| ms > BATCH_MS) {
                break;
            }
            let Some(ms) = step_ms(runner, shape, count, plan.share, &beat)? else {
                break;
            };
            times.push((count, ms));
        }
        table.shapes.push(ShapeTiming { shape, times });
    }
    Ok(table)
}

/// Sequences of the larger steps of a shape that are timed, as far as so many may run, or draft, and a
/// step holds their rows.
fn batches(config: &RunnerConfig, shape: Shape, plan: WarmUp<'_>) -> Vec<usize> {
    if !plan.batch {
        return Vec::new();
    }
    let drafting = match shape {
        Shape::Plain => usize::MAX,
        Shape::Chain(_) | Shape::Tree(_) => plan.drafting_max,
    };
    let most = (config.sequences_max.min(drafting)).min(config.step_rows_max / shape.rows());
    let smaller = BATCHES.into_iter().filter(|&count| count < most);
    smaller.chain((most > 1).then_some(most)).collect()
}

/// Records the steps of one shape with 1, 2, ... sequences, each key after a step that has it.
/// `false`: the device records nothing.
fn record<R: StepRunner>(
    runner: &mut R,
    shape: Shape,
    plan: WarmUp<'_>,
    beat: &impl Fn(),
) -> Result<bool, ModelError> {
    let sequences_max = runner.config().sequences_max;
    let most = match shape {
        Shape::Plain => sequences_max,
        Shape::Chain(_) | Shape::Tree(_) => plan.drafting_max.min(sequences_max),
    };
    let mut smaller = 0;
    for (count, key) in StepKey::uniform(shape, sequences_max, plan.share) {
        if smaller >= most {
            break;
        }
        smaller = count;
        let Some(mut steps) = Repeated::begin(runner, shape, count.min(most), plan.share, beat)?
        else {
            break;
        };
        if steps.step(runner, beat)?.is_none() {
            break;
        }
        if !runner.record(key)? {
            return Ok(false);
        }
        beat();
    }
    Ok(true)
}

/// Median milliseconds of a step of `count` fresh sequences; `None` if they do not fit.
fn step_ms<R: StepRunner>(
    runner: &mut R,
    shape: Shape,
    count: usize,
    share: bool,
    beat: &impl Fn(),
) -> Result<Option<f64>, ModelError> {
    let Some(mut steps) = Repeated::begin(runner, shape, count, share, beat)? else {
        return Ok(None);
    };
    let timed = match count {
        1 => TIMED_STEPS,
        _ => TIMED_BATCH_STEPS,
    };
    let mut times = Vec::with_capacity(1 + timed);
    while times.len() <= timed {
        let Some(ms) = steps.step(runner, beat)? else {
            break;
        };
        times.push(ms);
        if times.len() > 1 && times.iter().sum::<f64>() > LONG_MS {
            break;
        }
    }
    if times.len() > 1 {
        times.remove(0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied())
}

/// Starts scratch sequences for steps of `rows` rows each in slots 0, 1, ... and prefills them, many in a
/// call; `None` if there is no room for so many.
fn begin<R: StepRunner>(
    runner: &mut R,
    count: usize,
    rows: usize,
    beat: &impl Fn(),
) -> Result<Option<Vec<Scratch>>, ModelError> {
    let config = runner.config();
    let (context, vocab) = (config.context_max, config.vocab_used);
    let prompt = PROMPT.min(context / 2);
    let at_once = (config.prefill_rows_max / prompt).max(1);
    let tokens_max = (1 + EMIT_MAX * (1 + TIMED_STEPS)).min(context - prompt);
    let longest = (prompt + tokens_max + rows - 1).min(context);
    let mut kv = KvPool::new(config.kv_pages);
    let tokens: Vec<u32> = (0..prompt).map(|i| ((i * 37) % vocab) as u32).collect();
    let mut sequences = Vec::with_capacity(count);
    let mut chunks = Vec::with_capacity(count);
    for slot in 0..count {
        let Some(pages) = kv.reserve(longest) else {
            return Ok(None);
        };
        runner.start(&SequenceStart {
            slot,
            prompt: &tokens,
            pages: pages.pages(),
            sampling: &SamplingParams::default(),
            stop_ids: &[],
            tokens_min: 0,
            tokens_max,
            logprobs: None,
            resume: None,
            emitted: &[],
        })?;
        chunks.push(Chunk {
            slot,
            start: 0,
            tokens: &tokens,
            last: true,
            prompt_logprobs: None,
        });
        sequences.push(Scratch {
            pages,
            emitted: 1,
            prompt,
            tokens_max,
        });
    }
    for chunks in chunks.chunks(at_once) {
        let outputs = runner.prefill(chunks)?;
        beat();
        if let Some(fault) = outputs.iter().find_map(|output| output.not_finite.clone()) {
            return Err(ModelError::NotFinite(fault));
        }
        if outputs.iter().any(|output| output.ended.is_some()) {
            return Ok(None);
        }
    }
    Ok(Some(sequences))
}

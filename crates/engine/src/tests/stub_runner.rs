//! A deterministic model: the next token is a hash of the history, drafts are accepted by a hash
//! of the history and the shape. Every call is checked against the runner's contract.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use model::{
    Chunk, Constraint, CutReason, Emitted, ModelError, Prediction, PrefillOutput, Replay,
    RunnerConfig, SequenceStart, SequenceStep, Shape, StepKey, StepNode, StepOutput, StepSequence,
    StepTiming, StepTree, TokenLogprob,
};
use ops::{DEPTH_MAX, PAGE_TOKENS, is_allowed};

pub(crate) use super::stub_gate::{Fault, Gate};
use super::stub_memory::{Digests, Memory};
use crate::shape::STEP_ROWS_MAX;
use crate::step_runner::StepRunner;

/// The hash behind everything.
pub(crate) fn mix(state: u64, value: u64) -> u64 {
    let mut x = (state ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The law of the next token.
pub(crate) fn next_token(history: &[u32], seed: u64, banned: &[u32], vocab: usize) -> u32 {
    token_after(law_of(seed, history), vocab, |id| banned.contains(&id))
}

/// What the law knows of a history.
pub(crate) fn law_of(seed: u64, history: &[u32]) -> u64 {
    let tokens = history.iter();
    tokens.fold(seed, |law, &token| mix(law, u64::from(token)))
}

/// The token behind a history; something must not be banned.
pub(crate) fn token_after(law: u64, vocab: usize, banned: impl Fn(u32) -> bool) -> u32 {
    let mut token = (mix(law, 1) % vocab as u64) as u32;
    while banned(token) {
        token = (token + 1) % vocab as u32;
    }
    token
}

/// What the stub reports of a token.
pub(crate) fn fake_logprob(position: usize, token: u32, top: usize) -> TokenLogprob {
    TokenLogprob {
        logprob: -(position as f32) - token as f32 / 1024.0,
        top: (0..top).map(|rank| (rank as u32, -(rank as f32))).collect(),
    }
}

struct Slot {
    prompt: Vec<u32>,
    output: Vec<u32>,
    pages: Vec<u32>,
    /// [`law_of`] prompt and output.
    law: u64,
    stop_ids: Vec<u32>,
    tokens_min: usize,
    tokens_max: usize,
    logprobs: Option<usize>,
    /// Committed rows.
    rows: Digests,
    /// Rows by which the state lags.
    pending: usize,
    /// Ended, or its pages went to somebody else.
    dead: bool,
}

impl Slot {
    /// Appends an output token.
    fn push(&mut self, token: u32) {
        self.output.push(token);
        self.law = mix(self.law, u64::from(token));
    }

    /// Processes output tokens.
    fn commit(&mut self, memory: &mut Memory, tokens: Range<usize>) {
        let from = self.rows.len();
        let tokens = self.output[tokens].iter();
        tokens.for_each(|&token| self.rows.push(token));
        memory.write(&self.pages, &self.rows, from);
    }
}

pub(crate) struct StubRunner {
    config: RunnerConfig,
    slots: BTreeMap<usize, Slot>,
    pub(super) memory: Memory,
    /// Steps and replays so far.
    forwards: usize,
    gate: Gate,
    fault: Fault,
    calls: (usize, usize, usize),
    /// Every shape that was run.
    pub(crate) shapes: Arc<Mutex<Vec<Vec<Shape>>>>,
    /// Every key that was recorded.
    pub(crate) recorded: Arc<Mutex<Vec<StepKey>>>,
    /// The last step.
    last: Vec<SequenceStep>,
}

/// Rows of every sequence as a device deals them: some hash decides who gets the next one.
fn deal(sequences: &[SequenceStep], call: usize) -> Vec<usize> {
    let given = |step: &SequenceStep| step.shape.rows();
    let mut rows: Vec<usize> = (sequences.iter())
        .map(|step| step.rows_max.map_or(given(step), |_| 1))
        .collect();
    let pool: usize = sequences.iter().map(given).sum::<usize>() - rows.iter().sum::<usize>();
    for row in 0..pool {
        let takes = |&s: &usize| {
            let most = match sequences[s].shape {
                Shape::Chain(_) => 1 + DEPTH_MAX,
                _ => usize::MAX,
            };
            sequences[s]
                .rows_max
                .is_some_and(|own| rows[s] < own.min(most))
        };
        let takers: Vec<usize> = (0..rows.len()).filter(takes).collect();
        let hash = mix(call as u64, row as u64) as usize;
        if let Some(&taker) = takers.get(hash % takers.len().max(1)) {
            rows[taker] += 1;
        }
    }
    rows
}

impl StubRunner {
    pub(crate) fn new(config: RunnerConfig, gate: Gate, fault: Fault) -> Self {
        StubRunner {
            config,
            slots: BTreeMap::new(),
            memory: Memory::default(),
            forwards: 0,
            gate,
            fault,
            calls: (0, 0, 0),
            shapes: Arc::default(),
            recorded: Arc::default(),
            last: Vec::new(),
        }
    }

    fn next(
        &self,
        slot: &Slot,
        constraint: &mut Option<&mut dyn Constraint>,
    ) -> (Emitted, Option<CutReason>) {
        let emitted = slot.output.len();
        let length = slot.prompt.len() + emitted;
        let vocab = self.config.vocab_used;
        let words = constraint.as_mut().map(|constraint| {
            let mut words = vec![0; vocab.div_ceil(32)];
            constraint.mask(&mut words);
            words
        });
        let banned = |id: u32| {
            (emitted < slot.tokens_min && slot.stop_ids.contains(&id))
                || words.as_ref().is_some_and(|words| !is_allowed(words, id))
        };
        let id = match (0..vocab as u32).all(banned) {
            true => 0,
            false => token_after(slot.law, vocab, banned),
        };
        let logprob = slot.logprobs.map(|top| fake_logprob(length, id, top));
        let cut = if slot.stop_ids.contains(&id) {
            Some(CutReason::Stop)
        } else if emitted + 1 == slot.tokens_max {
            Some(CutReason::Tokens)
        } else if length + 1 == self.config.context_max {
            Some(CutReason::Context)
        } else {
            None
        };
        (Emitted { id, logprob }, cut)
    }

    fn step_one(
        &mut self,
        step: &SequenceStep,
        rows: usize,
        mut constraint: Option<&mut dyn Constraint>,
    ) -> StepSequence {
        let (index, shape) = (step.slot, step.shape);
        let mut slot = self.slots.remove(&index).expect("the slot was started");
        assert!(!slot.dead, "a step of an ended sequence");
        let most = step.rows_max.unwrap_or(rows);
        assert!(!slot.output.is_empty() && most <= self.config.tree_rows_max);
        assert!(shape != Shape::Plain || step.rows_max.is_none());
        assert_eq!(
            slot.rows.len(),
            slot.prompt.len() + slot.output.len() - 1,
            "a step before the prompt's end, or before the replay's"
        );
        self.memory.check(&slot.pages, &slot.rows);
        self.memory.draft(&slot.pages, slot.rows.len(), most);
        let depth = (rows - 1).min(DEPTH_MAX);
        let hash = mix(
            slot.output.len() as u64,
            u64::from(slot.output[0]) + rows as u64,
        );
        let would_accept = (hash % (depth as u64 + 1)) as usize;
        let mut tokens = Vec::new();
        let mut ended = None;
        while tokens.len() <= would_accept && ended.is_none() {
            let (token, cut) = self.next(&slot, &mut constraint);
            if let Some(constraint) = &mut constraint {
                constraint.accept(token.id);
            }
            let processed = slot.output.len() - 1;
            slot.push(token.id);
            tokens.push(token);
            ended = cut;
            slot.commit(&mut self.memory, processed..processed + 1);
        }
        slot.pending = tokens.len() - 1;
        if let Some(constraint) = &mut constraint {
            constraint.rollback(tokens.len());
        }
        slot.dead = ended.is_some();
        self.slots.insert(index, slot);
        StepSequence {
            slot: index,
            rows,
            drafted: rows - 1,
            accepted: tokens.len().min(would_accept),
            tokens,
            ended,
            not_finite: None,
            prediction: (shape != Shape::Plain).then_some(Prediction {
                tree: [2.0, 3.0, 4.0, 4.5],
                chain: [1.5, 2.0, 2.5],
            }),
        }
    }

    fn chunk(
        &mut self,
        chunk: &Chunk<'_>,
        constraint: &mut Option<&mut dyn Constraint>,
    ) -> PrefillOutput {
        let mut slot = self
            .slots
            .remove(&chunk.slot)
            .expect("the slot was started");
        assert!(!slot.dead, "a chunk of an ended sequence");
        assert_eq!(chunk.start, slot.rows.len(), "chunks follow each other");
        assert!(
            chunk.start.is_multiple_of(64),
            "chunks start where a page does"
        );
        let end = chunk.start + chunk.tokens.len();
        assert_eq!(chunk.tokens, &slot.prompt[chunk.start..end]);
        assert!(!chunk.tokens.is_empty());
        assert!(
            end.is_multiple_of(64) || end == slot.prompt.len(),
            "chunks end at pages or the end"
        );
        assert!(!chunk.last || end == slot.prompt.len());
        assert!(
            !chunk.last || slot.output.is_empty(),
            "the first token of an output that is there"
        );
        let tokens = chunk.tokens.iter();
        tokens.for_each(|&token| slot.rows.push(token));
        self.memory.write(&slot.pages, &slot.rows, chunk.start);
        let mut scored = Vec::new();
        if let Some(ask) = chunk.prompt_logprobs {
            assert_eq!(ask.next, slot.prompt.get(end).copied());
            let known = chunk.tokens[1..].iter().copied().chain(ask.next);
            let at = |(i, token)| fake_logprob(chunk.start + 1 + i, token, ask.top);
            scored = known.enumerate().map(at).collect();
        }
        let mut first = None;
        let mut ended = None;
        if chunk.last {
            let (token, cut) = self.next(&slot, constraint);
            slot.push(token.id);
            first = Some(token);
            ended = cut;
        }
        slot.dead = ended.is_some();
        self.slots.insert(chunk.slot, slot);
        PrefillOutput {
            slot: chunk.slot,
            first,
            ended,
            not_finite: None,
            prompt_logprobs: scored,
        }
    }
}

/// Pages and snapshots.
impl StubRunner {
    fn check_pages(&self, pages: &[u32]) {
        assert!(pages.len() <= self.config.context_max.div_ceil(PAGE_TOKENS));
        let ids: BTreeSet<u32> = pages.iter().copied().collect();
        assert_eq!(ids.len(), pages.len(), "a page twice");
        assert!(ids.iter().all(|&id| (id as usize) < self.config.kv_pages));
    }

    /// Whoever else holds pages that will be written has lost them.
    fn take_over(&mut self, pages: &[u32]) {
        for slot in self.slots.values_mut() {
            slot.dead |= slot.pages.iter().any(|page| pages.contains(page));
        }
    }

    /// What a sequence begins with is what the snapshot and the pages hold.
    fn resumed_rows(&mut self, start: &SequenceStart<'_>) -> Digests {
        let Some(resume) = start.resume else {
            return Digests::default();
        };
        let left = start.prompt.len() + start.emitted.len();
        assert!(resume.length < left, "no token is left to be processed");
        let tokens = start.prompt.iter().chain(start.emitted);
        let rows = Digests::of(tokens.take(resume.length));
        let kept = self.memory.snapshots.get(resume.snapshot);
        assert_eq!(kept, rows.kept(), "the snapshot is of other tokens");
        self.memory.check(start.pages, &rows);
        rows
    }

    fn replay_one(&mut self, replay: &Replay<'_>) {
        let mut slot = self
            .slots
            .remove(&replay.slot)
            .expect("the slot was started");
        assert!(!slot.dead, "a replay of an ended sequence");
        let from = slot.rows.len().checked_sub(slot.prompt.len());
        let from = from.expect("the prompt comes before the replay");
        let end = from + replay.tokens.len();
        let most = self.config.replay_rows_max();
        assert!(
            (1..=most).contains(&replay.tokens.len()),
            "rows of a replay"
        );
        assert!(end < slot.output.len(), "the newest token is the step's");
        assert_eq!(replay.tokens, &slot.output[from..end], "other tokens");
        slot.commit(&mut self.memory, from..end);
        slot.pending = replay.tokens.len() - 1;
        self.slots.insert(replay.slot, slot);
    }
}

fn not_finite() -> ModelError {
    ModelError::NotFinite("layer 3: logits are not finite".into())
}

impl StepRunner for StubRunner {
    fn config(&self) -> &RunnerConfig {
        &self.config
    }

    fn start(&mut self, start: &SequenceStart<'_>) -> Result<(), ModelError> {
        self.calls.0 += 1;
        if self.fault == Fault::StartError(self.calls.0) {
            return Err(not_finite());
        }
        assert!(start.slot < self.config.sequences_max && !start.prompt.is_empty());
        let length = start.prompt.len() + start.tokens_max;
        assert!(start.tokens_max > start.emitted.len());
        assert!(length <= self.config.context_max);
        self.slots.remove(&start.slot);
        let resumed = start.resume.map_or(0, |resume| resume.length);
        self.check_pages(start.pages);
        self.take_over(&start.pages[resumed.div_ceil(PAGE_TOKENS)..]);
        let rows = self.resumed_rows(start);
        let slot = Slot {
            prompt: start.prompt.to_vec(),
            output: start.emitted.to_vec(),
            pages: start.pages.to_vec(),
            law: law_of(law_of(start.sampling.seed, start.prompt), start.emitted),
            stop_ids: start.stop_ids.to_vec(),
            tokens_min: start.tokens_min,
            tokens_max: start.tokens_max,
            logprobs: start.logprobs,
            rows,
            pending: 0,
            dead: false,
        };
        self.slots.insert(start.slot, slot);
        Ok(())
    }

    fn prefill(&mut self, chunks: &[Chunk<'_>]) -> Result<Vec<PrefillOutput>, ModelError> {
        let mut none: Vec<Option<&mut dyn Constraint>> = chunks.iter().map(|_| None).collect();
        self.prefill_constrained(chunks, &mut none)
    }

    fn prefill_constrained(
        &mut self,
        chunks: &[Chunk<'_>],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<Vec<PrefillOutput>, ModelError> {
        assert_eq!(chunks.len(), constraints.len(), "one entry per chunk");
        self.gate.pass();
        self.calls.1 += 1;
        match self.fault {
            Fault::PrefillError(call) if call == self.calls.1 => return Err(not_finite()),
            Fault::PrefillPanic(call) if call == self.calls.1 => panic!("stub prefill panic"),
            _ => {}
        }
        let rows: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        assert!((1..=self.config.prefill_rows_max).contains(&rows));
        let slots: BTreeSet<usize> = chunks.iter().map(|chunk| chunk.slot).collect();
        assert_eq!(slots.len(), chunks.len(), "a slot twice");
        let pairs = chunks.iter().zip(constraints);
        Ok(pairs
            .map(|(chunk, constraint)| self.chunk(chunk, constraint))
            .collect())
    }

    fn step(&mut self, sequences: &[SequenceStep]) -> Result<StepOutput, ModelError> {
        let mut none: Vec<Option<&mut dyn Constraint>> = sequences.iter().map(|_| None).collect();
        self.step_constrained(sequences, &mut none)
    }

    fn step_constrained(
        &mut self,
        sequences: &[SequenceStep],
        constraints: &mut [Option<&mut dyn Constraint>],
    ) -> Result<StepOutput, ModelError> {
        assert_eq!(sequences.len(), constraints.len(), "one entry per sequence");
        self.gate.pass();
        self.calls.2 += 1;
        match self.fault {
            Fault::StepError(call) if call == self.calls.2 => return Err(not_finite()),
            Fault::StepPanic(call) if call == self.calls.2 => panic!("stub step panic"),
            _ => {}
        }
        self.forwards += 1;
        let rows: usize = sequences.iter().map(|step| step.shape.rows()).sum();
        assert!((1..=self.config.step_rows_max.min(STEP_ROWS_MAX)).contains(&rows));
        let sharing = sequences.iter().filter(|step| step.rows_max.is_some());
        assert_ne!(sharing.count(), 1, "nobody to share rows with");
        let slots: BTreeSet<usize> = sequences.iter().map(|step| step.slot).collect();
        assert_eq!(slots.len(), sequences.len(), "a slot twice");
        let shapes = sequences.iter().map(|step| step.shape).collect();
        self.shapes.lock().unwrap().push(shapes);
        self.last = sequences.to_vec();
        let dealt = deal(sequences, self.calls.2);
        let mut results = Vec::with_capacity(sequences.len());
        for ((step, rows), constraint) in sequences.iter().zip(dealt).zip(constraints) {
            let constraint = constraint
                .as_mut()
                .map(|own| &mut **own as &mut dyn Constraint);
            results.push(self.step_one(step, rows, constraint));
        }
        let mut sequences = results;
        if self.fault == Fault::StepNotFinite(self.calls.2) {
            sequences[0].not_finite = Some(not_finite().to_string());
            self.slots
                .get_mut(&sequences[0].slot)
                .expect("the slot was started")
                .dead = true;
        }
        Ok(StepOutput {
            sequences,
            timing: StepTiming::default(),
        })
    }

    /// A chain of what was accepted.
    fn step_trees(
        &self,
        sequences: &[SequenceStep],
        results: &[StepSequence],
        asked: &[bool],
    ) -> Result<Vec<Option<StepTree>>, ModelError> {
        assert_eq!((sequences.len(), results.len()), (asked.len(), asked.len()));
        let tree = |(result, &asked): (&StepSequence, &bool)| {
            let output = &self.slots[&result.slot].output;
            let root = output.len() - result.tokens.len() - 1;
            let node = |depth: usize| StepNode {
                token: output[root + depth],
                parent: depth.checked_sub(1),
                depth,
                draft: None,
            };
            asked.then(|| StepTree {
                nodes: (0..=result.accepted).map(node).collect(),
                path: (1..=result.accepted).collect(),
            })
        };
        Ok(results.iter().zip(asked).map(tree).collect())
    }

    fn record(&mut self, key: StepKey) -> Result<bool, ModelError> {
        assert!(self.config.graphs, "graphs are off");
        assert!(!self.last.is_empty(), "a step before it is recorded");
        let run = StepKey::of_step(&self.last, self.config.sequences_max);
        assert_eq!(run, key, "a key is recorded behind a step that has it");
        self.recorded.lock().unwrap().push(key);
        Ok(true)
    }

    fn extend_pages(&mut self, slot: usize, from: usize, pages: &[u32]) -> Result<(), ModelError> {
        let mut own = self.slots.remove(&slot).expect("the slot was started");
        assert!(!own.dead, "pages for an ended sequence");
        assert!(from <= own.pages.len(), "a gap between pages");
        own.pages.truncate(from);
        own.pages.extend_from_slice(pages);
        self.check_pages(&own.pages);
        self.take_over(pages);
        self.slots.insert(slot, own);
        Ok(())
    }

    fn replay(&mut self, replays: &[Replay<'_>]) -> Result<(), ModelError> {
        self.forwards += 1;
        let rows: usize = replays.iter().map(|replay| replay.tokens.len()).sum();
        assert!((1..=self.config.verify_rows_max()).contains(&rows));
        let slots: BTreeSet<usize> = replays.iter().map(|replay| replay.slot).collect();
        assert_eq!(slots.len(), replays.len(), "a slot twice");
        replays.iter().for_each(|replay| self.replay_one(replay));
        Ok(())
    }

    fn save_snapshot(&mut self, slot: usize, snapshot: usize) -> Result<(), ModelError> {
        let slot = &self.slots[&slot];
        assert!(
            slot.rows.len() > 0 && slot.rows.len().is_multiple_of(PAGE_TOKENS) && slot.pending == 0,
            "a snapshot of {} rows, {} pending",
            slot.rows.len(),
            slot.pending
        );
        self.memory.check(&slot.pages, &slot.rows);
        let most = self.config.snapshots;
        self.memory.snapshots.keep(snapshot, most, slot.rows.kept());
        Ok(())
    }

    fn offload_snapshot(&mut self, snapshot: usize, host: usize) -> Result<(), ModelError> {
        let kept = self.memory.snapshots.get(snapshot);
        let most = self.config.host_snapshots;
        self.memory.host.keep(host, most, kept);
        Ok(())
    }

    fn fetch_snapshot(&mut self, host: usize, snapshot: usize) -> Result<(), ModelError> {
        let kept = self.memory.host.get(host);
        self.memory
            .snapshots
            .keep(snapshot, self.config.snapshots, kept);
        Ok(())
    }

    fn begin_decoded(&mut self, slot: usize, snapshot: usize) -> Result<(), ModelError> {
        let stands = (slot, self.slots[&slot].rows.len(), self.forwards);
        self.memory.begin(snapshot, self.config.snapshots, stands);
        Ok(())
    }

    fn save_decoded(
        &mut self,
        slot: usize,
        length: usize,
        snapshot: usize,
    ) -> Result<(), ModelError> {
        let rows = &self.slots[&slot].rows;
        let stands = (slot, length, self.forwards);
        self.memory
            .finish(snapshot, self.config.snapshots, stands, rows);
        Ok(())
    }
}

//! The engine thread: commands in, one call to the runner, one message out, again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use model::{
    Chunk, CutReason, Emitted, ModelError, PromptLogprobs, SequenceStart, SequenceStep, Shape,
    StepSequence, StepTiming, StepTree,
};

use crate::auto::{Auto, Choice};
use crate::constraint::Borrowed;
use crate::handle::Command;
use crate::kv_pool::KvPool;
use crate::scheduler::{ChunkPlan, Scheduler, SchedulerLimits, Waiting, Work};
use crate::settings::Settings;
use crate::shape::Drafting;
use crate::shared::{Failure, Shared};
use crate::state_pool::StatePool;
use crate::step_plan::{Part, Seat, StepLimits, Wish, parts};
use crate::step_runner::StepRunner;
use crate::warm_up::{WarmUp, warm_up};
use crate::{FailureCause, Finish, FinishReason, Phase, RequestId, RequestStats, RequestUpdate};
use crate::{StepOutput, StepTrace, TokenUpdate};

/// An idle thread shows that it is alive this often.
const IDLE_BEAT: Duration = Duration::from_secs(1);

/// Loads, warms up and serves until drained, shut down or broken.
pub(crate) fn run<R: StepRunner>(
    settings: Settings,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    outputs: Sender<StepOutput>,
    load: impl FnOnce(&Shared) -> Result<R, ModelError>,
) {
    let (runner, auto) = match guarded(|| prepare(&settings, &shared, load)) {
        Ok(ready) => ready,
        Err(error) => {
            tracing::error!(error = error.reason, "the engine did not start");
            shared.end(Some(error));
            return;
        }
    };
    let shapes = settings.shapes.iter().copied();
    let limits = SchedulerLimits {
        context: settings.runner.context_max,
        chunk: settings.runner.prefill_rows_max,
        tree_rows: shapes.map(Shape::rows).max().unwrap_or(1),
    };
    let kv = KvPool::new(settings.runner.kv_pages);
    let slots = StatePool::new(settings.runner.sequences_max);
    let mut step_loop = StepLoop {
        runner,
        scheduler: Scheduler::new(kv, slots, limits),
        drafting: settings.drafting,
        draft_batch_max: settings.draft_batch_max,
        limits: StepLimits {
            rows: settings.runner.step_rows_max,
            sequence_rows: settings.runner.tree_rows_max,
            share: settings.share_rows,
        },
        auto,
        shared,
        commands,
        outputs,
        updates: Vec::new(),
        mask_ms: None,
        draining: false,
    };
    step_loop.shared.beat();
    step_loop.shared.enter(Phase::Ready);
    let error = guarded(|| step_loop.serve()).err();
    if let Some(error) = &error {
        tracing::error!(error = error.reason, "the engine failed");
    }
    let reason = match &error {
        Some(error) => FinishReason::Error(error.reason.clone()),
        None => FinishReason::Aborted,
    };
    // First the phase: from here on nothing is taken, so what the channel holds is all there is.
    step_loop.shared.end(error);
    step_loop.end_all(&reason);
}

/// Errors and panics as text.
fn guarded<T>(work: impl FnOnce() -> Result<T, ModelError>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| Failure {
            cause: FailureCause::from(&error),
            reason: error.to_string(),
        }),
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(Failure {
                cause: FailureCause::Engine,
                reason: format!("a broken invariant: {text}"),
            })
        }
    }
}

fn prepare<R: StepRunner>(
    settings: &Settings,
    shared: &Shared,
    load: impl FnOnce(&Shared) -> Result<R, ModelError>,
) -> Result<(R, Option<Auto>), ModelError> {
    shared.enter(Phase::Weights);
    let mut runner = load(shared)?;
    if settings.skip_warmup {
        return Ok((runner, None));
    }
    shared.beat();
    shared.enter(Phase::Warmup);
    let auto = settings.drafting == Drafting::Auto;
    let plan = WarmUp {
        shapes: &settings.shapes,
        batch: auto,
        drafting_max: match settings.draft_batch_max {
            0 => usize::MAX,
            most => most,
        },
        share: settings.share_rows,
    };
    let table = warm_up(&mut runner, plan, || shared.beat())?;
    for (name, ms) in table.lines() {
        tracing::info!(shape = name, ms, "timed a step");
    }
    shared.set_step_times(table.lines());
    let timed = table
        .shapes
        .first()
        .is_some_and(|first| first.shape == Shape::Plain);
    Ok((
        runner,
        (auto && timed).then(|| Auto::new(table, settings.share_rows)),
    ))
}

struct StepLoop<R> {
    runner: R,
    scheduler: Scheduler,
    drafting: Drafting,
    draft_batch_max: usize,
    limits: StepLimits,
    auto: Option<Auto>,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    outputs: Sender<StepOutput>,
    /// News that were not sent yet.
    updates: Vec<RequestUpdate>,
    /// Time in the constraints of the last call.
    mask_ms: Option<f64>,
    draining: bool,
}

impl<R: StepRunner> StepLoop<R> {
    fn serve(&mut self) -> Result<(), ModelError> {
        loop {
            self.take_commands();
            self.flush(None);
            self.admit()?;
            match self.scheduler.next_work() {
                Work::Idle => self.idle(),
                Work::Prefill(chunks) => self.prefill(&chunks)?,
                Work::Decode(indices) => self.decode(&indices)?,
            }
            self.shared.beat();
            if self.draining && self.scheduler.is_empty() {
                return Ok(());
            }
        }
    }

    /// Obeys what has arrived; waits up to a second for it when there is nothing to do.
    fn take_commands(&mut self) {
        if self.scheduler.is_empty() && !self.draining {
            match self.commands.recv_timeout(IDLE_BEAT) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => self.draining = true,
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.draining = true;
                    return;
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit {
                id,
                request,
                submitted,
            } => self.scheduler.queue(Waiting {
                id,
                request: *request,
                submitted,
            }),
            Command::Expire(ids) => self.expire(&ids),
            Command::Abort(id) => self.end(id, FinishReason::Aborted, usize::MAX),
            Command::Finish(id, kept) => self.end(id, FinishReason::Finished, kept),
            Command::Drain => self.draining = true,
            Command::Shutdown => {
                self.draining = true;
                self.end_taken(&FinishReason::Aborted);
            }
        }
    }

    /// Ends a request wherever it is; one that has ended already is unknown here.
    fn end(&mut self, id: RequestId, reason: FinishReason, kept: usize) {
        if let Some(index) = self.scheduler.find(id) {
            self.end_running(index, reason, kept);
        } else if let Some(waiting) = self.scheduler.remove_waiting(id) {
            self.end_waiting(&waiting, reason);
        }
    }

    /// Ends requests that have waited for too long, unless one of them is beyond that.
    fn expire(&mut self, ids: &[RequestId]) {
        if ids.iter().all(|&id| self.scheduler.is_waiting(id)) {
            for &id in ids {
                self.end(id, FinishReason::Expired, usize::MAX);
            }
        }
    }

    fn end_running(&mut self, index: usize, reason: FinishReason, kept: usize) {
        let sequence = &self.scheduler.running[index];
        let (id, emitted) = (sequence.id, sequence.emitted());
        let finish = sequence.finish(reason, kept);
        let dropped = (emitted - finish.completion_tokens) as u64;
        self.update(id).finish = Some(finish);
        {
            let mut counters = self.shared.counters();
            counters.stats.generated_tokens -= dropped;
            counters.stats.ended += 1;
        }
        self.scheduler.release(index);
    }

    fn end_waiting(&mut self, waiting: &Waiting, reason: FinishReason) {
        self.shared.uncount_waiting(waiting.request.prompt.len());
        self.update(waiting.id).finish = Some(Finish {
            reason,
            prompt_tokens: waiting.request.prompt.len(),
            completion_tokens: 0,
            stats: RequestStats {
                acceptance_histogram: vec![0; ops::EMIT_MAX],
                queue_ms: waiting.submitted.elapsed().as_secs_f64() * 1e3,
                ..RequestStats::default()
            },
            records: Vec::new(),
        });
    }

    /// Ends everything that runs or waits here.
    fn end_taken(&mut self, reason: &FinishReason) {
        while !self.scheduler.running.is_empty() {
            self.end_running(0, reason.clone(), usize::MAX);
        }
        while let Some(waiting) = self.scheduler.waiting.pop_front() {
            self.end_waiting(&waiting, reason.clone());
        }
    }

    /// The last act of the thread: also ends what is still in the channel.
    fn end_all(&mut self, reason: &FinishReason) {
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit { .. } = command {
                self.obey(command);
            }
        }
        self.end_taken(reason);
        self.flush(None);
    }

    /// The entry of a request in the next message.
    fn update(&mut self, id: RequestId) -> &mut RequestUpdate {
        let found = self.updates.iter().position(|update| update.id == id);
        let index = found.unwrap_or_else(|| {
            self.updates.push(RequestUpdate {
                id,
                prompt_logprobs: Vec::new(),
                tokens: Vec::new(),
                trace: None,
                finish: None,
            });
            self.updates.len() - 1
        });
        &mut self.updates[index]
    }

    fn push_tokens(&mut self, id: RequestId, tokens: impl IntoIterator<Item = Emitted>) {
        let update = self.update(id);
        update
            .tokens
            .extend(tokens.into_iter().map(|token| TokenUpdate {
                id: token.id,
                logprob: token.logprob,
            }));
    }

    /// Publishes the gauges, then sends the news. Without a receiver nobody can be served.
    fn flush(&mut self, timing: Option<StepTiming>) {
        self.publish();
        if self.updates.is_empty() && timing.is_none() {
            return;
        }
        let output = StepOutput {
            updates: std::mem::take(&mut self.updates),
            timing,
            mask_ms: self.mask_ms.take(),
        };
        if self.outputs.send(output).is_err() {
            self.shared.enter(Phase::Draining);
            self.draining = true;
            self.end_taken(&FinishReason::Aborted);
            self.updates.clear();
            self.publish();
        }
    }

    fn publish(&self) {
        let mut counters = self.shared.counters();
        let stats = &mut counters.stats;
        stats.running = self.scheduler.running.len();
        stats.pages_used = self.scheduler.kv.used();
        stats.slots_used = self.scheduler.slots.used();
    }

    fn admit(&mut self) -> Result<(), ModelError> {
        while let Some(sequence) = self.scheduler.admit() {
            {
                // The queue's limit depends on the slots that are free: both change at once.
                let mut counters = self.shared.counters();
                counters.stats.running += 1;
                self.shared.uncount_waiting(sequence.request.prompt.len());
            }
            let request = &sequence.request;
            self.runner.start(&SequenceStart {
                slot: sequence.slot.index(),
                prompt: &request.prompt,
                pages: sequence.pages.pages(),
                sampling: &request.sampling,
                stop_ids: &request.stop_ids,
                tokens_min: request.min_tokens.min(sequence.tokens_max),
                tokens_max: sequence.tokens_max.max(1),
                logprobs: request.logprobs,
            })?;
        }
        Ok(())
    }

    /// Nothing runs, so nothing may wait and nothing may be owned.
    fn idle(&self) {
        assert!(
            self.scheduler.waiting.is_empty(),
            "an empty pool refuses a request that fits the context"
        );
        if let Err(fault) = self.scheduler.audit() {
            debug_assert!(false, "{fault}");
            tracing::error!(fault, "the idle audit failed");
        }
    }

    fn prefill(&mut self, plans: &[ChunkPlan]) -> Result<(), ModelError> {
        let began = Instant::now();
        for plan in plans {
            self.scheduler.running[plan.index].begin_chunk(began);
        }
        let indices: Vec<usize> = plans.iter().map(|plan| plan.index).collect();
        let mut constraints = Borrowed::take(&mut self.scheduler.running, &indices);
        let running = &self.scheduler.running;
        let chunks: Vec<Chunk<'_>> = plans
            .iter()
            .map(|plan| {
                let (sequence, range) = (&running[plan.index], plan.range.clone());
                let prompt = &sequence.request.prompt;
                let next = prompt.get(range.end).copied();
                let top = sequence.request.prompt_logprobs;
                Chunk {
                    slot: sequence.slot.index(),
                    start: range.start,
                    tokens: &prompt[range],
                    last: next.is_none() && sequence.tokens_max > 0,
                    prompt_logprobs: top.map(|top| PromptLogprobs { top, next }),
                }
            })
            .collect();
        let outputs = self
            .runner
            .prefill_constrained(&chunks, &mut constraints.list())?;
        self.mask_ms = constraints.put_back(&mut self.scheduler.running, &indices);
        assert_eq!(outputs.len(), plans.len(), "one output per chunk");
        let mut ended = Vec::new();
        for (plan, output) in plans.iter().zip(outputs) {
            let now_ms = self.shared.now_ms();
            self.shared.counters().prefill(plan.range.len(), now_ms);
            let sequence = &mut self.scheduler.running[plan.index];
            sequence.end_chunk(plan.range.len());
            let id = sequence.id;
            let done = !sequence.is_prefilling();
            let scored = done && sequence.tokens_max == 0;
            if !output.prompt_logprobs.is_empty() {
                self.update(id).prompt_logprobs = output.prompt_logprobs;
            }
            if let Some(fault) = output.not_finite {
                ended.push((plan.index, FinishReason::Error(fault)));
            } else if scored {
                ended.push((plan.index, FinishReason::Length));
            } else if done {
                let first = output.first.expect("a prompt's end yields the first token");
                let mut tokens = vec![first];
                let end = self.scheduler.running[plan.index].constrain(&mut tokens);
                let end = end.or(output.ended.map(finish_reason));
                self.emit(plan.index, tokens, end, &mut ended);
            }
        }
        self.finish_step(ended, None);
        Ok(())
    }

    fn decode(&mut self, indices: &[usize]) -> Result<(), ModelError> {
        let parts = self.parts(indices);
        let steps: Vec<SequenceStep> = indices
            .iter()
            .zip(&parts)
            .map(|(&index, part)| SequenceStep {
                slot: self.scheduler.running[index].slot.index(),
                shape: part.given,
                rows_max: part.rows_max,
            })
            .collect();
        let mut constraints = Borrowed::take(&mut self.scheduler.running, indices);
        let output = self
            .runner
            .step_constrained(&steps, &mut constraints.list())?;
        self.mask_ms = constraints.put_back(&mut self.scheduler.running, indices);
        assert_eq!(
            output.sequences.len(),
            steps.len(),
            "one output per sequence"
        );
        let trees = self.step_trees(indices, &steps, &output.sequences)?;
        let results = output.sequences.into_iter().zip(trees);
        let mut ended = Vec::new();
        for ((&index, part), (mut result, tree)) in indices.iter().zip(&parts).zip(results) {
            let sequence = &mut self.scheduler.running[index];
            assert_eq!(
                result.slot,
                sequence.slot.index(),
                "outputs in the order of the sequences"
            );
            if let Some(fault) = result.not_finite {
                ended.push((index, FinishReason::Error(fault)));
                continue;
            }
            let end = sequence.constrain(&mut result.tokens);
            let end = end.or(result.ended.map(finish_reason));
            let verified = part.verified(result.drafted);
            result.accepted = result.accepted.min(result.tokens.len());
            sequence.count_step(&result);
            // A cut step accepted less than it could: that says nothing about the drafter.
            if let (Some(auto), Some(prediction), None, None) = (
                &mut self.auto,
                &result.prediction,
                &end,
                sequence.request.shape,
            ) {
                auto.observe(&mut sequence.phi, verified, result.accepted, prediction);
            }
            let mut counters = self.shared.counters();
            counters.count_step(part.shape, verified, &result);
            drop(counters);
            if let (Some(tree), false) = (tree, result.tokens.is_empty()) {
                let (shape, ms) = (verified, output.timing.total_ms);
                let id = sequence.id;
                self.update(id).trace = Some(StepTrace::new(shape, tree, &result.tokens, ms));
            }
            self.emit(index, result.tokens, end, &mut ended);
        }
        self.finish_step(ended, Some(output.timing));
        Ok(())
    }

    /// What the step that just ran verified, where somebody asked.
    fn step_trees(
        &self,
        indices: &[usize],
        steps: &[SequenceStep],
        results: &[StepSequence],
    ) -> Result<Vec<Option<StepTree>>, ModelError> {
        let running = &self.scheduler.running;
        let asked = indices.iter().map(|&index| running[index].request.trace);
        let asked: Vec<bool> = asked.collect();
        self.runner.step_trees(steps, results, &asked)
    }

    /// Books the tokens of a running sequence and notes its end.
    fn emit(
        &mut self,
        index: usize,
        tokens: Vec<Emitted>,
        end: Option<FinishReason>,
        ended: &mut Vec<(usize, FinishReason)>,
    ) {
        if let (true, Some(FinishReason::Error(_))) = (tokens.is_empty(), &end) {
            ended.extend(end.map(|reason| (index, reason)));
            return;
        }
        let sequence = &mut self.scheduler.running[index];
        let (count, left) = (tokens.len(), sequence.tokens_left());
        assert!(
            (1..=left).contains(&count) && (count < left || end.is_some()),
            "{count} tokens with end {end:?} where {left} were left"
        );
        sequence.emit(count, Instant::now());
        let id = sequence.id;
        self.shared.counters().emit(count, self.shared.now_ms());
        self.push_tokens(id, tokens);
        ended.extend(end.map(|reason| (index, reason)));
    }

    /// Ends what ended (indices ascend, so from the back) and sends the step's message.
    fn finish_step(&mut self, ended: Vec<(usize, FinishReason)>, timing: Option<StepTiming>) {
        for (index, reason) in ended.into_iter().rev() {
            self.end_running(index, reason, usize::MAX);
        }
        self.flush(timing);
    }

    /// The parts of the next step. A sequence drafts if it may, and if more than the root's
    /// successor can still be emitted; never with more rows than its pages hold.
    fn parts(&mut self, indices: &[usize]) -> Vec<Part> {
        let running = &self.scheduler.running;
        let limit = self.draft_batch_max;
        let allowed = self.drafting != Drafting::Off && (limit == 0 || running.len() <= limit);
        let seat = |&index: &usize| {
            let sequence = &running[index];
            let drafts = allowed && sequence.request.speculative && sequence.tokens_left() > 1;
            Seat {
                wish: match (drafts, sequence.request.shape) {
                    (false, _) => Wish::Plain,
                    (true, Some(shape)) => Wish::Own(shape),
                    (true, None) => Wish::Common,
                },
                rows_left: sequence.rows_left(),
            }
        };
        let seats: Vec<Seat> = indices.iter().map(seat).collect();
        let common = indices.iter().zip(&seats);
        let common = common.filter(|(_, seat)| seat.wish == Wish::Common);
        let phis: Vec<_> = common.map(|(&index, _)| &running[index].phi).collect();
        let choice = match (self.drafting, &mut self.auto) {
            (Drafting::Off, _) => Choice::uniform(Shape::Plain, phis.len()),
            (Drafting::Fixed(shape), _) => Choice::uniform(shape, phis.len()),
            (Drafting::Auto, Some(auto)) => auto.choose(&phis, indices.len() - phis.len()),
            (Drafting::Auto, None) => Choice::uniform(Shape::Tree(ops::PHI_BUDGETS[1]), phis.len()),
        };
        parts(&seats, choice, self.limits)
    }
}

fn finish_reason(cut: CutReason) -> FinishReason {
    match cut {
        CutReason::Stop => FinishReason::Stop,
        CutReason::Tokens | CutReason::Context => FinishReason::Length,
    }
}

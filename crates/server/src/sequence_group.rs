//! The sequences of one HTTP request, from submission to their ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{
    EngineHandle, Request, RequestId, RequestStats, RequestUpdate, Started, StepTrace, TokenLogprob,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::access_log::GenerationRecord;
use crate::active_requests::Registration;
use crate::app::App;
use crate::error::ApiError;
use crate::generation::{Generation, Interruption, Outcome, Progress};
use crate::metrics::{Ending, Metrics, SequenceTimes};
use crate::queue_wait::wait_ms;
use crate::text_stream::{Delta, TextOptions, TextStream};
use crate::updates::Numbered;

/// One sequence to generate.
#[derive(Debug)]
pub(crate) struct Planned {
    /// The engine's part.
    pub(crate) request: Request,
    /// The text's part.
    pub(crate) text: TextOptions,
}

/// What an update of the engine means for the client.
#[derive(Debug)]
pub(crate) struct News {
    /// Which sequence, in the order they were planned.
    pub(crate) choice: usize,
    /// Output tokens that count.
    pub(crate) ids: Vec<u32>,
    /// Text that became final; may be empty.
    pub(crate) deltas: Vec<Delta>,
    /// With the first output or the end: log-probabilities of prompt tokens 1, 2, ...
    pub(crate) prompt_logprobs: Vec<TokenLogprob>,
    /// The step that made the tokens, as far as they count, if it was asked for.
    pub(crate) trace: Option<StepTrace>,
    /// The end of the sequence.
    pub(crate) outcome: Option<Outcome>,
}

/// Tokens so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenCounts {
    /// Every prompt once.
    pub(crate) prompt: usize,
    /// Of these, the ones that no sequence computed; 0 until one has a slot.
    pub(crate) cached: usize,
    /// Output of all sequences.
    pub(crate) completion: usize,
    /// Of these, reasoning.
    pub(crate) reasoning: usize,
}

#[derive(Debug)]
struct Member {
    id: RequestId,
    generation: Generation,
    prompt_tokens: usize,
    /// Once it has had a slot.
    started: Option<Started>,
    /// When its first and its last tokens came.
    span: Option<(Instant, Instant)>,
    open: bool,
}

/// Sequences that end when this is dropped: a client that goes away takes its work with it.
#[derive(Debug)]
pub(crate) struct SequenceGroup {
    engine: EngineHandle,
    metrics: Arc<Metrics>,
    updates: UnboundedReceiver<Numbered>,
    members: Vec<Member>,
    /// Sequences that share a prompt, one behind the other.
    choices: usize,
    request_id: String,
    prompt_tokens: usize,
    started: Instant,
    first_token_ms: Option<f64>,
    finished: Vec<(usize, RequestStats)>,
    /// Until then one of them has to start.
    start_by: Option<Instant>,
    /// Until then one of them has to have news.
    answer_by: Option<Instant>,
    registration: Registration,
    record: GenerationRecord,
}

impl SequenceGroup {
    /// Submits all of them or none; `choices` sequences share each prompt.
    pub(crate) fn submit(
        app: &App,
        request_id: &str,
        planned: Vec<Planned>,
        choices: usize,
    ) -> Result<Self, ApiError> {
        let (sender, updates) = unbounded_channel();
        let started = Instant::now();
        let limit = |limit: Duration| (!limit.is_zero()).then(|| started.checked_add(limit))?;
        let limits = &app.config.limits;
        let mut group = SequenceGroup {
            engine: app.engine.clone(),
            metrics: Arc::clone(&app.metrics),
            updates,
            members: Vec::with_capacity(planned.len()),
            choices,
            request_id: request_id.to_owned(),
            prompt_tokens: 0,
            started,
            first_token_ms: None,
            finished: Vec::new(),
            start_by: limit(limits.queue_timeout),
            answer_by: limit(limits.request_timeout),
            registration: app.active.enter(request_id),
            record: GenerationRecord::default(),
        };
        let mut requests = Vec::with_capacity(planned.len());
        let mut texts = Vec::with_capacity(planned.len());
        let mut prompts = Vec::with_capacity(planned.len());
        for plan in planned {
            prompts.push((plan.request.prompt.len(), plan.request.speculative));
            requests.push(plan.request);
            texts.push(plan.text);
        }
        let submitted = app.updates.submit(&app.engine, requests, &sender);
        let ids = submitted.map_err(|error| app.refusal(error))?;
        let shared = prompts.iter().step_by(choices);
        group.prompt_tokens = shared.map(|(tokens, _)| tokens).sum();
        for ((id, text), &(tokens, _)) in ids.into_iter().zip(texts).zip(&prompts) {
            group.registration.add(id);
            let vocabulary = Arc::clone(&app.files.vocabulary);
            group.members.push(Member {
                id,
                generation: Generation::new(TextStream::new(vocabulary, text)),
                prompt_tokens: tokens,
                started: None,
                span: None,
                open: true,
            });
        }
        for (tokens, speculative) in prompts {
            app.metrics.count_prompt(tokens, speculative);
        }
        group.record.prompt(group.prompt_tokens);
        Ok(group)
    }

    /// Names the answer for the access log, and the request for those who want to abort it.
    pub(crate) fn introduce(&self, answer_id: &str, rid: Option<&str>) {
        self.record.answer(answer_id);
        self.registration.rename(rid.unwrap_or(answer_id));
    }

    /// What the access log says about the work; it fills as sequences end.
    pub(crate) fn record(&self) -> GenerationRecord {
        self.record.clone()
    }

    /// Prompt tokens of one sequence, and how many of them came from the prefix cache.
    pub(crate) fn prompt_of(&self, choice: usize) -> (usize, usize) {
        let member = &self.members[choice];
        (member.prompt_tokens, member.cached().unwrap_or(0))
    }

    /// Since submission.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What happens next; `None` after all have ended.
    pub(crate) async fn next(&mut self) -> Option<Result<News, ApiError>> {
        if !self.members.iter().any(|member| member.open) {
            return None;
        }
        let (choice, mut update) = match self.receive_news().await {
            Ok(update) => update,
            Err(error) => return Some(Err(error)),
        };
        self.answer_by = None;
        let has_tokens = !update.tokens.is_empty();
        let mut deltas = Vec::new();
        let member = &mut self.members[choice];
        let before = member.generation.kept();
        let trace = update.trace.take();
        let mut ids: Vec<u32> = update.tokens.iter().map(|token| token.id).collect();
        let progress = member.generation.take(update, &mut deltas);
        let mut prompt_logprobs = match has_tokens {
            true => member.generation.take_prompt_logprobs(),
            false => Vec::new(),
        };
        // A stop string that was found late takes tokens back.
        let tokens = member.generation.kept().saturating_sub(before);
        ids.truncate(tokens);
        let id = member.id;
        self.time_tokens(choice, tokens);
        let outcome = match progress {
            Progress::Going => None,
            Progress::Enough(kept) => {
                self.engine.finish(id, kept);
                None
            }
            Progress::Ended(Ok(outcome)) if outcome.aborted && !self.registration.is_aborted() => {
                self.close(choice, &outcome);
                self.close_all(Ending::Abort);
                return Some(Err(ApiError::draining()));
            }
            Progress::Ended(Ok(mut outcome)) => {
                self.close(choice, &outcome);
                prompt_logprobs.append(&mut outcome.prompt_logprobs);
                Some(*outcome)
            }
            Progress::Ended(Err(interruption)) => return Some(Err(self.interrupt(interruption))),
        };
        Some(Ok(News {
            choice,
            ids,
            deltas,
            prompt_logprobs,
            trace: trace.and_then(|mut trace| {
                trace.trim(tokens);
                (tokens > 0).then_some(trace)
            }),
            outcome,
        }))
    }

    /// The next update that a client could see something of.
    async fn receive_news(&mut self) -> Result<Numbered, ApiError> {
        loop {
            let (choice, update) = self.receive().await?;
            self.note_start(choice, &update);
            if update.finish.is_some()
                || !update.tokens.is_empty()
                || !update.prompt_logprobs.is_empty()
            {
                return Ok((choice, update));
            }
        }
    }

    fn note_start(&mut self, choice: usize, update: &RequestUpdate) {
        if let Some(started) = update.started {
            self.members[choice].started = Some(started);
            self.record.started(self.counts().cached, started.queue_ms);
        }
    }

    /// The engine's next word, as long as the limits of time allow to wait for it.
    async fn receive(&mut self) -> Result<Numbered, ApiError> {
        loop {
            tokio::select! {
                biased;
                update = self.updates.recv() => {
                    return update.ok_or_else(|| {
                        self.close_all(Ending::Error);
                        ApiError::engine_stopped()
                    });
                }
                () = until(self.answer_by) => {
                    self.close_all(Ending::Abort);
                    return Err(ApiError::too_slow());
                }
                () = until(self.start_by) => {
                    // Only the engine knows whether one has started; if not, all will end.
                    self.start_by = None;
                    let ids = self.members.iter().map(|member| member.id);
                    self.engine.expire(ids.collect());
                }
            }
        }
    }

    /// Tokens so far.
    pub(crate) fn counts(&self) -> TokenCounts {
        let mut counts = TokenCounts {
            prompt: self.prompt_tokens,
            cached: cached(self.members.iter().map(Member::cached), self.choices),
            ..TokenCounts::default()
        };
        for member in &self.members {
            counts.completion += member.generation.kept();
            counts.reasoning += member.generation.reasoning_tokens();
        }
        counts
    }

    /// From submission to the first token, in milliseconds.
    pub(crate) fn first_token_ms(&self) -> Option<f64> {
        self.first_token_ms
    }

    /// Output tokens and counters of the sequences that have ended.
    pub(crate) fn finished(&self) -> &[(usize, RequestStats)] {
        &self.finished
    }

    /// The client does not read what it asked for.
    pub(crate) fn give_up(&mut self, ending: Ending) {
        self.close_all(ending);
    }

    fn time_tokens(&mut self, choice: usize, tokens: usize) {
        if tokens == 0 {
            return;
        }
        self.metrics.count_output(tokens);
        self.record.output(self.counts().completion);
        let now = Instant::now();
        match &mut self.members[choice].span {
            Some((_, last)) => {
                let seconds = (now - *last).as_secs_f64();
                *last = now;
                self.metrics.observe_step(tokens, seconds);
            }
            span @ None => {
                *span = Some((now, now));
                let seconds = (now - self.started).as_secs_f64();
                self.metrics.observe_first_token(seconds);
                let ms = *self.first_token_ms.get_or_insert(seconds * 1e3);
                self.record.first_token(ms);
            }
        }
    }

    fn close(&mut self, choice: usize, outcome: &Outcome) {
        let member = &mut self.members[choice];
        member.open = false;
        self.registration.remove(member.id);
        let ending = match (&outcome.matched, outcome.aborted) {
            (_, true) => Ending::Abort,
            (Some(_), false) if outcome.calls > 0 => Ending::ToolCalls,
            (Some(_), false) => Ending::Stop,
            (None, false) => Ending::Length,
        };
        self.metrics.count_ending(ending);
        let (stats, tokens) = (&outcome.stats, outcome.completion_tokens);
        // A prompt that is only scored has no token; an abort may have come before the first.
        let spans = (tokens > 0 || !outcome.aborted)
            .then_some((stats.prefill_ms / 1e3, stats.decode_ms / 1e3));
        self.metrics.observe_sequence(&SequenceTimes {
            all: self.started.elapsed().as_secs_f64(),
            queue: stats.queue_ms / 1e3,
            spans,
            tokens,
        });
        self.metrics.observe_passes(outcome);
        self.finished.push((tokens, outcome.stats.clone()));
        self.record.output(self.counts().completion);
        self.record.sequence(outcome);
    }

    fn interrupt(&mut self, interruption: Interruption) -> ApiError {
        match interruption {
            Interruption::Expired => {
                self.close_all(Ending::Abort);
                ApiError::queue_timeout(wait_ms(&self.engine.stats()))
            }
            Interruption::NotBegun(detail) => {
                tracing::error!(request_id = self.request_id, detail, "request lost");
                self.close_all(Ending::Error);
                ApiError::engine_stopped()
            }
            Interruption::Failed(detail) => {
                self.close_all(Ending::Error);
                ApiError::internal(&self.request_id, &detail)
            }
        }
    }

    /// Ends what has not ended; the engine's own reports come too late to be waited for.
    fn close_all(&mut self, ending: Ending) {
        // What came and was not looked at may say that a sequence has started.
        while let Ok((choice, update)) = self.updates.try_recv() {
            self.note_start(choice, &update);
        }
        for member in self.members.iter_mut().filter(|member| member.open) {
            member.open = false;
            self.engine.abort(member.id);
            self.registration.remove(member.id);
            self.metrics.count_ending(ending);
            let times = member.times(self.started);
            self.record.cut(ending.name(), times.queue * 1e3);
            self.metrics.observe_sequence(&times);
        }
    }
}

impl Member {
    /// Prompt tokens that came from the prefix cache, as far as that is known.
    fn cached(&self) -> Option<usize> {
        self.started.map(|started| started.cached_tokens)
    }

    /// Of a sequence that was submitted `then` and ends now, as seen from here.
    fn times(&self, then: Instant) -> SequenceTimes {
        let all = then.elapsed().as_secs_f64();
        let queue = self.started.map_or(all, |started| started.queue_ms / 1e3);
        let spans = self.span.map(|(first, last)| {
            let prefill = (first - then).as_secs_f64() - queue;
            (prefill.max(0.0), (last - first).as_secs_f64())
        });
        SequenceTimes {
            all,
            queue,
            spans,
            tokens: self.generation.kept(),
        }
    }
}

impl Drop for SequenceGroup {
    fn drop(&mut self) {
        if self.members.iter().any(|member| member.open) {
            self.metrics.count_disconnect();
            self.close_all(Ending::Abort);
        }
    }
}

/// Prompt tokens that came from the prefix cache. `members`: those of each sequence as far as they
/// are known; `choices` of them in a row share a prompt, which counts once.
fn cached(members: impl Iterator<Item = Option<usize>>, choices: usize) -> usize {
    let members: Vec<Option<usize>> = members.collect();
    let prompts = members.chunks(choices.max(1));
    let least = |prompt: &[Option<usize>]| prompt.iter().flatten().min().copied();
    prompts.filter_map(least).sum()
}

/// Never without a time.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::cached;

    #[test]
    fn a_prompt_counts_as_cached_as_far_as_nobody_computed_it() {
        let table: [(&[Option<usize>], usize, usize); 5] = [
            (&[], 1, 0),
            (&[None, Some(64)], 1, 64),
            (&[Some(128), Some(64)], 1, 192),
            (&[Some(0), Some(64)], 2, 0),
            (&[None, Some(64), Some(128), Some(192)], 2, 64 + 128),
        ];
        for (members, choices, expected) in table {
            let found = cached(members.iter().copied(), choices);
            assert_eq!(found, expected, "{members:?} by {choices}");
        }
    }
}

//! The sequences of one HTTP request, from submission to their ends.

use std::sync::Arc;
use std::time::Instant;

use engine::{EngineHandle, Request, RequestId, RequestStats, StepTrace, TokenLogprob};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::app::App;
use crate::error::ApiError;
use crate::generation::{Generation, Interruption, Outcome, Progress};
use crate::metrics::{Ending, Metrics};
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
    /// Output of all sequences.
    pub(crate) completion: usize,
    /// Of these, reasoning.
    pub(crate) reasoning: usize,
}

#[derive(Debug)]
struct Member {
    id: RequestId,
    generation: Generation,
    /// When its last tokens came.
    last: Option<Instant>,
    open: bool,
}

/// Sequences that end when this is dropped: a client that goes away takes its work with it.
#[derive(Debug)]
pub(crate) struct SequenceGroup {
    engine: EngineHandle,
    metrics: Arc<Metrics>,
    updates: UnboundedReceiver<Numbered>,
    members: Vec<Member>,
    request_id: String,
    prompt_tokens: usize,
    started: Instant,
    first_token_ms: Option<f64>,
    finished: Vec<(usize, RequestStats)>,
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
        let mut group = SequenceGroup {
            engine: app.engine.clone(),
            metrics: Arc::clone(&app.metrics),
            updates,
            members: Vec::with_capacity(planned.len()),
            request_id: request_id.to_owned(),
            prompt_tokens: 0,
            started: Instant::now(),
            first_token_ms: None,
            finished: Vec::new(),
        };
        let mut prompts = Vec::with_capacity(planned.len());
        for (number, plan) in planned.into_iter().enumerate() {
            let tokens = plan.request.prompt.len();
            let submitted = app
                .updates
                .submit(&app.engine, plan.request, number, &sender);
            let id = match submitted {
                Ok(id) => id,
                Err(error) => {
                    // No client has left: what was taken before is taken back.
                    group.close_all(Ending::Abort);
                    return Err(app.refusal(error));
                }
            };
            if number % choices == 0 {
                group.prompt_tokens += tokens;
            }
            prompts.push(tokens);
            let vocabulary = Arc::clone(&app.files.vocabulary);
            group.members.push(Member {
                id,
                generation: Generation::new(TextStream::new(vocabulary, plan.text)),
                last: None,
                open: true,
            });
        }
        for tokens in prompts {
            app.metrics.count_prompt(tokens);
        }
        Ok(group)
    }

    /// What happens next; `None` after all have ended.
    pub(crate) async fn next(&mut self) -> Option<Result<News, ApiError>> {
        if !self.members.iter().any(|member| member.open) {
            return None;
        }
        let Some((choice, mut update)) = self.updates.recv().await else {
            self.close_all(Ending::Error);
            let message = "The engine has stopped.";
            return Some(Err(ApiError::unavailable(
                "engine_unavailable",
                message,
                5_000,
            )));
        };
        let has_tokens = !update.tokens.is_empty();
        let mut deltas = Vec::new();
        let member = &mut self.members[choice];
        let before = member.generation.kept();
        let trace = update.trace.take();
        let progress = member.generation.take(update, &mut deltas);
        let mut prompt_logprobs = match has_tokens {
            true => member.generation.take_prompt_logprobs(),
            false => Vec::new(),
        };
        // A stop string that was found late takes tokens back.
        let tokens = member.generation.kept().saturating_sub(before);
        let id = member.id;
        self.time_tokens(choice, tokens);
        let outcome = match progress {
            Progress::Going => None,
            Progress::Enough(kept) => {
                self.engine.finish(id, kept);
                None
            }
            Progress::Ended(Ok(mut outcome)) => {
                self.close(choice, &outcome);
                prompt_logprobs.append(&mut outcome.prompt_logprobs);
                Some(outcome)
            }
            Progress::Ended(Err(interruption)) => return Some(Err(self.interrupt(interruption))),
        };
        Some(Ok(News {
            choice,
            deltas,
            prompt_logprobs,
            trace: trace.and_then(|mut trace| {
                trace.trim(tokens);
                (tokens > 0).then_some(trace)
            }),
            outcome,
        }))
    }

    /// Tokens so far.
    pub(crate) fn counts(&self) -> TokenCounts {
        let mut counts = TokenCounts {
            prompt: self.prompt_tokens,
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
        let now = Instant::now();
        match self.members[choice].last.replace(now) {
            Some(last) => {
                let seconds = (now - last).as_secs_f64();
                self.metrics.observe_step(tokens, seconds);
            }
            None => {
                let seconds = (now - self.started).as_secs_f64();
                self.metrics.observe_first_token(seconds);
                self.first_token_ms.get_or_insert(seconds * 1e3);
            }
        }
    }

    fn close(&mut self, choice: usize, outcome: &Outcome) {
        self.members[choice].open = false;
        let ending = match outcome.matched {
            Some(_) if outcome.calls > 0 => Ending::ToolCalls,
            Some(_) => Ending::Stop,
            None => Ending::Length,
        };
        self.metrics.count_ending(ending);
        let seconds = self.started.elapsed().as_secs_f64();
        let (stats, tokens) = (&outcome.stats, outcome.completion_tokens);
        self.metrics.observe_request(stats, tokens, seconds);
        tracing::info!(
            request_id = self.request_id,
            choice,
            prompt_tokens = outcome.prompt_tokens,
            completion_tokens = tokens,
            finish_reason = outcome.finish_reason(),
            queue_ms = stats.queue_ms,
            total_ms = seconds * 1e3,
            accept_length = stats.mean_acceptance_length(),
            "generated"
        );
        self.finished.push((tokens, outcome.stats.clone()));
    }

    fn interrupt(&mut self, interruption: Interruption) -> ApiError {
        match interruption {
            Interruption::Aborted => {
                self.close_all(Ending::Abort);
                ApiError::draining()
            }
            Interruption::Failed(detail) => {
                self.close_all(Ending::Error);
                ApiError::internal(&self.request_id, &detail)
            }
        }
    }

    fn close_all(&mut self, ending: Ending) {
        for member in self.members.iter_mut().filter(|member| member.open) {
            member.open = false;
            self.engine.abort(member.id);
            self.metrics.count_ending(ending);
        }
    }
}

impl Drop for SequenceGroup {
    fn drop(&mut self) {
        if self.members.iter().any(|member| member.open) {
            self.metrics.count_disconnect();
            tracing::info!(
                request_id = self.request_id,
                status = 499,
                "the client is gone"
            );
            self.close_all(Ending::Abort);
        }
    }
}

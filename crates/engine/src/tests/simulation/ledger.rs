//! Every request that was taken and has not ended, and what was heard of it.

use std::collections::{BTreeMap, HashSet};

use ops::PAGE_TOKENS;

use super::law::Law;
use crate::tests::harness::check_stats;
use crate::tests::stub_memory::digest;
use crate::tests::stub_runner::fake_logprob;
use crate::{Finish, FinishReason, Request, RequestId, RequestUpdate, Started};

/// A request that has not ended.
pub(super) struct Live {
    pub(super) request: Request,
    pub(super) output: Vec<u32>,
    law: Law,
    /// Prompt tokens whose log-probabilities came.
    scored: usize,
    /// How a command ended it, and how many of its tokens count.
    ended: Option<(FinishReason, usize)>,
    /// Digest of prompt and output up to the end of each page, and of all.
    pages: Vec<u64>,
    all: u64,
    /// Of these, how many were computed, or found.
    known: usize,
    /// Whether the output enters the cache, too.
    decoded: bool,
    /// What it was told of its first slot.
    started: Option<Started>,
    /// Tokens from the cache, once it has had a slot.
    cached: Option<usize>,
}

/// A salt and a digest.
type Prefix = (String, u64);

/// See the module.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) live: BTreeMap<RequestId, Live>,
    /// Prefixes that were computed since the last flush: nothing else can be found.
    computed: HashSet<Prefix>,
    /// Whether outputs enter the cache.
    decoded: bool,
    last_id: u64,
    /// Output tokens that count.
    pub(super) kept: u64,
    /// Requests that ended after they had a slot.
    pub(super) ended: u64,
}

/// Whether the stub's logits were not finite.
pub(super) fn is_broken(reason: &FinishReason) -> bool {
    matches!(reason, FinishReason::Error(text) if text.contains("not finite"))
}

impl Live {
    /// Whether it ever ran.
    pub(super) fn had_slot(&self) -> bool {
        self.cached.is_some() || self.ended.is_none()
    }

    /// A token of prompt or output, at position `at`.
    fn take(&mut self, at: usize, token: u32) {
        self.all = digest(self.all, token);
        if (at + 1).is_multiple_of(PAGE_TOKENS) {
            self.pages.push(self.all);
        }
    }

    fn prefix(&self, page: usize) -> Prefix {
        let salt = self.request.cache_salt.clone().unwrap_or_default();
        (salt, self.pages[page])
    }
}

impl Ledger {
    pub(super) fn new(decoded: bool) -> Self {
        Ledger {
            decoded,
            ..Ledger::default()
        }
    }

    pub(super) fn submit(&mut self, id: RequestId, request: Request, context: usize) {
        assert!(id.0 > self.last_id, "ids increase");
        self.last_id = id.0;
        let mut live = Live {
            law: Law::new(&request, context),
            output: Vec::new(),
            scored: 0,
            started: None,
            ended: None,
            pages: Vec::new(),
            all: 0,
            known: 0,
            decoded: self.decoded,
            cached: None,
            request,
        };
        for at in 0..live.request.prompt.len() {
            live.take(at, live.request.prompt[at]);
        }
        self.live.insert(id, live);
    }

    /// A command ends it: that is the next that is heard.
    pub(super) fn end(&mut self, id: RequestId, reason: FinishReason, kept: usize) {
        let live = self.live.get_mut(&id).expect("only live ones are ended");
        live.ended.get_or_insert((reason, kept));
    }

    /// Nothing is in the cache any more.
    pub(super) fn flush(&mut self) {
        self.computed.clear();
    }

    /// What a request found in the cache at its first admission, and how many tokens of its prompt
    /// have been computed.
    pub(super) fn watch(&mut self, id: RequestId, cached: usize, prefilled: usize) {
        let live = self.live.get_mut(&id).expect("it has not ended");
        if live.cached.is_none() {
            assert!(cached.is_multiple_of(PAGE_TOKENS) && cached < live.request.prompt.len());
            assert!(cached == 0 || live.request.prompt_logprobs.is_none());
            let last = (cached / PAGE_TOKENS).checked_sub(1);
            let found = last.is_none_or(|page| self.computed.contains(&live.prefix(page)));
            assert!(found, "{cached} tokens were found that nobody computed");
        }
        assert_eq!(*live.cached.get_or_insert(cached), cached, "cached tokens");
        let mut computed = prefilled;
        if live.decoded && !live.output.is_empty() {
            let length = live.request.prompt.len() + live.output.len();
            computed = computed.max(length - 1);
        }
        let known = computed / PAGE_TOKENS;
        for page in live.known..known {
            self.computed.insert(live.prefix(page));
        }
        live.known = live.known.max(known);
    }

    /// An update; the finish of a request that has ended with it.
    pub(super) fn book(&mut self, update: &RequestUpdate) -> Option<(Live, Finish)> {
        let id = update.id;
        let live = self.live.get_mut(&id);
        let live = live.unwrap_or_else(|| panic!("news of {id:?}, which has ended"));
        live.book(update);
        let finish = update.finish.clone()?;
        if live.ended.is_none() {
            // It may have begun in this very turn.
            let broken = is_broken(&finish.reason);
            let prompt = live.request.prompt.len();
            let prefilled = if broken { finish.cached_tokens } else { prompt };
            self.watch(id, finish.cached_tokens, prefilled);
        }
        let live = self.live.remove(&id).expect("it was just found");
        live.check_finish(&finish);
        self.kept += finish.completion_tokens as u64;
        Some((live, finish))
    }
}

impl Live {
    fn book(&mut self, update: &RequestUpdate) {
        if update.started.is_some() {
            assert!(self.started.is_none(), "it started twice");
            self.started = update.started;
        }
        let silent = update.tokens.is_empty() && update.prompt_logprobs.is_empty();
        assert!(silent || self.started.is_some(), "news before the start");
        let prompt = &self.request.prompt;
        for scored in &update.prompt_logprobs {
            let top = self.request.prompt_logprobs;
            let top = top.expect("log-probabilities that nobody asked for");
            self.scored += 1;
            let token = *prompt.get(self.scored).expect("more than the prompt has");
            let expected = fake_logprob(self.scored, token, top);
            assert_eq!(scored, &expected, "prompt token {}", self.scored);
        }
        assert!(
            self.ended.is_none() || update.tokens.is_empty(),
            "tokens behind the end"
        );
        for token in &update.tokens {
            let at = self.request.prompt.len() + self.output.len();
            assert_eq!(Some(token.id), self.law.next(), "token {at}");
            let expected = (self.request.logprobs).map(|top| fake_logprob(at, token.id, top));
            assert_eq!(token.logprob, expected, "token {at}");
            self.output.push(token.id);
            if self.decoded {
                self.take(at, token.id);
            }
        }
        if let Some(trace) = &update.trace {
            assert!(self.request.trace, "a trace that nobody asked for");
            let tokens = update.tokens.iter().map(|token| token.id);
            assert!(trace.tokens().eq(tokens), "{trace:?}");
        }
    }

    fn check_finish(&self, finish: &Finish) {
        let prompt = self.request.prompt.len();
        assert_eq!(finish.prompt_tokens, prompt);
        assert_eq!(finish.cached_tokens, self.cached.unwrap_or_default());
        let told = self.started.map(|started| started.cached_tokens);
        assert_eq!(finish.cached_tokens, told.unwrap_or_default());
        let queued = self.started.map_or(0.0, |started| started.queue_ms);
        assert!(finish.stats.queue_ms >= queued);
        let mut kept = self.output.len();
        match &self.ended {
            Some((reason, most)) => {
                assert_eq!(&finish.reason, reason);
                kept = kept.min(*most);
            }
            None => self.check_natural(&finish.reason),
        }
        assert_eq!(finish.completion_tokens, kept);
        let whole = matches!(finish.reason, FinishReason::Length | FinishReason::Stop);
        if whole && self.request.prompt_logprobs.is_some() {
            assert_eq!(self.scored, prompt - 1, "all of the prompt is scored");
        }
        check_stats(finish);
    }

    fn check_natural(&self, reason: &FinishReason) {
        if is_broken(reason) {
            return;
        }
        let mut law = self.law.clone();
        if law.end.is_none() {
            assert!(self.request.constraint.is_some(), "{reason:?}");
            assert_eq!(law.next(), None, "the constraint refused nothing");
        }
        assert_eq!(law.end.as_ref(), Some(reason));
    }
}

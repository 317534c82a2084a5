//! Output tokens to text, one token at a time.
//!
//! Bytes are collected until they are complete characters and cannot be the beginning of a stop
//! string, of a reasoning mark or of a call any more; no more than that is held back. Every byte
//! knows which token it came from, so the number of tokens that count is exact wherever the text is
//! cut.

mod ahead;
#[cfg(test)]
mod call_tests;
mod calls;
mod content;
mod held_tokens;
pub(crate) mod marks;
mod reasoning;
#[cfg(test)]
mod tests;
mod thoughts;

use std::sync::Arc;

use engine::{TokenLogprob, TokenUpdate};

use crate::tool_calls::{Body, End, ToolSet};
use crate::vocabulary::Vocabulary;
pub(crate) use ahead::Ahead;
use held_tokens::HeldTokens;
use thoughts::Thoughts;

/// What became final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More of what the model thinks before it answers, never empty.
    Reasoning(String),
    /// More of the answer, never empty.
    Content(String),
    /// A call of a tool begins.
    CallStart {
        /// Which one of this output, from 0.
        index: usize,
        /// Its id, made up here.
        id: String,
        /// The name of the function.
        name: String,
    },
    /// More of the JSON object of a call's arguments, never empty. What the limit of tokens cut off
    /// is no complete object.
    CallArguments {
        /// Which call.
        index: usize,
        /// The text to append.
        text: String,
    },
    /// The arguments are complete.
    CallEnd {
        /// Which call.
        index: usize,
    },
}

/// How reasoning is told from the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Not at all: everything is content, marks included.
    Off,
    /// As in [`Split::Off`], but it is counted.
    Joined {
        /// Whether the prompt ends inside an open reasoning block.
        in_reasoning: bool,
    },
    /// The prompt ends inside an open reasoning block.
    StartsInReasoning,
    /// The prompt ends outside of one.
    StartsInContent,
}

/// What ends the text and what of it is shown.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// Reasoning.
    pub split: Split,
    /// Tools that may be called; without any, calls are plain text.
    pub tools: Option<Arc<ToolSet>>,
    /// Strings that end the content, none empty.
    pub stops: Vec<String>,
    /// Whether the text keeps the stop string or the text of the stop token.
    pub include_stop: bool,
    /// Ids that end the output and are not worth mentioning.
    pub end_ids: Vec<u32>,
    /// Ids that end the output because the client asked for it.
    pub stop_ids: Vec<u32>,
    /// Whether tokens flagged special have no text.
    pub skip_special: bool,
    /// Stop strings that end before this many tokens are plain text.
    pub min_tokens: usize,
}

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLine {
    /// The id.
    pub id: u32,
    /// Its log-probability and the alternatives.
    pub logprob: TokenLogprob,
}

/// A piece of the output.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// What it is.
    pub event: Event,
    /// Tokens whose text ended with this delta or before, not reported yet.
    pub lines: Vec<TokenLine>,
}

/// Which condition ended the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    /// The model's own end, or that of the form it was held to.
    EndOfTurn,
    /// A token of the request's `stop_token_ids`.
    Token(u32),
    /// One of the request's stop strings.
    Text(String),
    /// A complete call, where only one is wanted.
    Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first character of the reasoning. `mark`: a repeated opening mark is swallowed.
    ReasoningStart {
        mark: bool,
    },
    Reasoning,
    /// After a closing mark. `mark`: a second one is swallowed.
    ContentStart {
        mark: bool,
    },
    /// Nothing but white space so far; an opening mark would start a reasoning block.
    OutputStart,
    Content,
    /// Inside a call.
    Call,
    /// Behind a call: white space means nothing.
    CallEnded,
    Ended,
}

/// The text of one sequence as it grows.
#[derive(Clone, Debug)]
pub struct TextStream {
    vocabulary: Arc<Vocabulary>,
    options: TextOptions,
    state: State,
    /// Bytes that were not delivered yet.
    raw: Vec<u8>,
    /// Bytes delivered or dropped before `raw`.
    base: usize,
    /// Whether `raw` begins a line.
    line_start: bool,
    tokens: HeldTokens,
    kept: usize,
    /// Tokens up to the one that closed the reasoning.
    reasoning: Option<usize>,
    /// Where it is counted but not told apart.
    thoughts: Option<Thoughts>,
    /// What ended the output.
    matched: Option<Matched>,
    /// The call that is being read.
    call: Option<Body>,
    /// Calls that were begun.
    calls_begun: usize,
    /// Calls that are complete.
    calls: usize,
}

impl TextStream {
    /// An empty output.
    pub fn new(vocabulary: Arc<Vocabulary>, options: TextOptions) -> Self {
        let state = match options.split {
            Split::Off | Split::Joined { .. } => State::Content,
            Split::StartsInReasoning => State::ReasoningStart { mark: true },
            Split::StartsInContent => State::OutputStart,
        };
        TextStream {
            thoughts: Thoughts::of(&vocabulary, &options),
            vocabulary,
            options,
            state,
            raw: Vec::new(),
            base: 0,
            line_start: true,
            tokens: HeldTokens::default(),
            kept: 0,
            reasoning: None,
            matched: None,
            call: None,
            calls_begun: 0,
            calls: 0,
        }
    }

    /// Tokens that count: all up to the one that ended the output.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Tokens of the reasoning, its closing mark included.
    pub fn reasoning_tokens(&self) -> usize {
        if let Some(thoughts) = &self.thoughts {
            return thoughts.tokens().min(self.kept);
        }
        match self.state {
            State::ReasoningStart { .. } | State::Reasoning => self.kept,
            _ => self.reasoning.unwrap_or(0),
        }
    }

    /// What ended the output; `None` as long as nothing has, and for the limit of tokens.
    pub fn matched(&self) -> Option<&Matched> {
        self.matched.as_ref()
    }

    /// Calls that are complete.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the next token and appends what became final to `deltas`. `Some` says that the output
    /// ends with this token or, where that was not clear before, an earlier one; later ones must not
    /// be pushed.
    pub fn push(&mut self, token: TokenUpdate, deltas: &mut Vec<Delta>) -> Option<Matched> {
        assert!(
            self.state != State::Ended,
            "no token follows the end of the output"
        );
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.push(token.id);
        }
        let special = self.options.skip_special && self.vocabulary.is_special(token.id);
        let chosen = self.options.stop_ids.contains(&token.id);
        if chosen || self.options.end_ids.contains(&token.id) {
            if !special && (self.options.include_stop || !chosen && !self.options.skip_special) {
                self.raw.extend_from_slice(self.vocabulary.bytes(token.id));
            }
            self.kept += 1;
            let end = self.base + self.raw.len();
            self.tokens.push(end..end, None);
            self.matched = Some(if chosen {
                Matched::Token(token.id)
            } else {
                Matched::EndOfTurn
            });
            return self.matched.clone();
        }
        let line = token.logprob.map(|logprob| TokenLine {
            id: token.id,
            logprob,
        });
        let vocabulary = Arc::clone(&self.vocabulary);
        let bytes = match special {
            true => &[][..],
            false => vocabulary.bytes(token.id),
        };
        self.take(bytes, line, deltas)
    }

    /// Takes the bytes of a token.
    fn take(
        &mut self,
        bytes: &[u8],
        line: Option<TokenLine>,
        deltas: &mut Vec<Delta>,
    ) -> Option<Matched> {
        self.kept += 1;
        let start = self.base + self.raw.len();
        self.raw.extend_from_slice(bytes);
        self.tokens.push(start..start + bytes.len(), line);
        self.matched = self.advance(deltas, None);
        self.matched.clone()
    }

    /// Says that the turn ended behind the last token: what had to be written is complete.
    pub fn end_turn(&mut self) {
        self.matched.get_or_insert(Matched::EndOfTurn);
    }

    /// Delivers what was held back; nothing follows. Returns the tokens that belong to no delta.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) -> Vec<TokenLine> {
        if self.state != State::Ended {
            let thinking = self.reasoning_tokens();
            let open = matches!(self.state, State::ReasoningStart { .. } | State::Reasoning);
            let end = match self.matched {
                Some(_) => End::Turn,
                None => End::Limit,
            };
            // A stop string that might have been part of a call is found only now.
            if let Some(matched) = self.advance(deltas, Some(end)) {
                self.matched = Some(matched);
            }
            if open && self.reasoning.is_none() {
                self.reasoning = Some(thinking);
            }
            self.state = State::Ended;
        }
        self.tokens.take_all()
    }

    /// Moves through the states as far as the bytes allow, which are all after `end`. Returns what
    /// ended the output.
    fn advance(&mut self, deltas: &mut Vec<Delta>, end: Option<End>) -> Option<Matched> {
        let last = end.is_some();
        loop {
            let before = self.state;
            let matched = match self.state {
                State::ReasoningStart { mark } => self.start_reasoning(mark, last),
                State::Reasoning => self.reason(deltas, last),
                State::ContentStart { mark } => self.start_content(mark, last),
                State::OutputStart => self.start_output(last),
                State::Content => self.answer(deltas, last),
                State::Call => self.read_call(deltas, end),
                State::CallEnded => self.leave_call(),
                State::Ended => return None,
            };
            if matched.is_some() || self.state == before {
                return matched;
            }
        }
    }

    /// Appends an event with the tokens whose text has ended; goes on with the last one where it can.
    fn emit(&mut self, event: Event, deltas: &mut Vec<Delta>) {
        let lines = self.tokens.take_until(self.base);
        let delta = Delta { event, lines };
        match deltas.last_mut() {
            Some(last) if last.continues_with(&delta) => last.append(delta),
            _ => deltas.push(delta),
        }
    }

    /// Hands out the first `count` bytes, with U+FFFD for what is not UTF-8.
    fn deliver(&mut self, count: usize, event: fn(String) -> Event, deltas: &mut Vec<Delta>) {
        if count == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&self.raw[..count]).into_owned();
        self.skip(count);
        self.emit(event(text), deltas);
    }

    fn skip(&mut self, count: usize) {
        if count > 0 {
            self.line_start = self.raw[count - 1] == b'\n';
        }
        self.raw.drain(..count);
        self.base += count;
    }
}

impl Event {
    /// Text of the answer or of the reasoning; a call has none.
    pub fn text(&self) -> &str {
        match self {
            Event::Reasoning(text) | Event::Content(text) => text,
            Event::CallStart { .. } | Event::CallArguments { .. } | Event::CallEnd { .. } => "",
        }
    }
}

impl Delta {
    /// Whether `next` is more of the same.
    fn continues_with(&self, next: &Delta) -> bool {
        match (&self.event, &next.event) {
            (Event::Reasoning(_), Event::Reasoning(_)) | (Event::Content(_), Event::Content(_)) => {
                true
            }
            (Event::CallArguments { index, .. }, Event::CallArguments { index: next, .. }) => {
                index == next
            }
            _ => false,
        }
    }

    /// Takes in more of the same.
    pub(crate) fn append(&mut self, next: Delta) {
        if let Event::Reasoning(text) | Event::Content(text) | Event::CallArguments { text, .. } =
            &mut self.event
            && let Event::Reasoning(more)
            | Event::Content(more)
            | Event::CallArguments { text: more, .. } = &next.event
        {
            text.push_str(more);
        }
        self.lines.extend(next.lines);
    }
}

//! Output tokens to text, one token at a time.
//!
//! Bytes are collected until they are complete characters and cannot be the beginning of a stop
//! string or of a reasoning mark any more; no more than that is held back. Every byte knows which
//! token it came from, so the number of tokens that count is exact wherever the text is cut.

mod marks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use engine::{TokenLogprob, TokenUpdate};

use crate::vocabulary::Vocabulary;
use marks::{held_tail, incomplete_tail, position};

const THINK_OPEN: &[u8] = b"<think>";
const THINK_CLOSE: &[u8] = b"</think>";

/// Where text belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// What the model thinks before it answers.
    Reasoning,
    /// The answer.
    Content,
}

/// How reasoning is told from the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Not at all: everything is content, marks included.
    Off,
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

/// Text that became final.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// Where it belongs.
    pub channel: Channel,
    /// The text, never empty.
    pub text: String,
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
    Ended,
}

#[derive(Debug)]
struct HeldLine {
    /// First byte of its text, counted from the start of the output.
    start: usize,
    /// One past its last byte.
    end: usize,
    line: TokenLine,
}

/// The text of one sequence as it grows.
#[derive(Debug)]
pub struct TextStream {
    vocabulary: Arc<Vocabulary>,
    options: TextOptions,
    state: State,
    /// Bytes that were not delivered yet.
    raw: Vec<u8>,
    /// Bytes delivered or dropped before `raw`.
    base: usize,
    lines: VecDeque<HeldLine>,
    kept: usize,
    /// Tokens up to the one that closed the reasoning.
    reasoning: Option<usize>,
}

impl TextStream {
    /// An empty output.
    pub fn new(vocabulary: Arc<Vocabulary>, options: TextOptions) -> Self {
        let state = match options.split {
            Split::Off => State::Content,
            Split::StartsInReasoning => State::ReasoningStart { mark: true },
            Split::StartsInContent => State::OutputStart,
        };
        TextStream {
            vocabulary,
            options,
            state,
            raw: Vec::new(),
            base: 0,
            lines: VecDeque::new(),
            kept: 0,
            reasoning: None,
        }
    }

    /// Tokens that count: all up to the one that ended the output.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Tokens of the reasoning, its closing mark included.
    pub fn reasoning_tokens(&self) -> usize {
        match self.state {
            State::ReasoningStart { .. } | State::Reasoning => self.kept,
            _ => self.reasoning.unwrap_or(0),
        }
    }

    /// Takes the next token and appends what became final to `deltas`. `Some` says that the output
    /// ends with this token; later ones must not be pushed.
    pub fn push(&mut self, token: TokenUpdate, deltas: &mut Vec<Delta>) -> Option<Matched> {
        assert!(
            self.state != State::Ended,
            "no token follows the end of the output"
        );
        self.kept += 1;
        let special = self.options.skip_special && self.vocabulary.is_special(token.id);
        let chosen = self.options.stop_ids.contains(&token.id);
        if chosen || self.options.end_ids.contains(&token.id) {
            if !special && (self.options.include_stop || !chosen && !self.options.skip_special) {
                self.raw.extend_from_slice(self.vocabulary.bytes(token.id));
            }
            return Some(if chosen {
                Matched::Token(token.id)
            } else {
                Matched::EndOfTurn
            });
        }
        let start = self.base + self.raw.len();
        if !special {
            self.raw.extend_from_slice(self.vocabulary.bytes(token.id));
        }
        if let Some(logprob) = token.logprob {
            let end = self.base + self.raw.len();
            self.lines.push_back(HeldLine {
                start,
                end,
                line: TokenLine {
                    id: token.id,
                    logprob,
                },
            });
        }
        self.advance(deltas, false).map(Matched::Text)
    }

    /// Delivers what was held back; nothing follows. Returns the tokens that belong to no delta.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) -> Vec<TokenLine> {
        if self.state != State::Ended {
            let thinking = self.reasoning_tokens();
            let open = matches!(self.state, State::ReasoningStart { .. } | State::Reasoning);
            // A stop string would have been found when its last byte arrived.
            self.options.stops.clear();
            self.advance(deltas, true);
            if open && self.reasoning.is_none() {
                self.reasoning = Some(thinking);
            }
            self.state = State::Ended;
        }
        self.lines.drain(..).map(|held| held.line).collect()
    }

    /// Moves through the states as far as the bytes allow; `last` when no more will come. Returns
    /// the stop string that was found.
    fn advance(&mut self, deltas: &mut Vec<Delta>, last: bool) -> Option<String> {
        loop {
            let before = self.state;
            match self.state {
                State::ReasoningStart { mark } => self.start_reasoning(mark, last),
                State::Reasoning => self.reason(deltas, last),
                State::ContentStart { mark } => self.start_content(mark, last),
                State::OutputStart => self.start_output(last),
                State::Content => return self.answer(deltas, last),
                State::Ended => return None,
            }
            if self.state == before {
                return None;
            }
        }
    }

    fn start_reasoning(&mut self, mark: bool, last: bool) {
        self.skip_newlines();
        if mark && self.raw.starts_with(THINK_OPEN) {
            self.skip(THINK_OPEN.len());
            self.state = State::ReasoningStart { mark: false };
        } else if !self.raw.is_empty() && (last || !mark || !THINK_OPEN.starts_with(&self.raw)) {
            self.state = State::Reasoning;
        }
    }

    fn reason(&mut self, deltas: &mut Vec<Delta>, last: bool) {
        if let Some(close) = position(&self.raw, THINK_CLOSE) {
            let end = without_newlines(&self.raw[..close]);
            self.deliver(end, Channel::Reasoning, deltas);
            self.skip(close - end + THINK_CLOSE.len());
            self.reasoning = Some(self.kept);
            self.state = State::ContentStart { mark: true };
            return;
        }
        let mut end = self.raw.len();
        if !last {
            // Newlines belong to the closing mark if it follows.
            let mark = held_tail(&self.raw, THINK_CLOSE);
            let held = without_newlines(&self.raw[..end - mark]);
            end = held.min(end - incomplete_tail(&self.raw));
        }
        self.deliver(end, Channel::Reasoning, deltas);
    }

    fn start_content(&mut self, mark: bool, last: bool) {
        self.skip_newlines();
        if mark && self.raw.starts_with(THINK_CLOSE) {
            self.skip(THINK_CLOSE.len());
            self.state = State::ContentStart { mark: false };
        } else if !self.raw.is_empty() && (last || !mark || !THINK_CLOSE.starts_with(&self.raw)) {
            self.state = State::Content;
        }
    }

    fn start_output(&mut self, last: bool) {
        let space = self
            .raw
            .iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count();
        let rest = &self.raw[space..];
        let stopped = self
            .options
            .stops
            .iter()
            .any(|s| position(&self.raw, s.as_bytes()).is_some());
        if stopped {
            self.state = State::Content;
        } else if rest.starts_with(THINK_OPEN) {
            self.skip(space + THINK_OPEN.len());
            self.state = State::ReasoningStart { mark: false };
        } else if last || !THINK_OPEN.starts_with(rest) {
            self.state = State::Content;
        }
    }

    fn answer(&mut self, deltas: &mut Vec<Delta>, last: bool) -> Option<String> {
        // The earliest start wins, then the longest string. A stop string that was complete before
        // the minimum was reached has been delivered by then.
        let stops = match self.kept < self.options.min_tokens {
            true => &[][..],
            false => &self.options.stops,
        };
        let found = stops
            .iter()
            .filter_map(|stop| Some((position(&self.raw, stop.as_bytes())?, stop)))
            .min_by_key(|(start, stop)| (*start, usize::MAX - stop.len()));
        if let Some((start, stop)) = found {
            let stop = stop.clone();
            let end = if self.options.include_stop {
                start + stop.len()
            } else {
                start
            };
            self.cut(end, deltas);
            return Some(stop);
        }
        let mut held = 0;
        if !last {
            held = incomplete_tail(&self.raw);
            for stop in &self.options.stops {
                held = held.max(held_tail(&self.raw, stop.as_bytes()));
            }
        }
        self.deliver(self.raw.len() - held, Channel::Content, deltas);
        None
    }

    /// Ends the text after `end` bytes and forgets the tokens behind the cut.
    fn cut(&mut self, end: usize, deltas: &mut Vec<Delta>) {
        let cut = self.base + end;
        self.lines.retain(|held| held.start < cut);
        for held in &mut self.lines {
            held.end = held.end.min(cut);
        }
        self.deliver(end, Channel::Content, deltas);
        self.raw.clear();
        self.state = State::Ended;
    }

    /// Hands out the first `count` bytes, with U+FFFD for what is not UTF-8.
    fn deliver(&mut self, count: usize, channel: Channel, deltas: &mut Vec<Delta>) {
        if count == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&self.raw[..count]).into_owned();
        self.skip(count);
        let ended = self
            .lines
            .iter()
            .take_while(|held| held.end <= self.base)
            .count();
        let lines = self.lines.drain(..ended).map(|held| held.line);
        match deltas.last_mut() {
            Some(delta) if delta.channel == channel => {
                delta.text.push_str(&text);
                delta.lines.extend(lines);
            }
            _ => deltas.push(Delta {
                channel,
                text,
                lines: lines.collect(),
            }),
        }
    }

    fn skip(&mut self, count: usize) {
        self.raw.drain(..count);
        self.base += count;
    }

    fn skip_newlines(&mut self) {
        self.skip(self.raw.iter().take_while(|&&byte| byte == b'\n').count());
    }
}

/// Length without trailing newlines.
fn without_newlines(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .rposition(|&byte| byte != b'\n')
        .map_or(0, |last| last + 1)
}

//! Reasoning: where it begins and ends.

use super::marks::{blank, held_tail, incomplete_tail, position, without_newlines};
use super::{Delta, Event, Matched, State, TextStream};
use crate::tool_calls::{Opening, Within, find};

const THINK_OPEN: &[u8] = b"<think>";
const THINK_CLOSE: &[u8] = b"</think>";

impl TextStream {
    pub(super) fn start_reasoning(&mut self, mark: bool, last: bool) -> Option<Matched> {
        self.skip_newlines();
        if mark && self.raw.starts_with(THINK_OPEN) {
            self.skip(THINK_OPEN.len());
            self.state = State::ReasoningStart { mark: false };
        } else if !self.raw.is_empty() && (last || !mark || !THINK_OPEN.starts_with(&self.raw)) {
            self.state = State::Reasoning;
        }
        None
    }

    pub(super) fn reason(&mut self, deltas: &mut Vec<Delta>, last: bool) -> Option<Matched> {
        let close = position(&self.raw, THINK_CLOSE);
        let call = match &self.options.tools {
            Some(tools) => find(&self.raw, Within::Reasoning, tools, last),
            None => Opening::Nowhere,
        };
        let ends = [close, call.start()].into_iter().flatten().min();
        if let Some(close) = close.filter(|_| ends == close) {
            self.end_reasoning(close, deltas);
            self.reasoning = Some(self.kept_before(THINK_CLOSE.len()));
            self.skip(THINK_CLOSE.len());
            self.state = State::ContentStart { mark: true };
            return None;
        }
        // A call ends the reasoning, too; the model forgot to say so.
        if let Opening::Call { start, .. } = call {
            self.end_reasoning(start, deltas);
            self.reasoning = Some(self.kept_before(0));
            self.state = State::Content;
            return None;
        }
        let mut end = self.raw.len();
        if !last {
            // Newlines belong to the mark if one follows.
            let mark = held_tail(&self.raw, THINK_CLOSE);
            let text = ends.unwrap_or(end - mark);
            end = without_newlines(&self.raw[..text]).min(end - incomplete_tail(&self.raw));
        }
        self.deliver(end, Event::Reasoning, deltas);
        None
    }

    /// Delivers the reasoning before the mark at `end`, and nothing else is left in front of it.
    fn end_reasoning(&mut self, end: usize, deltas: &mut Vec<Delta>) {
        let text = without_newlines(&self.raw[..end]);
        self.deliver(text, Event::Reasoning, deltas);
        self.skip(end - text);
    }

    pub(super) fn start_content(&mut self, mark: bool, last: bool) -> Option<Matched> {
        self.skip_newlines();
        if mark && self.raw.starts_with(THINK_CLOSE) {
            self.skip(THINK_CLOSE.len());
            self.state = State::ContentStart { mark: false };
        } else if !self.raw.is_empty() && (last || !mark || !THINK_CLOSE.starts_with(&self.raw)) {
            self.state = State::Content;
            self.line_start = true;
        }
        None
    }

    pub(super) fn start_output(&mut self, last: bool) -> Option<Matched> {
        let space = blank(&self.raw);
        let rest = &self.raw[space..];
        let pairs = rest.iter().zip(THINK_OPEN);
        let mark = pairs.take_while(|(byte, mark)| byte == mark).count();
        if self.find_stop(space + mark).is_some() {
            self.state = State::Content;
        } else if rest.starts_with(THINK_OPEN) {
            self.skip(space + THINK_OPEN.len());
            self.state = State::ReasoningStart { mark: false };
        } else if last || !THINK_OPEN.starts_with(rest) {
            self.state = State::Content;
        }
        None
    }

    fn skip_newlines(&mut self) {
        self.skip(self.raw.iter().take_while(|&&byte| byte == b'\n').count());
    }
}

//! The answer: stop strings, and calls in between.

use super::marks::{held_tail, incomplete_tail, without_space};
use super::{Delta, Event, Matched, State, TextStream};
use crate::tool_calls::{Opening, Within, find};

/// A stop string in the bytes that were not delivered yet.
pub(super) struct Stop {
    start: usize,
    text: String,
}

impl TextStream {
    pub(super) fn answer(&mut self, deltas: &mut Vec<Delta>, last: bool) -> Option<Matched> {
        let line_start = self.line_start;
        let opening = match &self.options.tools {
            Some(tools) => find(&self.raw, Within::Content { line_start }, tools, last),
            None => Opening::Nowhere,
        };
        // Marks of calls are no text, so no stop string is looked for in them.
        let text = opening.start().unwrap_or(self.raw.len());
        if let Some(stop) = self.find_stop(text) {
            return Some(self.stop(stop, deltas));
        }
        if !matches!(opening, Opening::Nowhere | Opening::Maybe { .. }) {
            // White space in front of a call is dropped.
            let shown = without_space(&self.raw[..text]);
            self.deliver(shown, Event::Content, deltas);
            return self.begin_call(opening, shown, last, deltas);
        }
        let mut end = text;
        if !last {
            let text = &self.raw[..text];
            let mut held = incomplete_tail(text);
            for stop in &self.options.stops {
                held = held.max(held_tail(text, stop.as_bytes()));
            }
            end -= held;
            if self.options.tools.is_some() {
                end = end.min(without_space(text));
            }
        }
        self.deliver(end, Event::Content, deltas);
        None
    }

    /// The stop string in the first `text` bytes with the earliest start, then the longest.
    pub(super) fn find_stop(&self, text: usize) -> Option<Stop> {
        let stops = self.options.stops.iter().filter_map(|stop| {
            let mut places = self.raw[..text].windows(stop.len()).enumerate();
            // One that was complete before the minimum was reached is text.
            let counts = |at| self.kept_before(at + stop.len()) >= self.options.min_tokens;
            let found = places.find(|(at, bytes)| *bytes == stop.as_bytes() && counts(*at));
            Some((found?.0, stop))
        });
        let (start, stop) = stops.min_by_key(|(start, stop)| (*start, usize::MAX - stop.len()))?;
        Some(Stop {
            start,
            text: stop.clone(),
        })
    }

    /// Tokens up to the one that has the last of the first `count` bytes.
    pub(super) fn kept_before(&self, count: usize) -> usize {
        self.kept - self.tokens.count_from(self.base + count)
    }

    /// Ends the text at a stop string and forgets the tokens behind it.
    fn stop(&mut self, stop: Stop, deltas: &mut Vec<Delta>) -> Matched {
        let end = stop.start + stop.text.len();
        self.kept = self.kept_before(end);
        let shown = match self.options.include_stop {
            true => end,
            false => stop.start,
        };
        self.tokens.cut(self.base + shown);
        self.deliver(shown, Event::Content, deltas);
        self.raw.clear();
        self.state = State::Ended;
        Matched::Text(stop.text)
    }
}

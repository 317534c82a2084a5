//! Calls of tools as events.

use super::marks::blank;
use super::{Delta, Event, Matched, State, TextStream};
use crate::ids;
use crate::tool_calls::{Body, End, Opening, Step};

impl TextStream {
    /// Takes in what opens a call; `delivered` bytes of those it was found in are gone.
    pub(super) fn begin_call(
        &mut self,
        opening: Opening,
        delivered: usize,
        last: bool,
        deltas: &mut Vec<Delta>,
    ) -> Option<Matched> {
        self.state = State::CallEnded;
        match opening {
            Opening::Call {
                end, name, wrapped, ..
            } => {
                self.skip(end - delivered);
                self.start_event(name.clone(), deltas);
                self.call = Some(Body::new(name, wrapped));
                self.state = State::Call;
                None
            }
            Opening::Whole {
                end,
                name,
                arguments,
                ..
            } => {
                self.skip(end - delivered);
                self.start_event(name, deltas);
                self.grow(arguments, deltas);
                self.complete(deltas);
                self.end_after_call(last)
            }
            Opening::Empty { end, .. } => {
                self.skip(end - delivered);
                None
            }
            Opening::Nowhere | Opening::Maybe { .. } => None,
        }
    }

    /// Reads on in a call.
    pub(super) fn read_call(
        &mut self,
        deltas: &mut Vec<Delta>,
        end: Option<End>,
    ) -> Option<Matched> {
        loop {
            let (Some(call), Some(tools)) = (&mut self.call, &self.options.tools) else {
                self.state = State::CallEnded;
                return None;
            };
            let mut text = String::new();
            let wrapped = call.is_wrapped();
            match call.step(&self.raw, end, tools, &mut text) {
                Step::Wait => return None,
                Step::Take(size) => {
                    self.skip(size);
                    self.grow(text, deltas);
                }
                Step::Close(size) => {
                    self.skip(size);
                    self.grow(text, deltas);
                    self.complete(deltas);
                    if !wrapped && let Some(matched) = self.end_after_call(end.is_some()) {
                        return Some(matched);
                    }
                }
                Step::Leave(size) => {
                    self.skip(size);
                    self.call = None;
                    self.state = State::CallEnded;
                    return self.end_after_call(end.is_some());
                }
            }
        }
    }

    /// Drops white space behind a call; other text is content again.
    pub(super) fn leave_call(&mut self) -> Option<Matched> {
        self.skip(blank(&self.raw));
        if !self.raw.is_empty() {
            self.state = State::Content;
            self.line_start = true;
        }
        None
    }

    fn start_event(&mut self, name: String, deltas: &mut Vec<Delta>) {
        let start = Event::CallStart {
            index: self.calls_begun,
            id: ids::random_id("call_"),
            name,
        };
        self.calls_begun += 1;
        self.emit(start, deltas);
    }

    fn grow(&mut self, text: String, deltas: &mut Vec<Delta>) {
        if !text.is_empty() {
            let index = self.calls_begun - 1;
            self.emit(Event::CallArguments { index, text }, deltas);
        }
    }

    fn complete(&mut self, deltas: &mut Vec<Delta>) {
        self.calls += 1;
        deltas.push(Delta {
            event: Event::CallEnd {
                index: self.calls_begun - 1,
            },
            lines: Vec::new(),
        });
    }

    /// Ends the output behind a call if no other is wanted. At the `last` byte it has ended anyway.
    fn end_after_call(&mut self, last: bool) -> Option<Matched> {
        let tools = self.options.tools.as_ref()?;
        let over = last && blank(&self.raw) == self.raw.len();
        if over || tools.parallel || self.calls == 0 {
            return None;
        }
        self.kept = self.kept_before(0);
        self.tokens.cut(self.base);
        self.raw.clear();
        self.state = State::Ended;
        Some(Matched::Call)
    }
}

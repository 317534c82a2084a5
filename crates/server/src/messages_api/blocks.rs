//! Content blocks, piece by piece. Whole answers are put together in the same way, so that a stream
//! cannot say anything else.

use serde_json::{Value, json};

use crate::text_stream::Event;

/// Clients send it back with the thoughts and do not look into it; nothing here does.
const SIGNATURE: &str = "c3Bpbm5leQ==";

/// The content of one answer.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Whether thoughts are shown.
    thinking: bool,
    /// Complete blocks.
    done: Vec<Value>,
    open: Option<Open>,
}

#[derive(Debug)]
enum Open {
    Thinking(String),
    Text(String),
    ToolUse {
        id: String,
        name: String,
        arguments: String,
    },
}

impl Blocks {
    /// Nothing yet.
    pub(super) fn new(thinking: bool) -> Self {
        Blocks {
            thinking,
            done: Vec::new(),
            open: None,
        }
    }

    /// Takes what the model wrote next and appends its events.
    pub(super) fn take(&mut self, event: &Event, events: &mut Vec<Value>) {
        match event {
            Event::Reasoning(more) if self.thinking => {
                if !matches!(self.open, Some(Open::Thinking(_))) {
                    self.begin(Open::Thinking(String::new()), events);
                }
                self.append(more, events);
            }
            Event::Reasoning(_) => {}
            Event::Content(more) => {
                if !matches!(self.open, Some(Open::Text(_))) {
                    self.begin(Open::Text(String::new()), events);
                }
                self.append(more, events);
            }
            Event::CallStart { id, name, .. } => {
                let id = id.strip_prefix("call_").unwrap_or(id);
                let call = Open::ToolUse {
                    id: format!("toolu_{id}"),
                    name: name.clone(),
                    arguments: String::new(),
                };
                self.begin(call, events);
            }
            Event::CallArguments { text, .. } => self.append(text, events),
            Event::CallEnd { .. } => self.close(events),
        }
    }

    fn begin(&mut self, open: Open, events: &mut Vec<Value>) {
        self.close(events);
        let block = match &open {
            Open::Thinking(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Open::Text(_) => json!({"type": "text", "text": ""}),
            Open::ToolUse { id, name, .. } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": {}})
            }
        };
        events.push(
            json!({"type": "content_block_start", "index": self.done.len(),
            "content_block": block}),
        );
        self.open = Some(open);
    }

    fn append(&mut self, more: &str, events: &mut Vec<Value>) {
        let Some(open) = &mut self.open else {
            return;
        };
        let (kind, name, text) = match open {
            Open::Thinking(text) => ("thinking_delta", "thinking", text),
            Open::Text(text) => ("text_delta", "text", text),
            Open::ToolUse { arguments, .. } => ("input_json_delta", "partial_json", arguments),
        };
        text.push_str(more);
        self.delta(json!({"type": kind, name: more}), events);
    }

    fn delta(&self, delta: Value, events: &mut Vec<Value>) {
        events.push(
            json!({"type": "content_block_delta", "index": self.done.len(),
            "delta": delta}),
        );
    }

    /// Ends the block that is open.
    pub(super) fn close(&mut self, events: &mut Vec<Value>) {
        let Some(open) = self.open.take() else {
            return;
        };
        let block = match open {
            Open::Thinking(text) => {
                self.delta(
                    json!({"type": "signature_delta", "signature": SIGNATURE}),
                    events,
                );
                json!({"type": "thinking", "thinking": text, "signature": SIGNATURE})
            }
            Open::Text(text) => json!({"type": "text", "text": text}),
            Open::ToolUse {
                id,
                name,
                arguments,
            } => json!({"type": "tool_use", "id": id, "name": name, "input": input(&arguments)}),
        };
        events.push(json!({"type": "content_block_stop", "index": self.done.len()}));
        self.done.push(block);
    }

    /// All blocks of an answer that has ended.
    pub(super) fn content(mut self) -> Vec<Value> {
        self.close(&mut Vec::new());
        self.done
    }
}

/// The object of a call. What the limit of tokens cut off has none; it is handed on under the name
/// that such text has when it comes back in a conversation.
fn input(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(object)) => object.into(),
        _ if arguments.is_empty() => json!({}),
        _ => json!({"_raw_arguments": arguments}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> Vec<Event> {
        vec![
            Event::Reasoning("I ".into()),
            Event::Reasoning("think.".into()),
            Event::Content("It is".into()),
            Event::Content(" so.".into()),
            Event::CallStart {
                index: 0,
                id: "call_1".into(),
                name: "f".into(),
            },
            Event::CallArguments {
                index: 0,
                text: "{\"a\": ".into(),
            },
            Event::CallArguments {
                index: 0,
                text: "1}".into(),
            },
            Event::CallEnd { index: 0 },
            Event::CallStart {
                index: 1,
                id: "call_2".into(),
                name: "g".into(),
            },
            Event::CallEnd { index: 1 },
        ]
    }

    fn run(output: &[Event], thinking: bool) -> (Vec<String>, Vec<Value>) {
        let mut blocks = Blocks::new(thinking);
        let mut events = Vec::new();
        for event in output {
            blocks.take(event, &mut events);
        }
        blocks.close(&mut events);
        let names = events.iter().map(|event| {
            let part = event["delta"]["type"].as_str();
            let part = part.or(event["content_block"]["type"].as_str());
            let kind = event["type"].as_str().unwrap();
            let kind = kind.strip_prefix("content_block_").unwrap();
            format!("{} {kind} {}", event["index"], part.unwrap_or(""))
        });
        (names.collect(), blocks.content())
    }

    #[test]
    fn blocks_follow_each_other() {
        let (names, content) = run(&output(), true);
        assert_eq!(
            names,
            [
                "0 start thinking",
                "0 delta thinking_delta",
                "0 delta thinking_delta",
                "0 delta signature_delta",
                "0 stop ",
                "1 start text",
                "1 delta text_delta",
                "1 delta text_delta",
                "1 stop ",
                "2 start tool_use",
                "2 delta input_json_delta",
                "2 delta input_json_delta",
                "2 stop ",
                "3 start tool_use",
                "3 stop ",
            ]
        );
        assert_eq!(
            Value::from(content),
            json!([
                {"type": "thinking", "thinking": "I think.", "signature": SIGNATURE},
                {"type": "text", "text": "It is so."},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
            ])
        );
    }

    #[test]
    fn thoughts_nobody_asked_for_leave_no_trace() {
        let (names, content) = run(&output(), false);
        assert_eq!(names[0], "0 start text");
        assert_eq!(content.len(), 3);
        let (names, content) = run(&output()[..2], false);
        assert!(names.is_empty() && content.is_empty());
    }

    #[test]
    fn a_call_that_was_cut_off_keeps_its_text() {
        let (names, content) = run(&output()[4..6], true);
        assert_eq!(names.last().unwrap(), "0 stop ");
        assert_eq!(content[0]["input"], json!({"_raw_arguments": "{\"a\": "}));
    }
}

//! Items of an answer, piece by piece. Whole answers are put together in the same way, so that a
//! stream cannot say anything else.

use serde_json::{Map, Value, json};

use crate::ids;
use crate::text_stream::Event;

/// What one request's output is made of.
#[derive(Debug)]
pub(super) struct Output {
    /// Names of tools whose input is a text.
    custom: Vec<String>,
    /// Whether thoughts are shown.
    reasoning: bool,
    /// Complete items.
    done: Vec<Value>,
    open: Option<Item>,
    /// Events so far.
    sequence: u64,
}

/// An item that grows.
#[derive(Clone, Debug)]
struct Item {
    id: String,
    kind: Kind,
    /// What it says, or the arguments.
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
    Custom { call_id: String, name: String },
}

impl Item {
    fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
            Kind::Custom { .. } => "ctc_",
        };
        Item {
            id: ids::random_id(prefix),
            kind,
            text: String::new(),
            logprobs: Vec::new(),
        }
    }

    fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": self.text}),
            _ => json!({"type": "output_text", "text": self.text, "annotations": [],
                "logprobs": self.logprobs}),
        }
    }

    /// The item; `begun`: with what it says so far.
    fn object(&self, status: &str, begun: bool) -> Value {
        let parts = if begun {
            json!([self.part()])
        } else {
            json!([])
        };
        match &self.kind {
            Kind::Reasoning => json!({"type": "reasoning", "id": self.id, "summary": [],
                "content": parts, "status": status}),
            Kind::Message => json!({"type": "message", "id": self.id, "role": "assistant",
                "status": status, "content": parts}),
            Kind::Call { call_id, name } => json!({"type": "function_call", "id": self.id,
                "call_id": call_id, "name": name, "arguments": self.text, "status": status}),
            Kind::Custom { call_id, name } => {
                let input = if begun {
                    input(&self.text)
                } else {
                    String::new()
                };
                json!({"type": "custom_tool_call", "id": self.id, "call_id": call_id,
                    "name": name, "input": input, "status": status})
            }
        }
    }
}

impl Output {
    /// Nothing yet.
    pub(super) fn new(custom: Vec<String>, reasoning: bool) -> Self {
        Output {
            custom,
            reasoning,
            done: Vec::new(),
            open: None,
            sequence: 0,
        }
    }

    /// Appends an event of the whole response or of an item.
    pub(super) fn event(&mut self, kind: &str, fields: Value, events: &mut Vec<Value>) {
        let mut event = Map::new();
        event.insert("type".into(), kind.into());
        event.insert("sequence_number".into(), self.sequence.into());
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.sequence += 1;
        events.push(event.into());
    }

    /// Takes what the model wrote next and appends its events.
    pub(super) fn take(&mut self, event: &Event, logprobs: Vec<Value>, events: &mut Vec<Value>) {
        match event {
            Event::Reasoning(more) if self.reasoning => {
                self.grow(Kind::Reasoning, more, Vec::new(), events);
            }
            Event::Reasoning(_) => {}
            Event::Content(more) => self.grow(Kind::Message, more, logprobs, events),
            Event::CallStart { id, name, .. } => {
                let (call_id, name) = (id.clone(), name.clone());
                let kind = match self.custom.contains(&name) {
                    true => Kind::Custom { call_id, name },
                    false => Kind::Call { call_id, name },
                };
                self.begin(kind, events);
            }
            Event::CallArguments { text, .. } => self.arguments(text, events),
            Event::CallEnd { .. } => self.close("completed", events),
        }
    }

    fn begin(&mut self, kind: Kind, events: &mut Vec<Value>) {
        self.close("completed", events);
        let item = Item::new(kind);
        let fields = json!({"output_index": self.done.len(),
            "item": item.object("in_progress", false)});
        self.event("response.output_item.added", fields, events);
        if matches!(item.kind, Kind::Reasoning | Kind::Message) {
            let fields = json!({"item_id": item.id, "output_index": self.done.len(),
                "content_index": 0, "part": item.part()});
            self.event("response.content_part.added", fields, events);
        }
        self.open = Some(item);
    }

    fn grow(&mut self, kind: Kind, more: &str, logprobs: Vec<Value>, events: &mut Vec<Value>) {
        if self.open.as_ref().is_none_or(|item| item.kind != kind) {
            self.begin(kind.clone(), events);
        }
        let index = self.done.len();
        let Some(item) = &mut self.open else {
            return;
        };
        item.text.push_str(more);
        let mut fields = json!({"item_id": item.id, "output_index": index, "content_index": 0,
            "delta": more});
        if kind == Kind::Message {
            item.logprobs.extend_from_slice(&logprobs);
            fields["logprobs"] = logprobs.into();
            self.event("response.output_text.delta", fields, events);
        } else {
            self.event("response.reasoning_text.delta", fields, events);
        }
    }

    /// The text inside the arguments of a custom tool is known when they are complete.
    fn arguments(&mut self, more: &str, events: &mut Vec<Value>) {
        let index = self.done.len();
        let Some(item) = &mut self.open else {
            return;
        };
        item.text.push_str(more);
        if matches!(item.kind, Kind::Call { .. }) {
            let fields = json!({"item_id": item.id, "output_index": index, "delta": more});
            self.event("response.function_call_arguments.delta", fields, events);
        }
    }

    /// Ends the item that is open.
    pub(super) fn close(&mut self, status: &str, events: &mut Vec<Value>) {
        let Some(item) = self.open.take() else {
            return;
        };
        let mut place = json!({"item_id": item.id, "output_index": self.done.len()});
        let with = |place: &Value, name: &str, value: Value| {
            let mut fields = place.clone();
            fields[name] = value;
            fields
        };
        match &item.kind {
            Kind::Reasoning | Kind::Message => {
                place["content_index"] = 0.into();
                let mut fields = with(&place, "text", item.text.as_str().into());
                if item.kind == Kind::Message {
                    fields["logprobs"] = item.logprobs.clone().into();
                    self.event("response.output_text.done", fields, events);
                } else {
                    self.event("response.reasoning_text.done", fields, events);
                }
                let fields = with(&place, "part", item.part());
                self.event("response.content_part.done", fields, events);
            }
            Kind::Call { name, .. } => {
                let mut fields = with(&place, "name", name.as_str().into());
                fields["arguments"] = item.text.as_str().into();
                self.event("response.function_call_arguments.done", fields, events);
            }
            Kind::Custom { .. } => {
                let input = input(&item.text);
                let fields = with(&place, "delta", input.as_str().into());
                self.event("response.custom_tool_call_input.delta", fields, events);
                let fields = with(&place, "input", input.into());
                self.event("response.custom_tool_call_input.done", fields, events);
            }
        }
        let object = item.object(status, true);
        let fields = json!({"output_index": self.done.len(), "item": object});
        self.event("response.output_item.done", fields, events);
        self.done.push(object);
    }

    /// All items, the open one as it is.
    pub(super) fn items(&self) -> Vec<Value> {
        let open = self.open.iter().map(|item| item.object("incomplete", true));
        self.done.iter().cloned().chain(open).collect()
    }
}

/// The text in the arguments of a custom tool. An end that the limit of tokens cut off is made up.
fn input(arguments: &str) -> String {
    let closed = format!("{arguments}\"}}");
    for text in [arguments, &closed] {
        if let Ok(Value::Object(object)) = serde_json::from_str(text) {
            return match object.get("input") {
                Some(Value::String(input)) => input.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            };
        }
    }
    arguments.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: usize, name: &str, arguments: &[&str]) -> Vec<Event> {
        let mut events = vec![Event::CallStart {
            index,
            id: format!("call_{index}"),
            name: name.into(),
        }];
        events.extend(arguments.iter().map(|&text| Event::CallArguments {
            index,
            text: text.into(),
        }));
        events.push(Event::CallEnd { index });
        events
    }

    fn run(written: &[Event], reasoning: bool) -> (Output, Vec<Value>) {
        let mut output = Output::new(vec!["patch".to_owned()], reasoning);
        let mut events = Vec::new();
        for event in written {
            output.take(event, Vec::new(), &mut events);
        }
        output.close("incomplete", &mut events);
        (output, events)
    }

    #[test]
    fn items_follow_each_other() {
        let mut written = vec![
            Event::Reasoning("I think.".into()),
            Event::Content("It is".into()),
            Event::Content(" so.".into()),
        ];
        written.extend(call(0, "f", &["{\"a\": ", "1}"]));
        written.extend(call(1, "patch", &["{\"input\": \"*** ", "x\\n\"}"]));
        let (output, events) = run(&written, true);
        let names: Vec<String> = events
            .iter()
            .map(|event| {
                let kind = event["type"].as_str().unwrap();
                let kind = kind.strip_prefix("response.").unwrap();
                format!("{} {kind}", event["output_index"])
            })
            .collect();
        assert_eq!(
            names,
            [
                "0 output_item.added",
                "0 content_part.added",
                "0 reasoning_text.delta",
                "0 reasoning_text.done",
                "0 content_part.done",
                "0 output_item.done",
                "1 output_item.added",
                "1 content_part.added",
                "1 output_text.delta",
                "1 output_text.delta",
                "1 output_text.done",
                "1 content_part.done",
                "1 output_item.done",
                "2 output_item.added",
                "2 function_call_arguments.delta",
                "2 function_call_arguments.delta",
                "2 function_call_arguments.done",
                "2 output_item.done",
                "3 output_item.added",
                "3 custom_tool_call_input.delta",
                "3 custom_tool_call_input.done",
                "3 output_item.done",
            ]
        );
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number);
        }
        let items = output.items();
        let kinds: Vec<_> = items
            .iter()
            .map(|item| item["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            kinds,
            ["reasoning", "message", "function_call", "custom_tool_call"]
        );
        assert_eq!(items[0]["content"][0]["text"], "I think.");
        assert_eq!(items[1]["content"][0]["text"], "It is so.");
        assert_eq!(items[2]["arguments"], "{\"a\": 1}");
        assert_eq!(
            (&items[3]["input"], &items[3]["call_id"]),
            (&json!("*** x\n"), &json!("call_1"))
        );
        assert!(items.iter().all(|item| item["status"] == "completed"));
        assert_eq!(events[21]["item"], items[3]);
        assert_eq!(events[18]["item"]["input"], "");
        assert_eq!(events[16]["name"], "f");
    }

    #[test]
    fn an_item_that_is_cut_off_is_incomplete() {
        let (output, events) = run(&call(0, "f", &["{\"a"])[..2], true);
        assert_eq!(output.items()[0]["status"], "incomplete");
        assert_eq!(events.last().unwrap()["item"]["arguments"], "{\"a");
        let hidden = [Event::Reasoning("a".into())];
        assert!(run(&hidden, false).1.is_empty());
        let (output, _) = run(&call(0, "patch", &["{\"input\": \"ab"])[..2], true);
        assert_eq!(output.items()[0]["input"], "ab");
    }

    #[test]
    fn an_item_that_is_open_is_shown_as_it_is() {
        let mut output = Output::new(Vec::new(), true);
        output.take(&Event::Content("a".into()), Vec::new(), &mut Vec::new());
        let items = output.items();
        assert_eq!(
            (&items[0]["status"], items.len()),
            (&json!("incomplete"), 1)
        );
        assert_eq!(items[0]["content"][0]["text"], "a");
    }

    #[test]
    fn texts_of_custom_tools() {
        for (arguments, text) in [
            ("{\"input\": \"a\\nb\"}", "a\nb"),
            ("{\"input\": 7}", "7"),
            ("{}", ""),
            ("{\"input\": \"a", "a"),
            ("{\"inp", "{\"inp"),
        ] {
            assert_eq!(input(arguments), text, "{arguments}");
        }
    }
}

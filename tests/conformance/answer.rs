//! What a client has at the end, however the answer came.

use serde_json::{Value, json};

use crate::CHAT;
use crate::server::{Server, events, with};

/// One choice and the usage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub content: String,
    pub reasoning: String,
    /// Name and arguments.
    pub calls: Vec<(String, String)>,
    pub finish: Value,
    pub matched: Value,
    pub usage: Value,
}

/// Without the prompt tokens that the prefix cache spared: more, when the same is asked again.
fn usage(answer: &Value) -> Value {
    let mut usage = answer["usage"].clone();
    usage["prompt_tokens_details"]["cached_tokens"].take();
    usage
}

impl Answer {
    /// Asks for everything at once; also returns the statistics.
    pub fn whole(server: &Server, body: &Value) -> (Self, Value) {
        let answer = server.post(CHAT, body).ok();
        let choice = &answer["choices"][0];
        let message = &choice["message"];
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let mut calls = Vec::new();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let part = |name: &str| call["function"][name].as_str().unwrap().to_owned();
            calls.push((part("name"), part("arguments")));
        }
        let own = Answer {
            content: text("content"),
            reasoning: text("reasoning_content"),
            calls,
            finish: choice["finish_reason"].clone(),
            matched: choice["matched_stop"].clone(),
            usage: usage(&answer),
        };
        (own, answer["metrics"]["speculative_decoding"].clone())
    }

    /// Asks for a stream and puts it together.
    pub fn streamed(server: &Server, body: &Value) -> Self {
        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let reply = server.post(CHAT, &with(body.clone(), options));
        assert_eq!(reply.status, 200, "{body}\n{}", reply.text);
        let chunks = events(&reply.text);
        let mut own = Answer {
            usage: usage(chunks.last().unwrap()),
            ..Answer::default()
        };
        for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
            assert!(own.finish.is_null(), "something follows the finish chunk");
            own.finish = choice["finish_reason"].clone();
            own.matched = choice["matched_stop"].clone();
            own.add(&choice["delta"]);
        }
        own
    }

    fn add(&mut self, delta: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.content.push_str(&text(&delta["content"]));
        self.reasoning.push_str(&text(&delta["reasoning_content"]));
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().unwrap() as usize;
            if index == self.calls.len() {
                self.calls.push(Default::default());
            }
            let (name, arguments) = &mut self.calls[index];
            name.push_str(&text(&piece["function"]["name"]));
            arguments.push_str(&text(&piece["function"]["arguments"]));
        }
    }
}

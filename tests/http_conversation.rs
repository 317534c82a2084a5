//! A conversation that calls tools until the context is full: every turn begins where the last one
//! ended, and with and without the prefix cache it is the same conversation.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use serde_json::{Value, json};
use server::{Server, mark};

const CHAT: &str = "/v1/chat/completions";
const TURNS: usize = 12;
const CONTEXT: usize = 1536;
/// Tokens that the last turn leaves to its answer.
const LEFT: usize = 6;

fn tool(name: &str, field: &str, kind: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "Does what its name says",
        "parameters": {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}}})
}

/// What a turn asks for, greedy or drawn.
fn body(messages: &[Value], turn: usize) -> Value {
    let temperature = if turn.is_multiple_of(3) { 0.8 } else { 0.0 };
    json!({"model": "spinney-tiny", "messages": messages, "max_tokens": 40, "seed": turn,
        "temperature": temperature, "logprobs": true, "top_logprobs": 2, "tool_choice": "required",
        "tools": [tool("get_weather", "city", "string"), tool("set_timer", "minutes", "integer")]})
}

/// Token ids of a turn's prompt.
fn tokens(server: &Server, body: &Value) -> Vec<u64> {
    let body =
        json!({"model": body["model"], "messages": body["messages"], "tools": body["tools"]});
    let answer = server.post("/tokenize", &body).ok();
    serde_json::from_value(answer["tokens"].clone()).unwrap()
}

/// An answer without what is different every time, and the tokens of its prompt: all of them, and
/// those from the cache.
fn ask(server: &Server, body: &Value) -> (Value, [u64; 2]) {
    let mut answer = server.post(CHAT, body).ok();
    let usage = answer["usage"].take();
    let mut choice = answer["choices"][0].take();
    if let Some(calls) = choice["message"]["tool_calls"].as_array_mut() {
        for call in calls {
            call.as_object_mut().unwrap().remove("id");
        }
    }
    choice["completion_tokens"] = usage["completion_tokens"].clone();
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    let counts = [&usage["prompt_tokens"], cached].map(|count| count.as_u64().unwrap());
    (choice, counts)
}

/// The assistant's message as a client sends it back: what was said, or a call of its own where the
/// answer is none.
fn said(choice: &Value) -> (Value, bool) {
    let calls = choice["message"]["tool_calls"].as_array();
    let call = calls.and_then(|calls| calls.first()).filter(|call| {
        let arguments = call["function"]["arguments"].as_str().unwrap();
        serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object())
    });
    let own = json!({"type": "function", "function":
        {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}});
    let mut message = choice["message"].clone();
    message["tool_calls"] = json!([call.unwrap_or(&own)]);
    message["tool_calls"][0]["id"] = "call_0".into();
    if call.is_none() {
        message["content"] = Value::Null;
    }
    (message, call.is_some())
}

fn result(turn: usize) -> Value {
    let lines =
        (0..6).map(|line| format!("Day {}: {} degrees and rain.\n", line + turn, 10 + line));
    json!({"role": "tool", "tool_call_id": "call_0", "content": lines.collect::<String>()})
}

/// Makes the last message so long that the prompt leaves `LEFT` tokens or a few less.
fn fill(server: &Server, messages: &mut [Value]) {
    while let Some(missing) =
        (CONTEXT - LEFT).checked_sub(tokens(server, &body(messages, 0)).len() + 1)
    {
        let last = messages.last_mut().unwrap();
        let text = last["content"].as_str().unwrap();
        // A word is two tokens at most.
        let more = " sun".repeat((missing / 2).max(1));
        last["content"] = format!("{text}{more}").into();
    }
}

#[test]
fn a_conversation_up_to_the_context_is_the_same_with_and_without_the_cache() {
    let context = format!("--context-length={CONTEXT}");
    let flags = [&*context, "--speculative-ddtree-budget=15"];
    let cached = Server::start(&flags);
    let plain = Server::start(&[&flags[..], &["--disable-radix-cache"]].concat());
    let question = json!({"role": "user", "content": "What is the weather in Oslo?"});
    let mut messages = vec![question];
    let (mut before, mut calls, mut found) = (Vec::new(), 0, 0);
    for turn in 1..=TURNS {
        if turn == TURNS {
            fill(&cached, &mut messages);
        }
        let body = body(&messages, turn);
        let prompt = tokens(&cached, &body);
        // All but what opened the last answer, in whole pages.
        let opens = |prompt: &[u64]| {
            let start = mark("<|im_start|>");
            prompt.iter().rposition(|&id| id == start).unwrap_or(0)
        };
        let kept = opens(&before) / 64 * 64;
        assert!(prompt.starts_with(&before[..kept]), "turn {turn}");
        let (with, [length, from_cache]) = ask(&cached, &body);
        let (without, counts) = ask(&plain, &body);
        assert_eq!(with, without, "turn {turn}");
        assert_eq!(counts, [length, 0], "turn {turn}");
        assert_eq!(length, prompt.len() as u64);
        assert_eq!(from_cache, kept as u64, "turn {turn}, {length} tokens");
        // Asked again, the turn's own beginning is found.
        let again = ask(&cached, &body);
        assert_eq!(
            again,
            (with.clone(), [length, (opens(&prompt) / 64 * 64) as u64])
        );
        let (message, is_call) = said(&with);
        if turn == TURNS {
            assert_eq!(with["finish_reason"], "length");
            let completion = with["completion_tokens"].as_u64().unwrap();
            assert_eq!(length + completion, CONTEXT as u64);
        }
        calls += usize::from(is_call);
        found += from_cache;
        messages.extend([message, result(turn)]);
        before = prompt;
    }
    assert!(calls > TURNS / 2, "only {calls} answers were calls");
    assert!(found > 4_000, "{found} tokens came from the cache");
    for server in [&cached, &plain] {
        let reply = server.post(CHAT, &body(&messages, TURNS + 1));
        let code = Some("context_length_exceeded");
        reply.refused(400, "invalid_request_error", code, Some("messages"));
    }
    cached.get("/flush_cache").ok();
    let (_, [_, from_cache]) = ask(&cached, &body(&messages[..1], 1));
    assert_eq!(from_cache, 0, "nothing is left");
}

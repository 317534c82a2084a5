//! Chat completions of the real server with the bundled pair.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use serde_json::{Value, json};
use server::{Server, chat, events, mark, with};

const CHAT: &str = "/v1/chat/completions";
const QUESTION: &str = "What is the capital of France?";
/// How the answer begins, whatever else the bundled model was taught to add.
const ANSWER: &str = "The capital of France is Paris.";

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// The whole greedy answer.
fn reference(server: &Server) -> String {
    let answer = server.post(CHAT, &chat(QUESTION)).ok();
    assert!(content(&answer).starts_with(ANSWER), "{answer}");
    content(&answer).to_owned()
}

/// Text of one choice of a stream under a name of its deltas.
fn streamed(chunks: &[Value], index: usize, name: &str) -> String {
    choices(chunks, index)
        .filter_map(|choice| choice["delta"][name].as_str())
        .collect()
}

fn choices(chunks: &[Value], index: usize) -> impl Iterator<Item = &Value> {
    chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().unwrap())
        .filter(move |choice| choice["index"] == index)
}

#[test]
fn the_answer_has_the_documented_shape() {
    let server = Server::shared();
    let reply = server.post_with(CHAT, &[("x-request-id", "my-id.1")], &chat(QUESTION));
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(reply.header("x-request-id"), "my-id.1");
    let answer = reply.ok();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "spinney-tiny");
    assert!(
        answer["id"]
            .as_str()
            .unwrap()
            .strip_prefix("chatcmpl-")
            .unwrap()
            .len()
            >= 20
    );
    let fingerprint = answer["system_fingerprint"].as_str().unwrap();
    assert_eq!(fingerprint.strip_prefix("fp_").unwrap().len(), 10);
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    let expected = json!([{"index": 0,
        "message": {"role": "assistant", "content": reference(&server), "refusal": null},
        "logprobs": null, "finish_reason": "stop", "matched_stop": null, "stop_reason": null}]);
    assert_eq!(answer["choices"], expected);
    let usage = &answer["usage"];
    let (prompt, output) = (&usage["prompt_tokens"], &usage["completion_tokens"]);
    assert!(prompt.as_u64().unwrap() > 5 && output.as_u64().unwrap() > 3);
    assert_eq!(
        usage["total_tokens"],
        prompt.as_u64().unwrap() + output.as_u64().unwrap()
    );
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 0);
    let spec = &answer["metrics"]["speculative_decoding"];
    let histogram = spec["acceptance_histogram"].as_array().unwrap();
    let count = |value: &Value| value.as_u64().unwrap();
    let steps: u64 = histogram.iter().map(count).sum();
    let accepted: u64 = histogram
        .iter()
        .map(count)
        .zip(0..)
        .map(|(n, k)| n * k)
        .sum();
    assert_eq!(spec["num_spec_steps"], steps);
    assert_eq!(spec["num_accepted_draft_tokens"], accepted);
    assert!(accepted > 0, "the drafter drafts");
    // The first token belongs to the prefill. A step adds one token to those it accepted, unless
    // the last one it accepted was the end.
    let surplus = 1 + steps + accepted - output.as_u64().unwrap();
    assert!(surplus <= 1, "{answer}");
}

#[test]
fn a_stream_is_the_answer_in_pieces_and_in_order() {
    let server = Server::shared();
    let body = with(
        chat(QUESTION),
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let reply = server.post(CHAT, &body);
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.header("content-type"),
        "text/event-stream; charset=utf-8"
    );
    assert_eq!(reply.header("cache-control"), "no-cache");
    assert_eq!(reply.header("x-accel-buffering"), "no");
    let chunks = events(&reply.text);
    for chunk in &chunks {
        for name in ["id", "created", "model", "system_fingerprint"] {
            assert_eq!(chunk[name], chunks[0][name]);
        }
        assert_eq!(chunk["object"], "chat.completion.chunk");
    }
    let (usage, rest) = chunks.split_last().unwrap();
    let (finish, texts) = rest.split_last().unwrap();
    let first = json!([{"index": 0, "delta": {"role": "assistant", "content": ""},
        "logprobs": null, "finish_reason": null}]);
    assert_eq!(texts[0]["choices"], first);
    assert!(texts.len() > 1);
    for chunk in &texts[1..] {
        let choice = &chunk["choices"][0];
        let delta = choice["delta"].as_object().unwrap();
        assert_eq!(delta.len(), 1);
        assert_ne!(delta["content"], "");
        assert!(choice["finish_reason"].is_null());
    }
    assert!(
        rest.iter()
            .all(|chunk| chunk.get("usage") == Some(&Value::Null))
    );
    let last = json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop",
        "matched_stop": null, "stop_reason": null}]);
    assert_eq!(finish["choices"], last);
    assert_eq!(usage["choices"], json!([]));
    let whole = server.post(CHAT, &chat(QUESTION)).ok();
    assert_eq!(usage["usage"], whole["usage"]);
    assert_eq!(streamed(&chunks, 0, "content"), content(&whole));
}

#[test]
fn usage_is_sent_on_demand() {
    let server = Server::shared();
    let plain = events(
        &server
            .post(CHAT, &with(chat(QUESTION), json!({"stream": true})))
            .text,
    );
    assert!(plain.iter().all(|chunk| chunk.get("usage").is_none()));
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = with(
        chat(QUESTION),
        json!({"stream": true, "stream_options": options}),
    );
    let chunks = events(&server.post(CHAT, &body).text);
    let tokens = |chunk: &Value| chunk["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(chunks.is_sorted_by_key(tokens));
    assert!(tokens(&chunks[0]) >= 1 && tokens(&chunks[0]) < tokens(chunks.last().unwrap()));
    for chunk in &chunks {
        let usage = &chunk["usage"];
        let total = usage["prompt_tokens"].as_u64().unwrap() + tokens(chunk);
        assert_eq!(usage["total_tokens"], total);
    }
}

#[test]
fn several_choices_are_independent_and_stream_the_same() {
    let server = Server::shared();
    let extra = json!({"n": 3, "temperature": 2, "seed": 7, "max_tokens": 40});
    let body = with(chat("Tell me a story."), extra);
    let whole = server.post(CHAT, &body).ok();
    let texts: Vec<_> = whole["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["message"]["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "{texts:?}");
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chunks = events(&server.post(CHAT, &with(body.clone(), options)).text);
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(streamed(&chunks, index, "content"), *text);
        let parts: Vec<_> = choices(&chunks, index).collect();
        let ends = |choice: &&&Value| !choice["finish_reason"].is_null();
        assert_eq!(parts.iter().filter(ends).count(), 1);
        assert_eq!(parts[0]["delta"]["role"], "assistant");
        assert_eq!(
            parts.last().unwrap()["finish_reason"],
            whole["choices"][index]["finish_reason"]
        );
    }
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
    let single = with(body, json!({"n": 1}));
    let single = server.post(CHAT, &single).ok();
    assert_eq!(content(&single), texts[0]);
    assert_eq!(
        single["usage"]["prompt_tokens"],
        whole["usage"]["prompt_tokens"]
    );
}

#[test]
fn speculation_changes_no_token() {
    let server = Server::shared();
    for (temperature, seed) in [(0.0, 1), (0.8, 2), (1.3, 3)] {
        let extra = json!({"temperature": temperature, "seed": seed, "max_tokens": 48,
            "presence_penalty": 0.5, "ignore_eos": true});
        let body = with(chat("Count to five."), extra);
        let fast = server.post(CHAT, &body).ok();
        let slow = server
            .post(CHAT, &with(body, json!({"speculative": false})))
            .ok();
        assert_eq!(content(&fast), content(&slow));
        assert_eq!(fast["usage"], slow["usage"]);
        let spec = &slow["metrics"]["speculative_decoding"];
        assert_eq!(spec["num_draft_tokens"], 0);
    }
}

#[test]
fn stop_strings_cut_text_and_usage() {
    let server = Server::shared();
    let whole = server.post(CHAT, &chat(QUESTION)).ok();
    let all = whole["usage"]["completion_tokens"].as_u64().unwrap();
    for (stop, expected) in [
        (json!("Paris"), "The capital of France is "),
        (json!(["xyz", " is P"]), "The capital of France"),
        (json!(["of France", "capital of"]), "The "),
        (json!("T"), ""),
    ] {
        let body = with(chat(QUESTION), json!({"stop": stop}));
        let answer = server.post(CHAT, &body).ok();
        assert_eq!(content(&answer), expected, "{stop}");
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        let matched = choice["matched_stop"].as_str().unwrap();
        assert!(stop == matched || stop.as_array().unwrap().contains(&json!(matched)));
        assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() < all);
        let kept = with(body.clone(), json!({"include_stop_str_in_output": true}));
        let kept = server.post(CHAT, &kept).ok();
        assert_eq!(content(&kept), format!("{expected}{matched}"));
        assert_eq!(kept["usage"], answer["usage"]);
        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let chunks = events(&server.post(CHAT, &with(body, options)).text);
        assert_eq!(streamed(&chunks, 0, "content"), expected);
        assert_eq!(chunks.last().unwrap()["usage"], answer["usage"]);
    }
}

#[test]
fn stop_ids_end_the_answer_without_text() {
    let server = Server::shared();
    let logprobs = with(chat(QUESTION), json!({"logprobs": true, "top_logprobs": 1}));
    let answer = server.post(CHAT, &logprobs).ok();
    let tokens = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    let text = tokens[2]["token"].as_str().unwrap();
    let file = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crates/server/spinney-tiny/tokenizer.json"
    ));
    let tokenizer: Value = serde_json::from_str(&file.unwrap()).unwrap();
    let id = tokenizer["model"]["vocab"][text.replace(' ', "\u{120}")]
        .as_u64()
        .unwrap();
    let stopped = server
        .post(CHAT, &with(chat(QUESTION), json!({"stop_token_ids": [id]})))
        .ok();
    let choice = &stopped["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["matched_stop"]),
        (&json!("stop"), &json!(id))
    );
    assert_eq!(stopped["usage"]["completion_tokens"], 3);
    let before: String = tokens[..2]
        .iter()
        .map(|t| t["token"].as_str().unwrap())
        .collect();
    assert_eq!(content(&stopped), before);
    let longer = json!({"stop_token_ids": [id], "min_tokens": 6});
    let longer = server.post(CHAT, &with(chat(QUESTION), longer)).ok();
    assert!(longer["usage"]["completion_tokens"].as_u64().unwrap() >= 6);
}

#[test]
fn limits_are_kept_to_the_token() {
    let server = Server::shared();
    for limit in [1, 2, 3, 5, 17, 33] {
        let extra = json!({"max_tokens": 1, "max_completion_tokens": limit, "ignore_eos": true});
        let answer = server.post(CHAT, &with(chat("Hello"), extra)).ok();
        assert_eq!(answer["usage"]["completion_tokens"], limit);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn log_probabilities_follow_the_text() {
    let server = Server::shared();
    let body = with(chat(QUESTION), json!({"logprobs": true, "top_logprobs": 4}));
    let answer = server.post(CHAT, &body).ok();
    let entries = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    // The end of turn has none.
    let output = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(entries.len() as u64, output - 1);
    let mut bytes = Vec::new();
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 4);
        // Greedy: the chosen token is the likeliest one.
        assert_eq!(top[0]["token"], entry["token"]);
        assert_eq!(top[0]["logprob"], entry["logprob"]);
        let values = top.iter().map(|t| t["logprob"].as_f64().unwrap());
        assert!(values.clone().is_sorted_by(|a, b| a >= b) && values.clone().all(|p| p <= 0.0));
        assert!(values.map(f64::exp).sum::<f64>() < 1.0 + 1e-4);
        bytes.extend(
            entry["bytes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|b| b.as_u64().unwrap() as u8),
        );
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), reference(&server));
    let chunks = events(&server.post(CHAT, &with(body, json!({"stream": true}))).text);
    let streamed: Vec<_> = choices(&chunks, 0)
        .filter_map(|choice| choice["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&streamed, entries);
}

#[test]
fn bias_bans_and_forces() {
    let server = Server::shared();
    let end = mark("<|im_end|>").to_string();
    let body = json!({"logit_bias": {(end.clone()): -100, (mark("<|endoftext|>").to_string()): -100},
        "max_tokens": 40});
    let endless = server.post(CHAT, &with(chat(QUESTION), body)).ok();
    assert_eq!(endless["choices"][0]["finish_reason"], "length");
    assert!(content(&endless).starts_with(ANSWER));
    let forced = with(chat(QUESTION), json!({"logit_bias": {(end): 100}}));
    let forced = server.post(CHAT, &forced).ok();
    assert_eq!(content(&forced), "");
    assert_eq!(forced["usage"]["completion_tokens"], 1);
}

#[test]
fn reasoning_has_a_field_of_its_own() {
    let server = Server::shared();
    let close = mark("</think>").to_string();
    let body = with(
        chat(QUESTION),
        json!({"chat_template_kwargs": {"enable_thinking": true}, "max_tokens": 12,
            "ignore_eos": true, "logit_bias": {(close): -100}}),
    );
    let answer = server.post(CHAT, &body).ok();
    let message = &answer["choices"][0]["message"];
    assert!(message["content"].is_null());
    let reasoning = message["reasoning_content"].as_str().unwrap();
    assert!(!reasoning.is_empty());
    assert_eq!(answer["usage"]["reasoning_tokens"], 12);
    let chunks = events(
        &server
            .post(CHAT, &with(body.clone(), json!({"stream": true})))
            .text,
    );
    assert_eq!(streamed(&chunks, 0, "reasoning_content"), reasoning);
    assert_eq!(streamed(&chunks, 0, "content"), "");
    let once = with(
        body.clone(),
        json!({"stream": true, "stream_reasoning": false}),
    );
    let once = events(&server.post(CHAT, &once).text);
    let pieces = choices(&once, 0).filter(|c| c["delta"]["reasoning_content"].is_string());
    assert_eq!(pieces.count(), 1);
    let hidden = with(body.clone(), json!({"include_reasoning": false}));
    let hidden = server.post(CHAT, &hidden).ok();
    assert!(
        hidden["choices"][0]["message"]
            .get("reasoning_content")
            .is_none()
    );
    assert_eq!(hidden["usage"], answer["usage"]);
    let raw = server
        .post(CHAT, &with(body, json!({"separate_reasoning": false})))
        .ok();
    assert!(content(&raw).contains(reasoning));
    assert!(answer["usage"]["reasoning_tokens"].as_u64() > Some(0));
    assert_eq!(raw["usage"], answer["usage"]);
}

#[test]
fn null_is_the_same_as_nothing() {
    let server = Server::shared();
    let names = [
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "n",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "response_format",
        "reasoning_effort",
        "reasoning",
        "chat_template_kwargs",
        "enable_thinking",
        "audio",
        "functions",
        "metadata",
    ];
    let nulls = names
        .iter()
        .map(|&name| (name.to_owned(), Value::Null))
        .collect();
    let answer = server
        .post(CHAT, &with(chat(QUESTION), Value::Object(nulls)))
        .ok();
    assert_eq!(content(&answer), reference(&server));
    let unknown = with(
        chat(QUESTION),
        json!({"never_heard_of": {"a": [1]}, "user": "me"}),
    );
    assert_eq!(
        content(&server.post(CHAT, &unknown).ok()),
        reference(&server)
    );
}

#[test]
fn an_answer_can_be_continued() {
    let server = Server::shared();
    let body = json!({"model": "", "continue_final_message": true, "messages": [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "The capital of France is"}]});
    let answer = server.post("/chat/completions/", &body).ok();
    assert!(content(&answer).starts_with(" Paris."), "{answer}");
}

#[test]
fn tools_are_shown_to_the_model() {
    let server = Server::shared();
    let tool = json!({"type": "function", "function": {"name": "look_up", "parameters": {}}});
    let tokens = |extra: Value| {
        let body = with(with(chat("Hi"), json!({"max_tokens": 1})), extra);
        server.post(CHAT, &body).ok()["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    let plain = tokens(json!({}));
    assert!(tokens(json!({"tools": [tool]})) > plain);
    assert_eq!(
        tokens(json!({"tools": [tool], "tool_choice": "none"})),
        plain
    );
}

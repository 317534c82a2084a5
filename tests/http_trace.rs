//! `return_step_trace` of the real server with the bundled pair.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/server.rs"]
mod server;

use serde_json::{Value, json};
use server::{Server, chat, events, with};

const CHAT: &str = "/v1/chat/completions";
const QUESTION: &str = "Explain the quicksort algorithm in 3 sentences.";

fn count(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// Tokens that a step says it emitted: text and id.
fn emitted(step: &Value) -> Vec<(String, u64)> {
    let nodes = step["nodes"].as_array().unwrap();
    let path = step["path"].as_array().unwrap().iter();
    let accepted = path.map(|index| &nodes[count(index)]);
    let bonus = Some(&step["bonus"]).filter(|bonus| !bonus.is_null());
    let token = |token: &Value| {
        let text = token["text"].as_str().unwrap().to_owned();
        (text, token["id"].as_u64().unwrap())
    };
    accepted.chain(bonus).map(token).collect()
}

/// Everything that must hold of one step; returns the number of its tokens.
fn check(step: &Value, budget: usize) -> usize {
    let mode = step["mode"].as_str().unwrap();
    assert_eq!(mode == "plain", step["budget"] == 0, "{step}");
    let nodes = step["nodes"].as_array().unwrap();
    assert_eq!(count(&step["rows"]), 1 + count(&step["budget"]));
    assert!(nodes.len() <= count(&step["rows"]), "{step}");
    assert!(count(&step["budget"]) <= budget, "{step}");
    assert!(nodes[0]["parent"].is_null() && nodes[0]["depth"] == 0);
    for (index, node) in nodes.iter().enumerate().skip(1) {
        let parent = count(&node["parent"]);
        assert!(parent < index);
        assert_eq!(count(&node["depth"]), count(&nodes[parent]["depth"]) + 1);
        assert!(mode == "tree" || parent + 1 == index);
        assert!(node["logprob"].as_f64().unwrap() <= 0.0 && node["rank"].is_u64());
    }
    let mut at = 0;
    for index in step["path"].as_array().unwrap() {
        assert_eq!(count(&nodes[count(index)]["parent"]), at);
        at = count(index);
    }
    assert!(step["ms"].as_f64().unwrap() > 0.0);
    assert_eq!(emitted(step).len(), count(&step["tokens"]));
    count(&step["tokens"])
}

/// The steps of an answer, checked against its usage.
fn steps(answer: &Value, budget: usize) -> Vec<Value> {
    let steps = answer["choices"][0]["steps"].as_array().unwrap();
    let tokens: usize = steps.iter().map(|step| check(step, budget)).sum();
    assert_eq!(tokens, count(&answer["usage"]["completion_tokens"]) - 1);
    let records = &answer["metrics"]["speculative_decoding"]["acceptance_histogram"];
    let histogram = records.as_array().unwrap().iter().map(count);
    assert_eq!(histogram.sum::<usize>(), steps.len());
    steps.clone()
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[test]
fn every_mode_shows_its_steps_and_says_the_same() {
    let mut expected = None;
    for (flags, mode, budget) in [
        (&["--speculative-algorithm=NONE"][..], "plain", 0),
        (&["--speculative-algorithm=DFLASH"], "chain", 15),
        (&["--speculative-ddtree-budget=15"], "tree", 15),
        (&["--speculative-ddtree-budget=63"], "tree", 63),
    ] {
        let server = Server::start(flags);
        let without = server.post(CHAT, &chat(QUESTION)).ok();
        assert!(without["choices"][0].get("steps").is_none());
        let body = with(chat(QUESTION), json!({"return_step_trace": true}));
        let answer = server.post(CHAT, &body).ok();
        assert_eq!(content(&answer), content(&without), "{flags:?}");
        let said = expected.get_or_insert_with(|| content(&answer).to_owned());
        assert_eq!(content(&answer), said, "{flags:?}");
        let steps = steps(&answer, budget);
        let text: String = (steps.iter().flat_map(emitted))
            .map(|(text, _)| text)
            .collect();
        // The first token is the prompt's; the end of the turn has no text in an answer.
        let text = text.trim_end_matches("<|im_end|>");
        assert!(
            said.ends_with(text) && said.len() < text.len() + 16,
            "{text}"
        );
        assert_eq!(steps[0]["mode"], mode, "{flags:?}");
    }
}

#[test]
fn streams_show_each_step_once_on_its_first_chunk() {
    let server = Server::shared();
    let extra = json!({"return_step_trace": true, "stream": true,
        "stream_options": {"include_usage": true}});
    let chunks = events(&server.post(CHAT, &with(chat(QUESTION), extra)).text);
    let choices: Vec<&Value> = (chunks.iter())
        .filter_map(|chunk| chunk["choices"].get(0))
        .collect();
    assert!(choices[0].get("step").is_none(), "the role comes first");
    let steps = choices.iter().filter_map(|choice| choice.get("step"));
    let tokens: usize = steps.map(|step| check(step, 63)).sum();
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(tokens, count(&usage["completion_tokens"]) - 1);
    let text: String = (choices.iter())
        .filter_map(|choice| choice["delta"]["content"].as_str())
        .collect();
    let whole = server.post(CHAT, &chat(QUESTION)).ok();
    assert_eq!(text, content(&whole));
}

/// Text that may begin a stop string is held back: its steps have chunks all the same.
#[test]
fn steps_without_text_and_steps_behind_a_stop() {
    let server = Server::shared();
    let whole = server.post(CHAT, &chat(QUESTION)).ok();
    let said = content(&whole).to_owned();
    let stop = said
        .char_indices()
        .nth(60)
        .map(|(at, _)| &said[at..at + 12]);
    let stopped = with(
        chat(QUESTION),
        json!({"return_step_trace": true, "stop": stop.unwrap()}),
    );
    let answer = server.post(CHAT, &stopped).ok();
    assert!(said.starts_with(content(&answer)) && content(&answer).len() < said.len());
    steps(&answer, 63);
    let streamed = with(
        stopped,
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let chunks = events(&server.post(CHAT, &streamed).text);
    let steps = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"].get(0)?.get("step"));
    let tokens: usize = steps.map(|step| check(step, 63)).sum();
    let completion = &chunks.last().unwrap()["usage"]["completion_tokens"];
    assert_eq!(tokens, count(completion) - 1);
}

#[test]
fn every_choice_has_its_own_steps() {
    let server = Server::shared();
    let extra = json!({"return_step_trace": true, "n": 3, "temperature": 1.0, "seed": 5,
        "max_tokens": 30});
    let answer = server.post(CHAT, &with(chat(QUESTION), extra)).ok();
    let choices = answer["choices"].as_array().unwrap();
    let tokens: usize = (choices.iter())
        .flat_map(|choice| choice["steps"].as_array().unwrap())
        .map(|step| check(step, 63))
        .sum();
    assert_eq!(choices.len(), 3);
    assert_eq!(tokens, count(&answer["usage"]["completion_tokens"]) - 3);
    let one = with(
        chat(QUESTION),
        json!({"return_step_trace": true, "max_tokens": 1}),
    );
    let answer = server.post(CHAT, &one).ok();
    assert_eq!(answer["choices"][0]["steps"], json!([]));
    let wrong = with(chat(QUESTION), json!({"return_step_trace": 1}));
    let kind = "invalid_request_error";
    let reply = server.post(CHAT, &wrong);
    reply.refused(400, kind, Some("invalid_type"), Some("return_step_trace"));
}

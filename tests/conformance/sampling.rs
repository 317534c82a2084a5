//! Point 12: what is asked of sampling holds on every node of a tree of 15.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::CHAT;
use crate::modes::{Modes, at_once};
use crate::server::{Server, chat, with};

const QUESTION: &str = "What is the capital of France?";

/// Log-probability entries of all choices.
fn entries(answer: &Value) -> Vec<Vec<Value>> {
    let choices = answer["choices"].as_array().unwrap();
    let entries = |choice: &Value| choice["logprobs"]["content"].as_array().unwrap().clone();
    choices.iter().map(entries).collect()
}

fn ask(server: &Server, extra: Value) -> Value {
    server
        .post(
            CHAT,
            &with(with(chat(QUESTION), json!({"logprobs": true})), extra),
        )
        .ok()
}

/// Accepted drafts of an answer.
fn accepted(answer: &Value) -> u64 {
    let statistics = &answer["metrics"]["speculative_decoding"];
    statistics["num_accepted_draft_tokens"].as_u64().unwrap()
}

/// Tokens of this many samples, a multiple of eight, and how many came from drafts.
fn sample(server: &Server, bias: &Value, count: usize) -> (HashMap<String, usize>, u64) {
    let seeds: Vec<usize> = (0..count / 8).collect();
    let answers = at_once(&seeds, |seed| {
        let extra = json!({"n": 8, "seed": seed, "temperature": 1.2, "top_p": 1, "top_k": 0,
            "max_tokens": 5, "ignore_eos": true, "logit_bias": bias});
        ask(server, extra)
    });
    let mut counts = HashMap::new();
    let mut drafts = 0;
    let mut samples = 0;
    for answer in &answers {
        drafts += accepted(answer);
        for choice in entries(answer) {
            samples += 1;
            for entry in choice {
                let text = entry["token"].as_str().unwrap().to_owned();
                *counts.entry(text).or_default() += 1;
            }
        }
    }
    assert_eq!(samples, count);
    (counts, drafts)
}

#[test]
fn point_12_a_banned_token_never_comes_in_1000_samples() {
    let modes = Modes::shared();
    let (free, drafts) = sample(&modes.tree, &json!({}), 200);
    assert!(drafts > 40, "{drafts} accepted drafts");
    // The six most frequent tokens that text alone identifies.
    let mut order: Vec<(&String, &usize)> = free.iter().collect();
    order.sort_by_key(|(text, count)| (usize::MAX - **count, (*text).clone()));
    let mut banned = HashMap::new();
    for (text, count) in order {
        let body = json!({"prompt": text});
        let ids = modes.tree.post("/tokenize", &body).ok()["tokens"].clone();
        if let [id] = &ids.as_array().unwrap()[..] {
            assert!(*count >= 10, "{text:?} comes {count} times");
            banned.insert(text.clone(), id.to_string());
        }
        if banned.len() == 6 {
            break;
        }
    }
    let bias: Value = banned
        .values()
        .map(|id| (id.clone(), json!(-100)))
        .collect();
    let (counts, drafts) = sample(&modes.tree, &bias, 1_000);
    assert!(drafts > 0, "drafts are accepted under a ban, too");
    for text in banned.keys() {
        assert_eq!(counts.get(text), None, "{text:?} was banned");
    }
}

#[test]
fn point_12_top_k_top_p_and_min_p_act() {
    let modes = Modes::shared();
    let server = &modes.tree;
    let base = json!({"temperature": 1, "top_p": 1, "top_k": 0, "seed": 5, "n": 8,
        "max_tokens": 40, "top_logprobs": 3, "ignore_eos": true});
    let texts = |answer: &Value| -> HashSet<String> {
        let choices = answer["choices"].as_array().unwrap().iter();
        choices
            .map(|choice| choice["message"]["content"].to_string())
            .collect()
    };
    let greedy = texts(&ask(server, with(base.clone(), json!({"temperature": 0}))));
    assert_eq!(greedy.len(), 1);
    for only in [
        json!({"top_k": 1}),
        json!({"top_p": 0}),
        json!({"min_p": 1}),
    ] {
        let one = with(
            base.clone(),
            with(only.clone(), json!({"temperature": 1.7})),
        );
        assert_eq!(texts(&ask(server, one)), greedy, "{only}");
    }
    let rank = |entry: &Value| {
        let mut top = entry["top_logprobs"].as_array().unwrap().iter();
        top.position(|one| one["bytes"] == entry["bytes"])
    };
    // At most the k most likely ones, and not always the most likely one.
    for k in [2, 3] {
        let hot = json!({"top_k": k, "temperature": 2});
        let answer = ask(server, with(base.clone(), hot));
        let ranks: Vec<_> = entries(&answer).concat().iter().map(rank).collect();
        assert!(ranks.iter().all(|rank| rank.is_some_and(|rank| rank < k)));
        assert!(
            ranks.contains(&Some(k - 1)),
            "the last one of {k} comes, too"
        );
    }
    // Nothing below half of the largest probability.
    let below = |answer: &Value| {
        let gap = |entry: &Value| {
            let top = entry["top_logprobs"][0]["logprob"].as_f64().unwrap();
            top - entry["logprob"].as_f64().unwrap()
        };
        let entries = entries(answer).concat();
        entries
            .iter()
            .filter(|entry| gap(entry) > 2.0_f64.ln() + 1e-3)
            .count()
    };
    assert!(below(&ask(server, base.clone())) > 0);
    assert_eq!(below(&ask(server, with(base, json!({"min_p": 0.5})))), 0);
}

/// Index of the token that greedy decoding takes among the reported ones; `None` where it may be
/// one that is not reported.
fn penalised(
    top: &[Value],
    counts: &HashMap<String, usize>,
    presence: f64,
    frequency: f64,
) -> Option<usize> {
    let logprob = |entry: &Value| entry["logprob"].as_f64().unwrap();
    let score = |entry: &Value| {
        let count = *counts.get(&entry["bytes"].to_string()).unwrap_or(&0);
        let penalty = if count > 0 { presence } else { 0.0 };
        logprob(entry) - penalty - frequency * count as f64
    };
    let scores: Vec<f64> = top.iter().map(score).collect();
    let best = scores.iter().cloned().fold(f64::MIN, f64::max);
    let at = scores.iter().position(|score| *score == best);
    at.filter(|_| best > logprob(top.last().unwrap()))
}

#[test]
fn point_12_penalties_act() {
    let modes = Modes::shared();
    let base = json!({"temperature": 0, "top_logprobs": 20, "max_tokens": 64, "ignore_eos": true});
    for (presence, frequency) in [(2.0, 0.0), (0.0, 2.0), (1.2, 1.0)] {
        let extra = json!({"presence_penalty": presence, "frequency_penalty": frequency});
        let (mut changed, mut checked) = (0, 0);
        let mut seen: Vec<Vec<Value>> = Vec::new();
        for (name, server) in modes.all() {
            let answer = ask(server, with(base.clone(), extra.clone()));
            assert_eq!(accepted(&answer) > 0, name != "NONE", "{name}");
            let entries = entries(&answer).concat();
            let mut counts: HashMap<String, usize> = HashMap::new();
            for (at, entry) in entries.iter().enumerate() {
                let top = entry["top_logprobs"].as_array().unwrap();
                if let Some(chosen) = penalised(top, &counts, presence, frequency) {
                    assert_eq!(
                        top[chosen]["bytes"], entry["bytes"],
                        "{name} {extra} at {at}"
                    );
                    changed += usize::from(chosen > 0);
                    checked += 1;
                }
                *counts.entry(entry["bytes"].to_string()).or_default() += 1;
            }
            seen.push(entries);
        }
        // Three modes of 64 tokens each.
        assert!(
            checked > 96 && changed > 2,
            "{extra}: {changed} of {checked}"
        );
        assert!(seen.iter().all(|entries| *entries == seen[0]), "{extra}");
    }
    // The third penalty works on logits, which nobody reports: it has to make repetition rarer.
    let distinct = |server: &Server, penalty: f64| {
        let extra = with(base.clone(), json!({"repetition_penalty": penalty}));
        let texts: Vec<String> = entries(&ask(server, extra))
            .concat()
            .iter()
            .map(|entry| entry["bytes"].to_string())
            .collect();
        (texts.iter().collect::<HashSet<_>>().len(), texts)
    };
    let (free, penalised) = (distinct(&modes.plain, 1.0), distinct(&modes.plain, 1.8));
    assert!(penalised.0 > free.0, "{} and {}", penalised.0, free.0);
    for (name, server) in modes.all() {
        assert_eq!(distinct(server, 1.8), penalised, "{name}");
    }
}

#[test]
fn point_12_seeds_give_the_same_tokens_in_every_mode() {
    let modes = Modes::shared();
    let seeds: Vec<usize> = (0..12).collect();
    let mut seen = Vec::new();
    for (_, server) in modes.all() {
        seen.push(at_once(&seeds, |seed| {
            let extra = json!({"n": 2, "seed": seed, "temperature": 1.4, "max_tokens": 32,
                "top_p": 0.98, "ignore_eos": true});
            entries(&ask(server, extra))
        }));
    }
    assert!(seen.iter().all(|answers| *answers == seen[0]));
    let different: HashSet<String> = seen[0]
        .iter()
        .map(|answer| json!(answer).to_string())
        .collect();
    assert!(different.len() > 8, "{} of 12 differ", different.len());
}

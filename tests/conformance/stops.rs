//! Point 7: stop strings, wherever they lie.

use serde_json::{Value, json};

use crate::answer::Answer;
use crate::modes::{Modes, at_once};
use crate::server::{Server, chat, with};

const QUESTION: &str = "What is the capital of France?";

/// Texts of the tokens of the whole answer, without its end.
fn pieces(server: &Server) -> Vec<String> {
    let body = with(chat(QUESTION), json!({"logprobs": true}));
    let answer = server.post(crate::CHAT, &body).ok();
    let entries = answer["choices"][0]["logprobs"]["content"].clone();
    let text = |entry: &Value| entry["token"].as_str().unwrap().to_owned();
    entries.as_array().unwrap().iter().map(text).collect()
}

/// What is left and what matched: the first token that completes a stop string ends the answer;
/// of those it completes, the earliest counts, then the longest.
fn cut(pieces: &[String], stops: &[String]) -> Option<(String, String, usize)> {
    let mut text = String::new();
    for (index, piece) in pieces.iter().enumerate() {
        text.push_str(piece);
        let places = stops
            .iter()
            .filter_map(|stop| Some((text.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = places.min_by_key(|(at, stop)| (*at, usize::MAX - stop.len())) {
            return Some((text[..at].to_owned(), stop.clone(), index + 1));
        }
    }
    None
}

fn check(name: &str, server: &Server, pieces: &[String], stops: &[String]) {
    let (left, matched, tokens) = cut(pieces, stops).expect("a part of the answer");
    let body = with(chat(QUESTION), json!({"stop": stops}));
    let (whole, _) = Answer::whole(server, &body);
    assert_eq!(whole.content, left, "{name} {stops:?}");
    assert_eq!(
        (&whole.finish, &whole.matched),
        (&json!("stop"), &json!(matched))
    );
    assert_eq!(whole.usage["completion_tokens"], tokens, "{name} {stops:?}");
    assert_eq!(Answer::streamed(server, &body), whole, "{name} {stops:?}");
}

#[test]
fn point_07_stop_strings_over_tokens() {
    let modes = Modes::shared();
    let pieces = pieces(&modes.plain);
    let text: Vec<char> = pieces.concat().chars().collect();
    assert!(pieces.len() > 5 && text.len() > 25, "{pieces:?}");
    // Every length from 1 to 12 somewhere, most of them across a border of tokens.
    let parts: Vec<Vec<String>> = (0..24)
        .map(|index| {
            let length = 1 + index % 12;
            let start = index * 7 % (text.len() - length);
            vec![text[start..start + length].iter().collect()]
        })
        .collect();
    for (name, server) in modes.all() {
        at_once(&parts, |stops| check(name, server, &pieces, stops));
    }
}

#[test]
fn point_07_four_stop_strings() {
    let modes = Modes::shared();
    let pieces = pieces(&modes.plain);
    let text: Vec<char> = pieces.concat().chars().collect();
    let part = |start: usize, length: usize| -> String {
        let start = start % (text.len() - length);
        text[start..start + length].iter().collect()
    };
    let sets: Vec<Vec<String>> = (0..12)
        .map(|i| {
            // Two that begin at the same place, one elsewhere, one that never comes.
            let longer = part(5 * i, 6);
            let shorter: String = longer.chars().take(4).collect();
            vec![shorter, part(3 * i + 11, 3), "never comes".into(), longer]
        })
        .collect();
    for (name, server) in modes.all() {
        at_once(&sets, |stops| check(name, server, &pieces, stops));
    }
}

#[test]
fn point_07_a_stop_string_inside_an_emoji() {
    let modes = Modes::shared();
    // A family of three: three characters and two joiners, each of several tokens.
    let family = "👩\u{200d}👩\u{200d}👧";
    let schema = json!({"type": "object", "properties": {"x": {"const": format!("a{family}b")}},
        "required": ["x"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let body = with(
        chat("Who?"),
        json!({"response_format": format, "max_tokens": 200}),
    );
    for (name, server) in modes.all() {
        let (free, _) = Answer::whole(server, &body);
        assert!(free.content.contains(family), "{name} {}", free.content);
        at_once(&["👩", "\u{200d}", "\u{200d}👧", "👧b"], |&stop| {
            let body = with(body.clone(), json!({"stop": ["🦀", stop]}));
            let (whole, _) = Answer::whole(server, &body);
            let left = &free.content[..free.content.find(stop).unwrap()];
            assert_eq!(whole.content, left, "{name} {stop:?}");
            assert_eq!(whole.matched, stop, "{name}");
            assert_eq!(Answer::streamed(server, &body), whole, "{name} {stop:?}");
            let kept = with(body, json!({"include_stop_str_in_output": true}));
            let (kept, _) = Answer::whole(server, &kept);
            assert_eq!(kept.content, format!("{left}{stop}"), "{name}");
        });
    }
}

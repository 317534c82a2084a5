use std::path::PathBuf;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::*;

fn render_text(source: &str, variables: Value) -> Result<String, Refusal> {
    let Value::Object(variables) = variables else {
        panic!("an object")
    };
    let template = ChatTemplate::new(source, "test").unwrap();
    template.render(&Conversation {
        variables,
        ..Conversation::default()
    })
}

#[test]
fn json_is_pythons() {
    let value =
        json!({"v": {"b": 1, "a": [1.0, true, null, "<&'\"\\/\n\u{1}é🦀"], "e": {}, "l": []}});
    assert_eq!(
        render_text("{{ v | tojson }}", value.clone()).unwrap(),
        r#"{"b": 1, "a": [1.0, true, null, "<&'\"\\/\n\u0001é🦀"], "e": {}, "l": []}"#
    );
    assert_eq!(
        render_text("{{ v | tojson(ensure_ascii=true, sort_keys=true) }}", value).unwrap(),
        "{\"a\": [1.0, true, null, \"<&'\\\"\\\\/\\n\\u0001\\u00e9\\ud83e\\udd80\"], \
         \"b\": 1, \"e\": {}, \"l\": []}"
    );
    let nested = json!({"v": {"a": [1, 2], "b": {}}});
    assert_eq!(
        render_text("{{ v | tojson(indent=2) }}", nested.clone()).unwrap(),
        "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}"
    );
    assert_eq!(
        render_text("{{ v | tojson(separators=[',', ':']) }}", nested).unwrap(),
        r#"{"a":[1,2],"b":{}}"#
    );
}

#[test]
fn trim_and_strip_are_pythons() {
    let value = json!({"v": "\u{1c}\u{a0} x y\u{1f}\n"});
    assert_eq!(
        render_text("[{{ v | trim }}]", value.clone()).unwrap(),
        "[x y]"
    );
    assert_eq!(
        render_text("[{{ v.strip() }}]", value.clone()).unwrap(),
        "[x y]"
    );
    assert_eq!(
        render_text("{{ v.split() | tojson }}", value.clone()).unwrap(),
        r#"["x", "y"]"#
    );
    assert_eq!(
        render_text("[{{ v.rstrip() | tojson }}]", value).unwrap(),
        "[\"\\u001c\u{a0} x y\"]"
    );
    assert_eq!(
        render_text("{{ 'xxaxx' | trim('x') }}", json!({})).unwrap(),
        "a"
    );
}

#[test]
fn exceptions_keep_their_text() {
    let error = render_text("{{ raise_exception('No cats.') }}", json!({})).unwrap_err();
    assert_eq!(error, Refusal("No cats.".to_owned()));
}

#[test]
fn open_reasoning_is_seen_in_the_last_turn_only() {
    assert!(ends_in_reasoning("<|im_start|>assistant\n<think>\n"));
    assert!(!ends_in_reasoning(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ));
    assert!(!ends_in_reasoning(
        "<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n"
    ));
    assert!(ends_in_reasoning("</think><|im_start|>assistant\n<think>"));
}

#[test]
fn broken_templates_are_refused_with_their_file() {
    let error = ChatTemplate::new("{% if %}", "chat_template.jinja").unwrap_err();
    assert!(
        error.to_string().starts_with("chat_template.jinja: "),
        "{error}"
    );
}

/// The 27B model's own template; its users have it with the model.
fn qwen_template() -> Option<ChatTemplate> {
    let Some(path) = std::env::var_os("SPINNEY_QWEN_TEMPLATE") else {
        println!("skipped: SPINNEY_QWEN_TEMPLATE does not name the Qwen3.6 chat template");
        return None;
    };
    let source = std::fs::read_to_string(path).unwrap();
    Some(ChatTemplate::new(&source, "chat_template.jinja").unwrap())
}

fn sha256(text: &str) -> String {
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn check(template: &ChatTemplate, conversation: &Conversation, bytes: usize, hash: &str) {
    let text = template.render(conversation).unwrap();
    assert_eq!(
        (text.len(), sha256(&text).as_str()),
        (bytes, hash),
        "{text}"
    );
}

fn conversation(messages: Value, variables: Value) -> Conversation {
    Conversation {
        messages: messages.as_array().unwrap().clone(),
        variables: variables.as_object().unwrap().clone(),
        generation_prompt: true,
        ..Conversation::default()
    }
}

#[test]
fn worked_renderings_of_qwen() {
    let Some(template) = qwen_template() else {
        return;
    };
    let brief = json!([{"role": "system", "content": "  Be brief. \n"},
        {"role": "user", "content": "Hi"}]);
    let hash = "7af1302f02f3df31b3efd94a7f08d2ac8fd4adaf2568e034b6cdcff0076a296a";
    check(&template, &conversation(brief.clone(), json!({})), 99, hash);
    let hash = "657fe6d7831e7eb014896102e7e254ae0371599af55a34816dff6763765b370a";
    check(
        &template,
        &conversation(brief, json!({"enable_thinking": false})),
        110,
        hash,
    );

    let sums = json!([{"role": "user", "content": "2+2?"},
        {"role": "assistant", "reasoning_content": "easy", "content": "4"},
        {"role": "user", "content": "times 3?"}]);
    let hash = "eded7cbe5299896e127bd3f981d44b6d8e3359964a5d450a198852d3bfad27b5";
    check(&template, &conversation(sums.clone(), json!({})), 132, hash);
    let hash = "527d20d3df7ab5a2ee0df06fb01d82cb90c5d03f146b061705c27f1c936fb9d1";
    check(
        &template,
        &conversation(sums, json!({"preserve_thinking": true})),
        155,
        hash,
    );

    let weather = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo and Rome?"},
        {"role": "assistant", "reasoning_content": "Two calls.", "content": "", "tool_calls": [
            {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}},
            {"name": "get_weather", "arguments": {"city": "Rome"}}]},
        {"role": "tool", "content": "{\"t\": 3}"}, {"role": "tool", "content": "{\"t\": 19}"}]);
    let mut weather = conversation(weather, json!({}));
    weather.tools = vec![weather_tool()];
    check(&template, &weather, 1630, WEATHER_HASH);
}

const WEATHER_HASH: &str = "7f1c096f4249d257e3fb8385647324d23618af5ee1c8dff737970665a08ecb4e";

fn weather_tool() -> Value {
    json!({"type": "function", "function": {"name": "get_weather",
        "description": "Weather for a city", "parameters": {"type": "object", "properties":
        {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}})
}

/// What clients send becomes what the template was made for: the same text as above.
#[test]
fn requests_with_calls_and_results_render_like_qwens_own() {
    let Some(template) = qwen_template() else {
        return;
    };
    let call = |id: &str, arguments: Value| {
        json!({"id": id, "type": "function",
            "function": {"name": "get_weather", "arguments": arguments}})
    };
    let results = [
        ("a", json!("{\"t\": 3}")),
        (
            "b",
            json!([{"type": "text", "text": "{\"t\": "}, {"type": "text", "text": "19}"}]),
        ),
    ]
    .map(|(id, content)| json!({"role": "tool", "tool_call_id": id, "content": content}));
    let thought = |name: &str, content: Value| {
        json!({"role": "assistant", (name): "Two calls.", "content": content, "tool_calls": [
            call("a", json!("{\"city\": \"Oslo\", \"days\": 2}")),
            call("b", json!({"city": "Rome"}))]})
    };
    let user = json!({"role": "user", "content": "Weather in Oslo and Rome?"});
    let [first, second] = results;
    for messages in [
        json!([{"role": "developer", "content": "Be brief."}, user,
            thought("reasoning", json!(null)), first, second]),
        json!([user, thought("reasoning_content", json!("")), first,
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "function", "name": "get_weather", "content": "{\"t\": 19}"}]),
    ] {
        let body = json!({"messages": messages, "tools": [weather_tool()]});
        let fields = crate::fields::Fields::root(body.as_object().unwrap());
        let rules = crate::sampling::RequestRules::default();
        let conversation = crate::chat::conversation(&fields, &rules).unwrap();
        check(&template, &conversation, 1630, WEATHER_HASH);
    }
}

#[test]
fn an_unfinished_answer_stays_open() {
    let Some(template) = qwen_template() else {
        return;
    };
    let turns = |last: Value| {
        let mut open = conversation(json!([{"role": "user", "content": "Hi"}]), json!({}));
        open.messages.push(last);
        open.continue_final = true;
        template.render(&open).unwrap()
    };
    let text = turns(json!({"role": "assistant", "content": "Hel"}));
    assert!(
        text.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\nHel"),
        "{text}"
    );
    assert!(!ends_in_reasoning(&text));
    let text = turns(json!({"role": "assistant", "content": "", "reasoning_content": "hm"}));
    assert!(
        text.ends_with("<|im_start|>assistant\n<think>\nhm"),
        "{text}"
    );
    assert!(ends_in_reasoning(&text));
}

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Renderings of the reference implementation.
#[test]
fn golden_renderings() {
    let cases = std::fs::read(repository("tests/fixtures/chat_template/cases.json")).unwrap();
    let cases: Value = serde_json::from_slice(&cases).unwrap();
    let source =
        std::fs::read_to_string(repository("crates/server/spinney-tiny/chat_template.jinja"));
    let tiny = ChatTemplate::new(&source.unwrap(), "chat_template.jinja").unwrap();
    let qwen = qwen_template();
    let read = |case: &Value| {
        let mut read = conversation(case["messages"].clone(), case["kwargs"].clone());
        read.generation_prompt = case["kwargs"]["add_generation_prompt"] == json!(true);
        read.tools = case["tools"].as_array().cloned().unwrap_or_default();
        read
    };
    let listed = cases["cases"].as_array().unwrap();
    assert!(listed.len() > 20);
    for case in listed {
        let name = &case["name"];
        assert_eq!(
            tiny.render(&read(case)).unwrap(),
            case["tiny"].as_str().unwrap(),
            "{name}"
        );
        if let Some(qwen) = &qwen {
            let text = qwen.render(&read(case)).unwrap();
            assert_eq!(
                sha256(&text),
                case["qwen"]["sha256"].as_str().unwrap(),
                "{name}: {text}"
            );
        }
    }
    for case in cases["raises"].as_array().unwrap() {
        let error = tiny.render(&read(case)).unwrap_err();
        assert_eq!(
            error.to_string(),
            case["tiny_error"].as_str().unwrap(),
            "{}",
            case["name"]
        );
        if let Some(qwen) = &qwen {
            assert!(qwen.render(&read(case)).is_err(), "{}", case["name"]);
        }
    }
}

//! The description of the server and the server are the same.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/schema.rs"]
mod schema;
#[path = "common/server.rs"]
mod server;

use schema::fits;
use serde_json::{Value, json};
use server::{Server, with};

/// Codes of values that fit their type and cannot be honoured.
const UNSUPPORTED: [&str; 2] = ["unsupported_value", "unsupported_parameter"];

/// Fields whose values have a meaning that a schema cannot check, and the code that says so.
const MEANINGS: [(&str, &str); 6] = [
    ("json_schema", "invalid_json_schema"),
    ("model", "model_not_found"),
    ("messages", "invalid_messages"),
    ("continue_final_message", "invalid_value"),
    ("chat_template_kwargs", "invalid_messages"),
    ("tool_choice", "invalid_value"),
];

#[test]
fn every_path_of_the_description_is_answered() {
    let server = Server::start(&[]);
    let document = server.get("/openapi.json").ok();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    let mut ids = Vec::new();
    let mut count = 0;
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            ids.push(operation["operationId"].as_str().unwrap());
            assert!(operation["summary"].as_str().unwrap().len() > 3);
            assert!(operation["responses"]["200"]["description"].is_string());
            let path = path.replace("{id}", "spinney-tiny");
            let reply = match method.as_str() {
                "get" => server.get(&path),
                "post" => server.post(&path, &json!({})),
                other => panic!("{other} {path}"),
            };
            assert!(
                !matches!(reply.status, 404 | 405 | 500),
                "{method} {path}: {reply:?}"
            );
            if let Some(body) = operation["requestBody"]["content"].as_object() {
                let reference = body["application/json"]["schema"]["$ref"].as_str().unwrap();
                assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
                let wrong = if method == "post" { "get" } else { "post" };
                if item.get(wrong).is_none() {
                    assert_eq!(server.get(&path).status, 405, "{path}");
                }
            }
            count += 1;
        }
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "operations have names of their own");
    assert!(count >= 30, "{count} operations");
    for path in [
        "/v1/chat/completions",
        "/generate",
        "/metrics",
        "/flush_cache",
        "/ping",
    ] {
        assert!(paths.contains_key(path), "{path}");
    }
}

/// Values of every type, and those around the bounds that a schema names.
fn values(schema: &Value) -> Vec<Value> {
    let long = "x".repeat(200);
    let mut values = vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(2),
        json!(0.5),
        json!(1.0),
        json!(1.5),
        json!(1e30),
        json!(u64::MAX),
        json!(""),
        json!("a"),
        json!(long),
        json!([]),
        json!(["a"]),
        json!([""]),
        json!([1]),
        json!([-1]),
        json!([null]),
        json!(["a", 1]),
        json!({}),
        json!({"a": 1}),
        json!({"40": 1}),
        json!({"type": "text"}),
        json!({"type": 1}),
        json!({"effort": "low"}),
        json!({"effort": "no"}),
        json!({"enable_thinking": 1}),
        json!({"include_usage": "a"}),
        json!([{"role": "user", "content": "a"}]),
        json!([{"role": "x", "content": "a"}]),
        json!([{"role": "user", "content": 1}]),
        json!([{"type": "function"}]),
        json!([{"type": "function", "function": {"name": "f"}}]),
    ];
    let mut bounds = vec![schema];
    bounds.extend(schema["anyOf"].as_array().into_iter().flatten());
    bounds.extend(schema["allOf"].as_array().into_iter().flatten());
    for schema in bounds {
        for name in ["minimum", "maximum", "exclusiveMinimum"] {
            let Some(bound) = schema.get(name) else {
                continue;
            };
            values.push(bound.clone());
            if let Some(bound) = bound.as_i64() {
                values.extend([bound.checked_add(1), bound.checked_sub(1)].map(|one| json!(one)));
            }
            if let Some(bound) = bound.as_f64().filter(|bound| bound.abs() < 1e6) {
                values.extend([json!(bound + 0.25), json!(bound - 0.25)]);
            }
        }
        if let Some(most) = schema["maxLength"].as_u64() {
            values.extend([most, most + 1].map(|count| json!("x".repeat(count as usize))));
        }
        if let Some(most) = schema["maxItems"].as_u64().filter(|most| *most < 1_000) {
            values.extend([most, most + 1].map(|count| json!(vec!["y"; count as usize])));
            values.extend([most, most + 1].map(|count| json!(vec![41; count as usize])));
        }
        values.extend(schema["enum"].as_array().into_iter().flatten().cloned());
    }
    values
}

struct Comparison<'a> {
    server: &'a Server,
    document: &'a Value,
    path: &'a str,
    schema: &'a Value,
    fitting: usize,
    unfitting: usize,
}

impl Comparison<'_> {
    /// A body that does not fit is refused; one that fits is not, but for what nobody promised.
    fn send(&mut self, field: &str, body: &Value) {
        let fit = fits(self.document, self.schema, body);
        let reply = self.server.post(self.path, body);
        let what = || {
            let shown: String = body.to_string().chars().take(300).collect();
            let answer: String = reply.text.chars().take(300).collect();
            format!(
                "{} {field}, fits: {fit}\n{shown}\n{} {answer}",
                self.path, reply.status
            )
        };
        assert!(matches!(reply.status, 200 | 400 | 404), "{}", what());
        if !fit {
            self.unfitting += 1;
            assert_eq!(reply.status, 400, "{}", what());
        } else if reply.status != 200 {
            let error = &reply.json()["error"];
            let code = error["code"].as_str().unwrap_or_default();
            let meant = MEANINGS.contains(&(field, code));
            assert!(UNSUPPORTED.contains(&code) || meant, "{}", what());
        } else {
            self.fitting += 1;
        }
    }
}

fn compare(path: &str, base: &Value, inner: Option<&str>) {
    let server = Server::shared();
    let document = server.get("/openapi.json").ok();
    let reference = &document["paths"][path]["post"]["requestBody"]["content"];
    let reference = reference["application/json"]["schema"]["$ref"]
        .as_str()
        .unwrap();
    let schema = document.pointer(&reference[1..]).unwrap();
    let mut comparison = Comparison {
        server: &server,
        document: &document,
        path,
        schema,
        fitting: 0,
        unfitting: 0,
    };
    assert!(fits(&document, schema, base), "{base}");
    comparison.send("", base);
    for example in schema["examples"].as_array().into_iter().flatten() {
        assert!(fits(&document, schema, example), "{example}");
        assert_eq!(server.post(path, example).status, 200, "{example}");
    }
    for name in schema["required"].as_array().unwrap() {
        let mut body = base.clone();
        body.as_object_mut().unwrap().remove(name.as_str().unwrap());
        assert!(!fits(&document, schema, &body), "{name}");
        comparison.send(name.as_str().unwrap(), &body);
    }
    let fields = match inner {
        None => &schema["properties"],
        Some(name) => &schema["properties"][name]["properties"],
    };
    for (name, field) in fields.as_object().unwrap() {
        for value in values(field) {
            let extra = json!({(name.as_str()): value});
            let body = match inner {
                None => with(base.clone(), extra),
                Some(inner) => {
                    let all = with(base[inner].clone(), extra);
                    with(base.clone(), json!({(inner): all}))
                }
            };
            comparison.send(name, &body);
        }
    }
    let (fitting, unfitting) = (comparison.fitting, comparison.unfitting);
    assert!(
        fitting > 5 && unfitting > 20,
        "{path}: {fitting} and {unfitting}"
    );
}

#[test]
fn chat_requests_are_as_described() {
    let base = json!({"model": "", "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1, "max_completion_tokens": 1, "logprobs": true});
    compare("/v1/chat/completions", &base, None);
}

#[test]
fn completion_requests_are_as_described() {
    let base = json!({"model": "", "prompt": "Hi", "max_tokens": 1});
    compare("/v1/completions", &base, None);
}

#[test]
fn generate_requests_are_as_described() {
    let base = json!({"text": "Hi", "sampling_params": {"max_new_tokens": 1}});
    compare("/generate", &base, None);
    compare("/generate", &base, Some("sampling_params"));
}

#[test]
fn priorities_are_as_described_where_they_count() {
    let server = Server::start(&["--schedule-policy=priority"]);
    let document = server.get("/openapi.json").ok();
    let schemas = &document["components"]["schemas"];
    let text = json!({"model": "", "prompt": "Hi", "max_tokens": 1});
    let native = json!({"text": "Hi", "sampling_params": {"max_new_tokens": 1}});
    for (path, name, base) in [
        ("/v1/completions", "CompletionRequest", text),
        ("/generate", "GenerateRequest", native),
    ] {
        for (priority, status) in [(json!(-3), 200), (json!(null), 200), (json!("high"), 400)] {
            let body = with(base.clone(), json!({"priority": priority}));
            assert_eq!(fits(&document, &schemas[name], &body), status == 200);
            assert_eq!(server.post(path, &body).status, status, "{path} {body}");
        }
    }
}

#[test]
fn token_requests_are_as_described() {
    compare("/tokenize", &json!({"prompt": "Hi"}), None);
    compare(
        "/tokenize",
        &json!({"messages": [{"role": "user", "content": "Hi"}]}),
        None,
    );
    compare("/detokenize", &json!({"tokens": [40]}), None);
    let base = json!({"messages": [{"role": "user", "content": "Hi"}]});
    compare("/apply-template", &base, None);
    compare("/abort_request", &json!({"rid": "nobody"}), None);
}

#[test]
fn keys_and_strictness_are_in_the_description() {
    let server = Server::start(&[
        "--api-key=k",
        "--strict-request-fields",
        "--disable-metrics",
    ]);
    let document = server.get("/openapi.json").ok();
    assert!(document["paths"]["/v1/models"]["get"]["security"].is_array());
    assert!(document["paths"]["/health"]["get"]["security"].is_null());
    assert!(document["paths"].get("/metrics").is_none());
    assert_eq!(server.get("/metrics").status, 404);
    let chat = &document["components"]["schemas"]["ChatRequest"];
    let unknown = json!({"model": "", "never_heard_of": 1,
        "messages": [{"role": "user", "content": "Hi"}]});
    assert!(!fits(&document, chat, &unknown));
    let reply = server.post_with("/v1/chat/completions", &[("api-key", "k")], &unknown);
    assert_eq!(reply.status, 400);
}

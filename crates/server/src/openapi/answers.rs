//! What a success says. Objects may have more than is listed.

use serde_json::{Map, Value, json};

use super::schema::{any_of, object, one_of, reference, text};

const COUNT: fn() -> Value = || json!({"type": "integer", "minimum": 0});
const STRING: fn() -> Value = || json!({"type": "string"});

/// The schema of every answer by name.
pub(super) fn all() -> Map<String, Value> {
    [
        ("ChatCompletion", chat(true)),
        ("ChatChunk", chat(false)),
        ("Completion", completion(true)),
        ("CompletionChunk", completion(false)),
        ("Generation", generation()),
        ("Generations", generations()),
        ("Usage", usage()),
        ("Models", models()),
        ("Model", model()),
        ("Tokens", tokens()),
        ("Text", detokenized()),
        ("Prompt", record(&[("prompt", STRING())], &[])),
        ("Status", record(&[("status", json!({"const": "ok"}))], &[])),
        ("Flushed", flushed()),
        ("Aborted", record(&[("aborted", COUNT())], &[])),
        ("Facts", json!({"type": "object"})),
    ]
    .map(|(name, schema)| (name.to_owned(), schema))
    .into_iter()
    .collect()
}

/// One event of a stream, whose data is JSON of this schema, `[DONE]` or an error.
pub(super) fn event(chunk: &str) -> Value {
    let said = any_of(vec![reference(chunk), reference("Error")]);
    let data = json!({"type": "string", "contentMediaType": "application/json",
        "contentSchema": said});
    let data = any_of(vec![json!({"const": "[DONE]"}), data]);
    record(&[("data", data)], &[])
}

fn record(required: &[(&str, Value)], optional: &[(&str, Value)]) -> Value {
    let names: Vec<&str> = required.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> = required
        .iter()
        .chain(optional)
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({"type": "object", "required": names, "properties": properties})
}

fn array(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn finish_reason(whole: bool) -> Value {
    let reasons = ["stop", "length", "tool_calls", "abort"];
    match whole {
        true => json!({"enum": reasons}),
        false => one_of(&reasons),
    }
}

/// An answer, or the chunk of a stream, with choices of this schema.
fn answer(kind: &str, choice: Value, whole: bool) -> Value {
    let mut required = vec![
        ("id", STRING()),
        ("object", json!({"const": kind})),
        ("created", COUNT()),
        ("model", STRING()),
        ("system_fingerprint", STRING()),
        ("choices", array(choice)),
    ];
    let mut optional = vec![
        ("service_tier", STRING()),
        ("metrics", json!({"type": "object"})),
        ("sglext", json!({"type": "object"})),
    ];
    match whole {
        true => required.push(("usage", reference("Usage"))),
        false => optional.push((
            "usage",
            any_of(vec![reference("Usage"), json!({"type": "null"})]),
        )),
    }
    record(&required, &optional)
}

fn chat(whole: bool) -> Value {
    let function = record(&[], &[("name", STRING()), ("arguments", STRING())]);
    let call = record(
        &[("function", function)],
        &[("index", COUNT()), ("id", STRING()), ("type", STRING())],
    );
    let reasoning = [("reasoning_content", STRING()), ("reasoning", STRING())];
    let mut parts = vec![("tool_calls", array(call))];
    parts.extend(reasoning);
    let role = ("role", json!({"const": "assistant"}));
    let refusal = ("refusal", json!({"type": "null"}));
    let (name, kind, said) = match whole {
        true => {
            let required = [role, ("content", text()), refusal];
            ("message", "chat.completion", record(&required, &parts))
        }
        false => {
            parts.extend([role, ("content", STRING())]);
            ("delta", "chat.completion.chunk", record(&[], &parts))
        }
    };
    let bytes = json!({"type": "integer", "minimum": 0, "maximum": 255});
    let likely = [
        ("token", STRING()),
        ("logprob", json!({"type": "number", "maximum": 0})),
        ("bytes", array(bytes)),
    ];
    let top = ("top_logprobs", array(record(&likely, &[])));
    let line = record(&[&likely[..], &[top][..]].concat(), &[]);
    let logprobs = json!({"type": ["object", "null"], "required": ["content"],
        "properties": {"content": array(line)}});
    let choice = record(
        &[
            ("index", COUNT()),
            (name, said),
            ("logprobs", logprobs),
            ("finish_reason", finish_reason(whole)),
        ],
        &stops(),
    );
    answer(kind, choice, whole)
}

fn stops() -> [(&'static str, Value); 2] {
    let stop = json!({"type": ["string", "integer", "null"]});
    [("matched_stop", stop.clone()), ("stop_reason", stop)]
}

fn completion(whole: bool) -> Value {
    let numbers = array(json!({"type": ["number", "null"], "maximum": 0}));
    let columns = record(
        &[
            ("tokens", array(STRING())),
            ("token_logprobs", numbers),
            ("top_logprobs", array(object())),
            ("text_offset", array(COUNT())),
        ],
        &[],
    );
    let choice = record(
        &[
            ("index", COUNT()),
            ("text", STRING()),
            ("logprobs", any_of(vec![columns, json!({"type": "null"})])),
            ("finish_reason", finish_reason(whole)),
        ],
        &stops(),
    );
    answer("text_completion", choice, whole)
}

fn usage() -> Value {
    let names = ["prompt_tokens", "completion_tokens", "total_tokens"];
    let counts = names.map(|name| (name, COUNT()));
    let details = record(&[("cached_tokens", COUNT())], &[]);
    let more = [
        ("prompt_tokens_details", details),
        ("reasoning_tokens", COUNT()),
    ];
    record(&counts, &more)
}

fn generation() -> Value {
    let info = record(
        &[
            ("id", STRING()),
            ("finish_reason", object()),
            ("prompt_tokens", COUNT()),
            ("completion_tokens", COUNT()),
        ],
        &[],
    );
    record(
        &[
            ("text", STRING()),
            ("output_ids", array(COUNT())),
            ("meta_info", info),
        ],
        &[("index", COUNT())],
    )
}

/// A list where several texts, or several answers to one, were asked for.
fn generations() -> Value {
    let one = reference("Generation");
    any_of(vec![one.clone(), array(one)])
}

fn models() -> Value {
    let data = array(reference("Model"));
    record(&[("object", json!({"const": "list"})), ("data", data)], &[])
}

fn model() -> Value {
    record(
        &[
            ("id", STRING()),
            ("object", json!({"const": "model"})),
            ("created", COUNT()),
            ("owned_by", STRING()),
        ],
        &[
            ("max_model_len", COUNT()),
            ("context_length", COUNT()),
            ("capabilities", json!({"type": "object"})),
        ],
    )
}

fn tokens() -> Value {
    let ids = array(COUNT());
    record(
        &[
            ("tokens", any_of(vec![ids.clone(), array(ids)])),
            ("count", COUNT()),
            ("max_model_len", COUNT()),
            ("token_strs", json!({"type": ["array", "null"]})),
        ],
        &[],
    )
}

fn detokenized() -> Value {
    let text = any_of(vec![STRING(), array(STRING())]);
    record(&[("text", text.clone()), ("prompt", text)], &[])
}

fn flushed() -> Value {
    record(
        &[
            ("success", json!({"type": "boolean"})),
            ("message", STRING()),
        ],
        &[],
    )
}

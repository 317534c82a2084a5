//! The fields of every request body.

use serde_json::{Map, Value, json};

use super::schema::{
    any_of, boolean, count, described, integer, list, number, object, one_of, reference,
    short_text, text, token_id,
};
use super::translated;
use crate::completions::PROMPTS_MAX;
use crate::field_rules::{IGNORED, REFUSED};
use crate::fields::Bounds;
use crate::generate::SAMPLING_PARAMS;
use crate::ids::RID_LENGTH_MAX;

/// Limits that flags and model set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// Answers to one prompt.
    pub(crate) choices: usize,
    /// Stop strings.
    pub(crate) stops: usize,
    /// Ids that name tokens.
    pub(crate) vocabulary: usize,
    /// Requests may say how urgent they are.
    pub(crate) priority: bool,
    /// Unknown fields are refused.
    pub(crate) strict: bool,
}

/// Names and schemas.
pub(super) type Fields = Vec<(&'static str, Value)>;

/// The schema of every body by name.
pub(crate) fn all(limits: &BodyLimits) -> Map<String, Value> {
    let bodies = [
        ("ChatRequest", chat(limits)),
        ("CompletionRequest", completion(limits)),
        ("GenerateRequest", generate(limits)),
        ("TokenizeRequest", tokenize()),
        ("DetokenizeRequest", detokenize(limits)),
        (
            "TemplateRequest",
            body(conversation(), &["messages"], false),
        ),
        ("AbortRequest", abort()),
        ("MessageRequest", translated::message(limits)),
        ("CountRequest", translated::count_tokens(limits)),
        ("ResponseRequest", translated::response(limits)),
        ("Message", message()),
        ("Tool", tool()),
    ];
    bodies
        .map(|(name, schema)| (name.to_owned(), schema))
        .into_iter()
        .collect()
}

/// An object with these fields.
pub(super) fn body(fields: Fields, required: &[&str], strict: bool) -> Value {
    let properties: Map<String, Value> = fields
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    let present: Map<String, Value> = required
        .iter()
        .map(|&name| (name.to_owned(), json!({"not": {"type": "null"}})))
        .collect();
    let mut body = json!({"type": "object", "required": required, "properties": properties});
    if !present.is_empty() {
        body["allOf"] = json!([{"properties": present}]);
    }
    if strict {
        body["additionalProperties"] = json!({"type": "null"});
    }
    body
}

/// What a body may have beside the fields that mean something.
fn others(limits: &BodyLimits) -> Fields {
    let ignored = IGNORED
        .iter()
        .map(|&name| (name, described(hint(name), "Without effect")));
    let order = match limits.priority {
        true => "Lower ones start first",
        false => "Without effect",
    };
    let priority = described(integer(i64::MIN, i64::MAX), order);
    let absent = || json!({"enum": [false, null, "", []], "description": "Not supported"});
    let refused = REFUSED.iter().map(|&name| (name, absent()));
    let all = ignored.chain(refused);
    let salt = "Only requests with the same one share what is kept of their prompts";
    let salt = described(short_text(256), salt);
    all.chain([("priority", priority), ("cache_salt", salt)])
        .collect()
}

/// Hints must have the right form, whatever becomes of them.
fn hint(name: &str) -> Value {
    match name {
        "user" | "service_tier" => text(),
        _ => json!({}),
    }
}

fn sampling(limits: &BodyLimits) -> Fields {
    let unit = Bounds::closed(0.0, 1.0);
    let penalty = || number(Bounds::closed(-2.0, 2.0));
    let repetition = Bounds {
        low_open: true,
        ..Bounds::closed(0.0, 2.0)
    };
    let vocabulary = i64::try_from(limits.vocabulary).unwrap_or(i64::MAX);
    let choices = i64::try_from(limits.choices).unwrap_or(i64::MAX);
    vec![
        ("temperature", number(Bounds::closed(0.0, 2.0))),
        ("top_p", number(unit)),
        ("top_k", integer(-1, vocabulary)),
        ("min_p", number(unit)),
        ("presence_penalty", penalty()),
        ("frequency_penalty", penalty()),
        ("repetition_penalty", number(repetition)),
        ("n", integer(1, choices)),
        ("stop", stop(limits.stops)),
        ("stop_token_ids", list(token_id(limits.vocabulary), 64)),
        ("ignore_eos", boolean()),
        ("skip_special_tokens", boolean()),
        ("no_stop_trim", boolean()),
    ]
}

fn stop(stops: usize) -> Value {
    let one = json!({"type": "string", "minLength": 1, "maxLength": 1_024});
    any_of(vec![one.clone(), list(one, stops)])
}

/// What chat and text requests share.
fn shared(limits: &BodyLimits) -> Fields {
    let bias = json!({
        "type": ["object", "null"],
        "maxProperties": 1_024,
        "propertyNames": {"pattern": "^(0|[1-9][0-9]*)$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    });
    let options = json!({
        "type": ["object", "null"],
        "properties": {"include_usage": boolean(), "continuous_usage_stats": boolean()},
    });
    let formats = ["text", "json_object", "json_schema"];
    let format = json!({
        "type": ["object", "null"],
        "required": ["type"],
        "properties": {"type": {"enum": formats}},
    });
    let mut fields = vec![
        (
            "model",
            described(text(), "Empty or 'default': the model that is served"),
        ),
        ("max_completion_tokens", count(1)),
        (
            "max_tokens",
            described(count(-1), "-1: as many as the context holds"),
        ),
        ("min_tokens", count(0)),
        ("seed", integer(i64::MIN, i64::MAX)),
        ("include_stop_str_in_output", boolean()),
        ("logit_bias", bias),
        ("stream", boolean()),
        ("stream_options", options),
        ("spec_decode", described(boolean(), "false: without drafts")),
        (
            "speculative",
            described(boolean(), "Another name of spec_decode"),
        ),
        (
            "rid",
            described(short_text(RID_LENGTH_MAX), "Name for /abort_request"),
        ),
        ("priority", hint("priority")),
        ("return_spec_tokens_details", boolean()),
        ("return_meta_info", boolean()),
        ("use_beam_search", json!({"enum": [false, null]})),
        ("best_of", described(count(1), "At most n")),
        ("functions", list(json!({}), 0)),
        ("modalities", list(json!({"const": "text"}), 8)),
        ("response_format", format),
    ];
    fields.extend(sampling(limits));
    fields.extend(others(limits));
    fields
}

/// A field is there and not null.
fn given(name: &str) -> Value {
    json!({"required": [name], "properties": {name: {"not": {"type": "null"}}}})
}

/// Rules over several fields.
fn related(mut schema: Value, rules: Vec<Value>) -> Value {
    if let Some(all) = schema["allOf"].as_array_mut() {
        let streamed = json!({
            "if": {"required": ["stream_options"],
                "properties": {"stream_options": {"type": "object"}}},
            "then": {"required": ["stream"], "properties": {"stream": {"const": true}}},
        });
        all.push(streamed);
        all.extend(rules);
    }
    schema
}

fn no_zero() -> Value {
    json!({"properties": {"max_tokens": {"not": {"const": 0}}}})
}

fn conversation() -> Fields {
    let efforts = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    let reasoning = json!({
        "type": ["object", "null"],
        "properties": {
            "effort": one_of(&efforts),
            "enabled": boolean(),
            "max_tokens": {"type": "null", "description": "Not supported"},
        },
    });
    let reserved = [
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
    ];
    let variables = json!({
        "type": ["object", "null"],
        "maxProperties": 32,
        "propertyNames": {"not": {"enum": reserved}},
        "properties": {"enable_thinking": boolean(), "preserve_thinking": boolean()},
    });
    let messages = json!({"type": "array", "minItems": 1, "maxItems": 2_048,
        "items": reference("Message")});
    vec![
        ("messages", messages),
        ("tools", list(reference("Tool"), 128)),
        ("tool_choice", tool_choice()),
        ("reasoning_effort", one_of(&efforts)),
        ("reasoning", reasoning),
        ("chat_template_kwargs", variables),
        ("enable_thinking", boolean()),
        ("continue_final_message", boolean()),
        ("add_generation_prompt", boolean()),
    ]
}

fn tool_choice() -> Value {
    let named = json!({
        "type": "object",
        "required": ["type", "function"],
        "properties": {
            "type": {"enum": ["function"]},
            "function": {"type": "object", "required": ["name"],
                "properties": {"name": {"type": "string"}}},
        },
    });
    let allowed = json!({
        "type": "object",
        "required": ["type", "allowed_tools"],
        "properties": {
            "type": {"enum": ["allowed_tools"]},
            "allowed_tools": {"type": "object", "required": ["mode", "tools"],
                "properties": {
                    "mode": {"enum": ["auto", "required"]},
                    "tools": {"type": "array", "items": named, "maxItems": 128},
                }},
        },
    });
    any_of(vec![one_of(&["auto", "none", "required"]), named, allowed])
}

fn chat(limits: &BodyLimits) -> Value {
    let mut fields = conversation();
    fields.extend([
        ("logprobs", boolean()),
        ("top_logprobs", integer(0, 20)),
        ("parallel_tool_calls", boolean()),
        ("separate_reasoning", boolean()),
        ("stream_reasoning", boolean()),
        ("include_reasoning", boolean()),
        (
            "return_step_trace",
            described(boolean(), "What every step verified: 'steps' of a choice"),
        ),
    ]);
    fields.extend(shared(limits));
    let mut schema = body(fields, &["model", "messages"], limits.strict);
    schema["examples"] = json!([{"model": "default", "max_tokens": 16,
        "messages": [{"role": "user", "content": "What is 2+2?"}]}]);
    related(schema, vec![no_zero()])
}

fn completion(limits: &BodyLimits) -> Value {
    let ids = json!({"type": "array", "minItems": 1, "items": token_id(limits.vocabulary)});
    let some = json!({"type": "string", "minLength": 1});
    let one = any_of(vec![some.clone(), ids.clone()]);
    let many = json!({"type": "array", "minItems": 1, "maxItems": PROMPTS_MAX, "items": one});
    let mut fields = vec![
        ("prompt", any_of(vec![some, ids, many])),
        ("echo", boolean()),
        (
            "logprobs",
            any_of(vec![integer(0, 20), json!({"const": false})]),
        ),
        ("suffix", described(short_text(0), "Not supported")),
    ];
    fields.extend(shared(limits));
    let echo = json!({"required": ["echo"], "properties": {"echo": {"const": true}}});
    let rules = vec![json!({"if": echo, "else": no_zero()})];
    let mut schema = body(fields, &["model", "prompt"], limits.strict);
    let example = json!({"model": "default", "prompt": "The sum of", "max_tokens": 16});
    schema["examples"] = json!([example]);
    related(schema, rules)
}

fn generate(limits: &BodyLimits) -> Value {
    let mut known: Map<String, Value> = sampling(limits)
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    for (name, schema) in [
        (
            "max_new_tokens",
            json!({"allOf": [count(-1), {"not": {"const": 0}}]}),
        ),
        ("min_new_tokens", count(0)),
        ("sampling_seed", integer(i64::MIN, i64::MAX)),
        (
            "json_schema",
            described(
                json!({"type": ["object", "string", "null"]}),
                "A schema, or its text",
            ),
        ),
    ] {
        known.insert(name.to_owned(), schema);
    }
    let schema_of = |&name: &&str| {
        let schema = known.get(name).cloned().unwrap_or_default();
        (name.to_owned(), schema)
    };
    let params: Map<String, Value> = SAMPLING_PARAMS.iter().map(schema_of).collect();
    let ids = json!({"type": "array", "minItems": 1, "items": token_id(limits.vocabulary)});
    let some = json!({"type": "string", "minLength": 1});
    let many = |one: &Value| json!({"type": "array", "minItems": 1, "maxItems": PROMPTS_MAX, "items": one});
    let absent = json!({"type": "null"});
    let mut fields = vec![
        (
            "text",
            any_of(vec![absent.clone(), some.clone(), many(&some)]),
        ),
        ("input_ids", any_of(vec![absent, ids.clone(), many(&ids)])),
        (
            "sampling_params",
            json!({"type": ["object", "null"], "properties": params}),
        ),
        ("stream", boolean()),
        ("rid", short_text(RID_LENGTH_MAX)),
        ("return_logprob", json!({"enum": [false, null]})),
    ];
    fields.extend(others(limits));
    let mut schema = body(fields, &[], false);
    schema["oneOf"] = json!([given("text"), given("input_ids")]);
    schema
}

fn tokenize() -> Value {
    let texts = json!({"type": "array", "maxItems": PROMPTS_MAX, "items": {"type": "string"}});
    let messages = json!({"type": ["array", "null"], "minItems": 1, "maxItems": 2_048,
        "items": reference("Message")});
    let fields = vec![
        ("model", text()),
        ("prompt", any_of(vec![text(), texts])),
        ("messages", messages),
        ("add_special_tokens", boolean()),
        ("return_token_strs", boolean()),
    ];
    let mut schema = body(fields, &[], false);
    // What goes with a conversation means nothing beside a text.
    let talk = body(conversation(), &["messages"], false);
    schema["oneOf"] = json!([given("prompt"), talk]);
    schema
}

fn detokenize(limits: &BodyLimits) -> Value {
    let ids = json!({"type": "array", "items": token_id(limits.vocabulary)});
    let lists = json!({"type": "array", "items": ids});
    let fields = vec![
        ("model", text()),
        ("tokens", any_of(vec![ids, lists])),
        ("skip_special_tokens", boolean()),
    ];
    body(fields, &["tokens"], false)
}

fn abort() -> Value {
    let fields = vec![
        ("rid", short_text(RID_LENGTH_MAX)),
        ("abort_all", boolean()),
    ];
    let mut schema = body(fields, &[], false);
    let named = json!({"required": ["rid"], "properties": {"rid": {"type": "string"}}});
    let all = json!({"required": ["abort_all"], "properties": {"abort_all": {"const": true}}});
    schema["anyOf"] = json!([named, all]);
    schema
}

fn message() -> Value {
    let roles = [
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
        "function",
    ];
    let text_of = |kind: &str| {
        json!({"type": "object", "required": ["type", kind],
        "properties": {"type": {"const": kind}, kind: {"type": "string"}}})
    };
    let part = any_of(vec![text_of("text"), text_of("refusal")]);
    let fields = vec![
        ("role", json!({"enum": roles})),
        ("content", any_of(vec![text(), list(part, 2_048)])),
    ];
    let mut schema = body(fields, &["role"], false);
    if let Some(all) = schema["allOf"].as_array_mut() {
        all.push(json!({
            "if": {"required": ["role"], "properties": {"role": {"const": "tool"}}},
            "then": {"required": ["tool_call_id"],
                "properties": {"tool_call_id": {"type": "string"}}},
        }));
    }
    schema
}

fn tool() -> Value {
    let function = json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 64},
            "parameters": object(),
        },
    });
    let fields = vec![
        ("type", json!({"const": "function"})),
        ("function", function),
    ];
    body(fields, &["type", "function"], false)
}

//! `/openapi.json`: what this build with these flags takes, for tools that make requests of it.
//!
//! Paths come from the router, which adds none without its description. Fields of bodies come from
//! `openapi/bodies.rs`; a test sends every field with fitting and unfitting values and compares. What
//! comes back is in `openapi/answers.rs`; a fuzzer holds answers against it.

mod answers;
pub(crate) mod bodies;
pub(crate) mod operation;
pub(crate) mod schema;
#[cfg(test)]
mod tests;
mod translated;

use serde_json::{Map, Value, json};

use crate::app::App;
use crate::routes::{Guard, Route};

pub(crate) use bodies::BodyLimits;
pub(crate) use operation::Operation;

/// The document of these routes.
pub(crate) fn document(app: &App, routes: &[Route]) -> Value {
    let rules = &app.config.rules;
    let limits = BodyLimits {
        choices: rules.choices_max.min(app.engine.stats().slots_total),
        stops: rules.stop_strings_max,
        vocabulary: app.files.vocabulary.len(),
        priority: rules.priority,
        strict: rules.strict_fields,
    };
    let mut schemas = bodies::all(&limits);
    schemas.extend(answers::all());
    schemas.insert("Error".into(), error_schema());
    schemas.insert("MessageError".into(), message_error_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Spinney",
            "summary": "Speculative-decoding inference server",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths(routes, !app.config.api_keys.is_empty()),
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

fn paths(routes: &[Route], keyed: bool) -> Map<String, Value> {
    let mut paths = Map::new();
    for route in routes {
        let path = route.path.replace("{*", "{");
        let method = route.method.as_str().to_ascii_lowercase();
        let item = paths.entry(path.clone()).or_insert_with(|| json!({}));
        item[&method] = operation(route, &path, &method, keyed);
    }
    paths
}

fn operation(route: &Route, path: &str, method: &str, keyed: bool) -> Value {
    let Operation {
        summary,
        body,
        query,
        content,
        streams,
        answer,
        chunk,
        error,
    } = route.operation;
    let mut parameters: Vec<Value> = query
        .iter()
        .map(|(name, text)| {
            json!({"name": name, "in": "query", "required": false, "description": text,
                "schema": {"type": "string"}})
        })
        .collect();
    // One name in braces at most.
    if let Some((name, _)) = path
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
    {
        parameters.push(json!({"name": name, "in": "path", "required": true,
            "schema": {"type": "string"}}));
    }
    let mut contents = json!({content: {}});
    if let Some(name) = answer {
        contents[content]["schema"] = schema::reference(name);
    }
    if streams {
        let event = chunk.map_or_else(|| json!({"type": "object"}), answers::event);
        contents["text/event-stream"] = json!({"schema": event});
    }
    if query.iter().any(|(name, _)| *name == "format") {
        contents["text/plain"] = json!({});
    }
    if path == "/metrics" {
        contents["application/openmetrics-text"] = json!({});
    }
    let error = json!({"application/json": {"schema": schema::reference(error)}});
    let mut object = json!({
        "operationId": format!("{method}{}", path.replace(['/', '{', '}', '-', '.'], "_")),
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Success", "content": contents},
            "4XX": {"description": "The request is refused", "content": error},
            "5XX": {"description": "The server cannot answer now", "content": error},
        },
    });
    if let Some(name) = body.filter(|_| method == "post") {
        let content = json!({"application/json": {"schema": schema::reference(name)}});
        object["requestBody"] = json!({"required": true, "content": content});
    }
    if route.guard != Guard::Open && keyed {
        object["security"] = json!([{"bearer": []}, {"header": []}]);
    }
    object
}

/// A failure in Anthropic's form.
fn message_error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": "string"},
        },
    })
}

fn error_schema() -> Value {
    let optional = json!({"type": ["string", "null"]});
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": optional,
                "code": optional,
            },
        }},
    })
}
